"""Wirings that a user asks for: a variant with its options, or several of them, each for some layers of a stack."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import (
    SHORT,
    Given,
    format_options,
    given_options,
    options_of,
    parse_options,
    show_value,
)
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import takes_eps
from fairseq_residuals.wirings.core.registry import VARIANTS, find_variant
from fairseq_residuals.wirings.core.stack import Stack

_WITH_OPTIONS = re.compile(r"(?P<name>[\w-]+)\((?P<options>.*)\)")
_PART = re.compile(r"(?P<name>[\w-]+):(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")


@dataclass(frozen=True)
class Segment:
    """A variant with its options, for some layers."""

    name: str
    config: Any
    given: frozenset[str]
    """The options that the user named; the others have their defaults."""
    first: int = 0
    last: int | None = None
    """Last layer, counted from 0, included; None: the last layer there is."""
    unregistered: type[Variant] | None = None
    """The class of a wiring that has no name in the registry."""

    @property
    def variant(self) -> type[Variant]:
        return self.unregistered or VARIANTS[self.name]

    def build(self, shape: StackShape) -> Variant:
        """Return the variant for a stack, or for this part of it."""
        return self.variant(self.config, replace(shape, norm_type=self.config.norm_type, norm_eps=self.config.norm_eps))

    @property
    def layers(self) -> str:
        return "" if self.last is None else f":{self.first}-{self.last}"


@dataclass(frozen=True)
class Wiring:
    """The wiring of one stack, as ``--residual NAME --residual-args k=v,...`` choose it.

    NAME is a variant, a variant with its options such as ``pre_ln(final_norm=false)``, or a list such as
    ``post_ln:0-5,pre_ln:6-17``.
    """

    parts: tuple[Segment, ...]

    @classmethod
    def parse(cls, name: str, options: Given = None) -> Wiring:
        """Read a wiring from the two flags' values, or from a name and options by name.

        In a list, an option holds for every variant that has it, and ``variant.option`` for one of them.

        Raises:
            UserError: unknown variant or option, a value out of range, a list that is not one; the message says what
                is valid.
        """
        given = given_options(options)
        if within := _WITH_OPTIONS.fullmatch(name):
            name, given = within["name"], given_options(within["options"]) + given
        if not re.search(r"[:,]", name):
            return cls((Segment(name, *parse_options(f"wiring {name!r}", find_variant(name).Config, given)),))
        places = []
        for text in name.split(","):
            place = _PART.fullmatch(text.strip())
            if place is None:
                raise UserError(
                    f"{name!r} is not a wiring or a list of wirings with their layers, such as"
                    " post_ln:0-5,pre_ln:6-17 (layers are counted from 0); options stand in brackets, as in"
                    " pre_ln(final_norm=false)"
                )
            find_variant(place["name"])
            places.append((place["name"], int(place["first"]), int(place["last"] or place["first"])))
        shares = _share_out(given, [name for name, _, _ in places])
        return cls(
            tuple(
                Segment(name, *parse_options(f"wiring {name!r}", VARIANTS[name].Config, shares[name]), first, last)
                for name, first, last in places
            )
        )

    @classmethod
    def of(cls, own: type[Connection] | type[Variant], options: Given = None) -> Wiring:
        """Return the wiring of a class that need not be registered, nor say anything of itself.

        Raises:
            UserError: an option is unknown or out of range.
        """
        # mypy takes type[Connection] for unhashable
        variant: Any = _silent_variant(own) if issubclass(own, Connection) else own  # type: ignore[arg-type]
        name = own.__name__
        chosen = parse_options(f"wiring {name!r}", variant.Config, given_options(options))
        return cls((Segment(name, *chosen, unregistered=variant),))

    @classmethod
    def of_stack(cls, stack: Stack) -> Wiring:
        """Return the wiring of a stack that was built."""
        parts: list[Segment] = []
        for variant, layers in stack.segments():
            first = parts[-1].last + 1 if parts and parts[-1].last is not None else 0
            last = None if len(layers) == len(stack) else first + len(layers) - 1
            parts.append(Segment(variant.name, variant.config, frozenset(), first, last, type(variant)))
        return cls(tuple(parts))

    @property
    def name(self) -> str:
        """Name, as ``--residual`` takes it."""
        return ",".join(f"{part.name}{part.layers}" for part in self.parts)

    @property
    def args(self) -> str:
        """Every option spelled out, as ``--residual-args`` takes it."""
        if len(self.parts) == 1:
            return format_options(self.parts[0].config)
        texts = {part.name: format_options(part.config).split(",") for part in self.parts}
        return ",".join(f"{name}.{option}" for name, options in texts.items() for option in options)

    @property
    def computes(self) -> str:
        """Text of what a trained model depends on: the variants, and those options that are not for training alone."""
        parts = []
        for part in self.parts:
            options = options_of(part.variant.Config).values()
            values = {o.name: show_value(getattr(part.config, o.name)) for o in options if not o.for_training}
            parts.append(f"{part.name}{part.layers}({','.join(f'{k}={v}' for k, v in values.items())})")
        return ",".join(parts)

    @property
    def normalize_before(self) -> bool:
        """Whether all layers are Pre-LN; ``normalize_before`` is fairseq's name for it."""
        return all(part.variant.normalize_before for part in self.parts)

    @property
    def title(self) -> str:
        return ", ".join(f"{part.variant.title}{part.layers}" for part in self.parts)

    @property
    def equations(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line for p in self.parts for line in p.variant.equations_of(p.config)))

    def value(self, option: str) -> Any:
        """Return an option's value in the topmost part; None if it has no such option."""
        return getattr(self.parts[-1].config, option, None)

    def with_default(self, option: str, value: Any) -> Wiring:
        """Return the same with ``option`` set wherever a variant has it and the user did not name it."""
        return Wiring(
            tuple(
                replace(part, config=replace(part.config, **{option: value}))
                if hasattr(part.config, option) and option not in part.given
                else part
                for part in self.parts
            )
        )

    def check(self, stack: str, depth: int, *, alone: bool) -> None:
        """Check that every variant can wire its part of a stack.

        Args:
            stack: encoder or decoder.
            depth: its layers.
            alone: whether it is a decoder without an encoder.

        Raises:
            UserError: the wiring has no meaning in such a stack, or its parts do not cover the layers once each.
        """
        for part in self.parts:
            own = depth if part.last is None else part.last - part.first + 1
            if reason := part.variant.refusal(alone=alone, topmost=part is self.parts[-1], depth=own):
                raise UserError(f"wiring {part.name!r} cannot be used there: {reason}")
            if reason := part.variant.contradiction(part.config):
                raise UserError(f"wiring {part.name!r} cannot take {reason}; leave it out")
            for option in options_of(part.variant.Config).values():
                if option.is_idle(part.config):
                    raise UserError(f"option {option.name} of {part.name} would do nothing without {option.only_with}")
            if "norm_eps" in part.given and part.config.norm_eps and not takes_eps(part.config.norm_type):
                raise UserError(
                    f"option norm_eps would do nothing: a norm of norm_type={part.config.norm_type} has no argument eps"
                )
        expected = 0
        for part in self.parts:
            last = depth - 1 if part.last is None else part.last
            if part.first != expected or not part.first <= last < depth:
                raise UserError(f"{self.name!r} must name each layer of the {stack} once, in order: 0 to {depth - 1}")
            expected = last + 1
        if expected != depth:
            raise UserError(f"{self.name!r} ends at layer {expected - 1}, and the {stack} has layers 0 to {depth - 1}")

    def build(self, shape: StackShape) -> Variant:
        """Return the variant for one stack.

        Raises:
            UserError: as :meth:`check`.
        """
        self.check(shape.stack, shape.depth, alone=not shape.cross)
        if len(self.parts) == 1:
            return self.parts[0].build(shape)
        variants = []
        for part in self.parts:
            assert part.last is not None
            depth = part.last - part.first + 1
            own = {"depth": depth, f"{shape.stack[:3]}_depth": depth}
            variants.append(part.build(replace(shape, **own)))  # type: ignore[arg-type]
        return Segments(variants, shape)

    def __str__(self) -> str:
        return f"{self.name} ({self.args})"


