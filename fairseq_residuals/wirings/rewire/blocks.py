"""Places of the layers in a model of somebody else, and what each of them consists of.

A description is a guess until a model that is wired so was seen to compute what it computed before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal, get_args

from torch import nn

from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class SubLayerNames:
    """One sub-layer; names are those of modules within the layer, such as ``attention.output.dropout``."""

    kind: Kind
    enter: str
    """Module whose first argument, ``hidden_states``, or else first tensor is what the sub-layer is fed.

    It is empty where that is what the layer is fed, as with ``beside``.
    """
    leave: str = ""
    """Module whose output, or the first of it, is added to the stream; by default that of ``enter``."""
    norm: str = ""
    """Module that normalises what the sub-layer is fed, or the sum; none where it is empty."""
    dropout: str = ""
    """Attribute of the layer, a module or a probability, that acts between ``leave`` and the sum, and so ``beside``."""
    query: str = ""
    key: str = ""
    value: str = ""
    inner: str = ""
    """Last linear map: what it is fed are the heads' outputs, or the activations of an FFN. This and the three above
    are for wirings that have to see into a sub-layer."""
    function: Literal["", "rms_norm", "layer_norm"] = ""
    """Function of torch.nn.functional that the layer's code calls in place of ``norm``, without gain and bias."""
    scale: str = ""
    """Attribute of the layer, a number by which what leaves is multiplied."""
    beside: str = ""
    """Module whose output is added with that of ``leave``, before which it does not run, as parts of one sub-layer.

    An FFN beside attention for instance.
    """
    norm_beside: str = ""
    """Norm of that FFN, where it has its own; ``norm`` is attention's. Both stay where they are."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"kind={self.kind!r} of a sub-layer is unknown; valid are {', '.join(get_args(Kind))}")

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules that a layer has to have, some of them empty."""
        return self.enter, self.leave, self.beside, *self.norms

    @property
    def norms(self) -> tuple[str, ...]:
        """Its norms: none, one, or one for each of two branches."""
        return tuple(filter(None, (self.norm, self.norm_beside)))

    @property
    def movable_norm(self) -> str:
        """Norm that a wiring may call in places of its own; empty where each branch has one."""
        return "" if self.norm_beside else self.norm


@dataclass(frozen=True)
class Blocks:
    """The layers of one encoder or decoder."""

    layers: str
    """Module that holds the layers, such as ``model.layers``; other names are those of modules within each layer."""
    sublayers: tuple[SubLayerNames, ...]
    norm: str = ""
    """Module that normalises the output of the last layer; none where it is empty."""
    post_norm: bool = False
    """Whether the norms of the sub-layers follow the sum, x = norm(x + F(x)); else x = x + F(norm(x))."""
    stack: Literal["encoder", "decoder"] = "decoder"
    heads: int = 0
    """Heads of attention; 0: as an attention module, or the model's config, has it."""
    dim: int = 0
    """Channels of the stream; 0: as many as the first layer is given."""
    others: tuple[tuple[SubLayerNames, ...], ...] = ()
    """Sub-layers of those layers that are of another structure, such as the ones with linear attention."""
    idle: tuple[str, ...] = ()
    """Modules of layers, of no sub-layer, that did not run when the model was rewired: what they add would be lost."""

    @property
    def crosses(self) -> bool:
        """Whether the layers have cross-attention."""
        return any(sub.kind == "cross" for sub in self.sublayers)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Blocks:
        """Return what ``dataclasses.asdict`` made a dictionary of.

        Raises:
            UserError: another version made it.
        """
        try:
            first, *others = (
                tuple(SubLayerNames(**sub) for sub in sublayers)
                for sublayers in (settings["sublayers"], *settings["others"])
            )
            idle = tuple(settings.get("idle", ()))
            return cls(**settings | {"sublayers": first, "others": tuple(others), "idle": idle})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"the config describes the layers as another version did ({error}): rewire the model anew, give it the"
                " weights by load_state_dict, and save it"
            ) from None

    def of_layer(self, layer: nn.Module) -> tuple[SubLayerNames, ...]:
        """Return the sub-layers of a layer, without the projections that it does not have.

        Raises:
            UserError: it has not the modules of any structure.
        """
        modules = dict(layer.named_modules())
        for sublayers in (self.sublayers, *self.others):
            if not _missing(sublayers, layer, modules):
                return tuple(_shown(sub, modules) for sub in sublayers)
        missing = _missing(self.sublayers, layer, modules)
        raise UserError(f"a layer of {self.layers} has no {' and no '.join(missing)}")


UNCALLED = nn.ModuleList, nn.ModuleDict
"""What holds modules, and is never called as a whole."""
LISTS = *UNCALLED, nn.Sequential


def one_stack_or_pair(model: nn.Module, found: list[Blocks], places: Collection[str]) -> list[Blocks]:
    """Return the layers that were found; layers of their classes run in ``places``.

    Raises:
        UserError: there are several that are no encoder and decoder, or one of these alone.
    """
    if len(found) == 1 and "decoder_input_ids" in signature(model.forward).parameters:
        raise UserError(
            f"{type(model).__name__} has an encoder and a decoder, and of these {found[0].layers} alone are seen to"
            " compute x + F(norm(x)), or norm(x + F(x)): describe both by blocks=, or rewire the one that you mean"
        )
    if len(places) > len(found) or (len(found) > 1 and [blocks.crosses for blocks in found] != [False, True]):
        raise UserError(
            f"{type(model).__name__} has layers in several places, {', '.join(places)}: rewire the module that holds"
            " those you mean"
        )
    return found


def unknown_layers(model: nn.Module) -> UserError:
    """Return what to say where no layers are seen to add up what sub-layers return."""
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, LISTS) and any(next(part.children(), None) for part in module.children())
    }
    # layers are mostly of one class
    path = max(lists, key=lambda path: (len({*map(type, lists[path].children())}) == 1, len(lists[path])), default="")
    layer = next(lists[path].children()) if lists else nn.Module()
    if isinstance(layer, UNCALLED):
        return UserError(
            f"{type(model).__name__} runs the sub-layers in {path} itself, and there is no module for a layer: put"
            f" wrap(variant, {path}, ...) into the place of its loop"
        )
    parts = [name for name, _ in layer.named_children()]
    there = f": {path} has layers of {', '.join(parts)}" if parts else ""
    return UserError(
        f"no layers of {type(model).__name__} are seen to compute x + F(norm(x)), or norm(x + F(x)){there}; describe"
        f" them by blocks=Blocks(layers={path or '...'!r}, sublayers=(SubLayerNames(...), ...))"
    )


def _missing(sublayers: Sequence[SubLayerNames], layer: nn.Module, modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of modules and attributes that a layer would need, and does not have."""
    wanted = {name for sub in sublayers for name in sub.needs if name not in modules}
    attributes = {name for sub in sublayers for name in (sub.scale, sub.dropout) if not hasattr(layer, name)}
    return sorted((wanted | attributes) - {""})


def _shown(sub: SubLayerNames, modules: Mapping[str, nn.Module]) -> SubLayerNames:
    """Leave out the projections that a layer does not have, such as one of three, or that are no linear maps."""

    def shown(name: str) -> str:
        module = modules.get(name)
        return name if hasattr(module, "in_features") or hasattr(module, "weight") else ""

    query, key, value, inner = map(shown, (sub.query, sub.key, sub.value, sub.inner))
    return replace(sub, query=query, key=key, value=value, inner=inner)
