"""The wiring of any variant around sub-layers of one's own.

A sub-layer is any module: what it is fed, (..., C), is its first argument, and what it returns, or the first of what it
returns, is its output, (..., C). A wiring that has to see into a sub-layer says so, and is content with
:class:`.MultiheadAttention` and :class:`.FeedForward` in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.attention import MultiheadAttention
from fairseq_residuals.wirings.blocks.feed_forward import FeedForward
from fairseq_residuals.wirings.build import Options, Task, check_probabilities, parse_wiring, stack_shape, start_omegas
from fairseq_residuals.wirings.core.attention import Edit, run_attention
from fairseq_residuals.wirings.core.base import Connection, Kind, Stream, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.gpas import ActivationScaling
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.layer import CONNECTIONS, Context, Layer, keys_and_values
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.value_residual import ValueResidual

logger = logging.getLogger(__name__)

SUBLAYERS: dict[Task, tuple[Kind, ...]] = {
    "encoder": ("self", "ffn"),
    "decoder": ("self", "cross", "ffn"),
    "language_model": ("self", "ffn"),
}
NAMES: dict[Kind, str] = {"self": "attention", "cross": "cross-attention", "ffn": "the FFN"}
SUBLAYER_NAMES: dict[Kind, str] = {"self": "self_attn", "cross": "encoder_attn", "ffn": "ffn"}
"""In a layer: those of fairseq for attention, by which variants draw weights."""
PLACES = {
    "edit_query": "the queries after their projection",
    "edit_key": "the keys after their projection",
    "edit_value": "the values after their projection",
    "edit_scores": "the scores before the softmax",
    "edit_heads": "the outputs of the heads before their projection",
}
Arguments = Mapping[str, Any]


def wrap(
    variant: str,
    layers: Sequence[Sequence[nn.Module]],
    *,
    dim: int,
    heads: int,
    ffn_dim: int,
    task: Task = "encoder",
    options: Options | None = None,
    other_depth: int | None = None,
    dropout: float = 0.0,
    layerdrop: float = 0.0,
) -> WrappedStack:
    """Wire sub-layers of one's own.

    Their weights stay as they are, but for layers of the library's own modules alone, which are initialised as the
    paper has it. The wiring has the device and the precision of their first parameter, and is in evaluation where all
    of them are.

    Args:
        variant: as for :func:`.build_stack`.
        layers: from the bottom, each an attention and an FFN, of a decoder with a cross-attention in between; where the
            wiring takes the place of the FFN (``depthwise_lstm``), the FFN is left unused.
        dim: channels of the stream.
        heads, ffn_dim: of the sub-layers, for wirings that have a parameter for each of these.
        task: as for :func:`.build_stack`, for constants that depend on it.
        options: of the variant.
        other_depth: as for :func:`.build_stack`.
        dropout: after each sub-layer; 0 for sub-layers with dropout of their own.
        layerdrop: probability of skipping a layer in training.

    Raises:
        UserError: the variant must see what a sub-layer does not show, or an argument is not valid.
    """
    check_probabilities(dropout=dropout, layerdrop=layerdrop)
    shape = stack_shape(task, len(layers), dim, heads, ffn_dim, other_depth)
    kinds = SUBLAYERS[task]
    for i, layer in enumerate(layers):
        if len(layer) != len(kinds):
            raise UserError(
                f"a layer with task={task} has {len(kinds)} sub-layers, {', '.join(NAMES[kind] for kind in kinds)};"
                f" layer {i} has {len(layer)}"
            )
        for kind, module in zip(kinds, layer, strict=True):
            if not isinstance(module, nn.Module):
                raise UserError(f"{NAMES[kind]} of layer {i} must be a torch.nn.Module, not {module!r:.80}")
    wiring = parse_wiring(variant, options)
    built = [SubModules(dict(zip(kinds, layer, strict=True)), dropout) for layer in layers]
    ours = all(isinstance(module, MultiheadAttention | FeedForward) for layer in layers for module in layer)
    for part in wiring.parts:
        if not ours and (drawing := part.given & {"init", "init_scale"}):
            raise UserError(f"option {min(drawing)} draws the weights of sub-layers, and yours have theirs already")
    stack = WrappedStack(built, wiring.build(shape), shape, layerdrop=layerdrop)
    stack.rehearse()
    if ours:
        initialise([(stack, stack)])
    _follow(stack, [module for layer in layers for module in layer])
    for part in wiring.parts:
        if not ours and part.variant.init_weights is not Variant.init_weights:
            logger.warning(
                "wiring %s also scales the weights of sub-layers at initialisation, which wrap leaves as they are;"
                " `fairseq-residuals show %s` says how",
                part.name,
                part.name,
            )
    start_omegas(stack)
    return stack


def _follow(stack: WrappedStack, modules: list[nn.Module]) -> None:
    """Give the wiring the device, the precision and the mode of the sub-layers that it wires."""
    numbers = [p for module in modules for p in module.parameters() if p.is_floating_point()]
    own = {part for module in modules for part in module.modules()}
    if numbers:
        for part in stack.modules():
            if isinstance(part, Connection | Variant | ValueResidual | ActivationScaling) and part not in own:
                part.to(numbers[0].device, numbers[0].dtype)
    if not any(module.training for module in own):
        stack.eval()


@dataclass(frozen=True)
class SubModules:
    """What a layer wraps."""

    modules: dict[Kind, nn.Module]
    dropout: float


@dataclass(frozen=True)
class WrappedContext(Context):
    """What the sub-layers of a pass are given beside what the wiring feeds them."""

    arguments: Mapping[Kind, Arguments] = field(default_factory=dict)
    """By kind of sub-layer, keyword arguments."""
    rehearsal: bool = False
    """Whether no sub-layer runs: each returns zeros."""


class WrappedLayer(Layer):
    """Connections around modules of any kind."""

    def __init__(self, built: SubModules, variant: Variant, layer: int) -> None:
        """Connect the sub-layers; see :class:`.ResidualLayer`."""
        super().__init__()
        sites = self.sites(variant, layer, built.modules)
        self.encoder_attn = None
        for kind, site in sites.items():
            setattr(self, SUBLAYER_NAMES[kind], built.modules[kind])
            connection = self.connect(variant, site)
            connection.attention = WholeAttention(variant.name, kind)
            self.add_module(CONNECTIONS[kind], connection)
        self.add_options(variant, layer)
        self.dropout_module = nn.Dropout(built.dropout)
        self.variant_name = variant.name

    def run_sublayers(self, s: Stream, context: WrappedContext) -> tuple[Stream, None]:
        """Return the stream after this layer; weights of attention stay with the sub-layer."""
        for kind in self.kinds:
            s, _ = self.run(kind, s, partial(self._sublayer, kind, context))
        return s, None

    def _sublayer(self, kind: Kind, context: WrappedContext, h: Tensor, s: Stream) -> tuple[Tensor, None, Stream]:
        module, arguments = self.get_submodule(SUBLAYER_NAMES[kind]), context.arguments.get(kind, {})
        if kind == "ffn":
            y = self._feed_forward(module, h, arguments, context.rehearsal)
        else:
            edits, kept = {}, {}  # type: ignore[var-annotated]
            if kind == "self" and self.value_residual is not None:
                edits = self.value_residual.edits(s, kept)
            own = {"arguments": arguments, "rehearsal": context.rehearsal}
            key, value = keys_and_values(h, s) if kind == "self" else (h, h)
            y, _, s = self.connection(kind).attend(module, h, key, value, s, **own, **edits)
            s = s | kept
        return self.dropout_module(self.connection(kind).outer(y)), None, s

    def _feed_forward(self, module: nn.Module, h: Tensor, arguments: Arguments, rehearsal: bool) -> Tensor:
        inner = self.connection("ffn").inner
        if isinstance(module, FeedForward):
            return torch.zeros_like(h) if rehearsal else module(h, inner=inner, **arguments)
        # a wiring that does nothing there returns what it is given, and not a copy
        inside = h.new_zeros(1, 1, self.connection("ffn").site.ffn_dim) if rehearsal else None
        if inside is not None and inner(inside) is not inside:
            raise _unseen(self.variant_name, "ffn", "the activations before the second matrix", FeedForward)
        return _output(module, h, arguments, rehearsal)


@dataclass(frozen=True)
class WholeAttention:
    """An attention backend: calls the module as a whole, unless it is the library's own.

    Attributes:
        variant: the name of the wiring.
        kind: of the sub-layer.
    """

    variant: str
    kind: Kind

    def __call__(
        self,
        attn: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        arguments: Arguments,
        rehearsal: bool,
        **edits: Edit,
    ) -> tuple[Tensor, None]:
        """Run ``attn`` on ``query``, with the ``arguments`` that it is given beside.

        Raises:
            UserError: the wiring edits what is inside, and ``attn`` does not show it.
        """
        if isinstance(attn, MultiheadAttention):
            if rehearsal:
                return torch.zeros_like(query), None
            given: dict[str, Any] = {"key": key, "value": value} | dict(arguments) | edits
            y, _ = run_attention(attn, query, **given)
            return y, None
        if key is not query or value is not query:
            raise _unseen(self.variant, self.kind, "what keys and values are made of", MultiheadAttention)
        if edits:
            raise _unseen(self.variant, self.kind, " and ".join(PLACES[edit] for edit in edits), MultiheadAttention)
        return _output(attn, query, arguments, rehearsal), None


class WrappedStack(Stack):
    """The stack that :func:`wrap` returns."""

    layer_class = WrappedLayer

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        attention: Arguments | None = None,
        cross_attention: Arguments | None = None,
        ffn: Arguments | None = None,
    ) -> Tensor:
        """Run all layers.

        Args:
            x: (..., ..., C), in the order of positions and sentences that the sub-layers expect.
            attention, cross_attention, ffn: keyword arguments for each sub-layer of that kind, such as masks.

        Returns:
            As ``x``.

        Raises:
            UserError: ``x``, or what a sub-layer returns, has another shape.
        """
        if x.dim() != 3 or x.size(-1) != self.shape.dim:
            raise UserError(f"x must have three dimensions, the last of {self.shape.dim}, not {tuple(x.shape)}")
        arguments: dict[Kind, Arguments] = {"self": attention or {}, "cross": cross_attention or {}, "ffn": ffn or {}}
        return super().forward(x, WrappedContext(arguments=arguments))[0]

    @torch.no_grad()
    def rehearse(self) -> None:
        """Run the wiring without its sub-layers.

        Raises:
            UserError: it has to see into one that does not let it.
        """
        with torch.random.fork_rng():
            super().forward(torch.zeros(1, 1, self.shape.dim), WrappedContext(rehearsal=True))


def _output(module: nn.Module, h: Tensor, arguments: Arguments, rehearsal: bool) -> Tensor:
    if rehearsal:
        return torch.zeros_like(h)
    y = module(h, **arguments)
    y = y[0] if isinstance(y, tuple) else y
    if not isinstance(y, Tensor) or y.shape != h.shape:
        returned = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise UserError(
            f"a sub-layer must return the shape that it is fed, {tuple(h.shape)}, or a tuple that begins with it;"
            f" {type(module).__name__} returned {returned}"
        )
    return y


def _unseen(variant: str, kind: Kind, place: str, instead: type[nn.Module]) -> UserError:
    return UserError(
        f"wiring {variant!r} has to see {place} of {NAMES[kind]}, which a module of your own does not show; give"
        f" fairseq_residuals.{instead.__name__} there, or choose another wiring"
    )