@functools.cache
def _silent_variant(own: type[Connection]) -> type[Variant]:
    """Return a variant of a connection, which says no equations; copies and pickles of it name the connection."""
    body = {
        "connection": own,
        "summation": own.summation,
        "equations": classmethod(lambda cls, o: ()),
        "__reduce__": lambda self: (_empty, (own,), vars(self)),
    }
    return type(own.__name__, (Variant,), body)


def _empty(own: type[Connection]) -> Variant:
    variant = _silent_variant(own)  # type: ignore[arg-type]
    return variant.__new__(variant)


class Segments(Variant):
    """Variants above each other, each a stack of its own, of the depth that it has.

    A segment is opened on the output of the one below, and closed (with its top norm, where it has one) before the
    next.
    """

    name = ""

    def __init__(self, variants: list[Variant], shape: StackShape) -> None:
        """Stack the variants.

        Args:
            variants: from the bottom, each built for its part of the depth.
        """
        super().__init__(None, shape)
        self.variants = nn.ModuleList(variants)
        self.places = [(variant, i) for variant in variants for i in range(variant.shape.depth)]

    def at(self, i: int) -> tuple[Variant, int]:
        return self.places[i]

    def connect(self, site: Site) -> Connection:
        raise NotImplementedError("a layer is connected by the segment that it belongs to")

    def open(self, x: Tensor) -> Stream:
        return self.places[0][0].open(x)

    def after_layer(self, i: int, s: Stream) -> Stream:
        variant, inside = self.places[i]
        s = variant.after_layer(inside, s)
        if inside == variant.shape.depth - 1 and i < len(self.places) - 1:
            return self.places[i + 1][0].open(variant.close(s))
        return s

    def close(self, s: Stream) -> Tensor:
        return self.places[-1][0].close(s)


def _share_out(given: list[tuple[str, Any]], names: list[str]) -> dict[str, list[tuple[str, Any]]]:
    """Return the options of each variant of a list."""
    shares: dict[str, list[tuple[str, Any]]] = {name: [] for name in names}
    for key, value in given:
        owner, dot, option = key.partition(".")
        if dot and owner in shares:
            shares[owner].append((option, value))
            continue
        # the short name is for where no variant has an option of that name itself
        having = next(filter(None, (_having(shares, k) for k in (key, SHORT.get(key)))), [])
        if not having:
            valid = dict.fromkeys(option for name in shares for option in options_of(VARIANTS[name].Config))
            raise UserError(f"none of {', '.join(shares)} has an option {key!r}; their options are {', '.join(valid)}")
        for name in having:
            shares[name].append((key, value))
    return shares


def _having(names: Iterable[str], option: str | None) -> list[str]:
    return [name for name in names if option in options_of(VARIANTS[name].Config)]
