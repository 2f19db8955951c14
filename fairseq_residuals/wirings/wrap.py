"""The wiring of any variant around sub-layers of one's own.

A sub-layer is any module: what it is fed, (..., C), is its first argument, and what it returns, or the first of what it
returns, is its output, (..., C). A wiring that has to see into a sub-layer says so, and is content with
:class:`.MultiheadAttention` and :class:`.FeedForward` in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.attention import MultiheadAttention
from fairseq_residuals.wirings.blocks.feed_forward import FeedForward
from fairseq_residuals.wirings.blocks.models import evaluating
from fairseq_residuals.wirings.blocks.transformer import LayerSettings, SubLayers
from fairseq_residuals.wirings.build import (
    Named,
    Options,
    Task,
    check_norms,
    check_probabilities,
    parse_wiring,
    stack_shape,
    start_omegas,
)
from fairseq_residuals.wirings.core.attention import Edit, run_attention
from fairseq_residuals.wirings.core.base import Connection, Kind, Stream, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.gpas import ActivationScaling
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.layer import CONNECTIONS, Context, Layer, keys_and_values
from fairseq_residuals.wirings.core.norms import is_norm, looks_like_norm
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.value_residual import ValueResidual
from fairseq_residuals.wirings.core.wiring import Wiring

logger = logging.getLogger(__name__)

SUBLAYERS: dict[Task, tuple[Kind, ...]] = {
    "encoder": ("self", "ffn"),
    "decoder": ("self", "cross", "ffn"),
    "language_model": ("self", "ffn"),
}
NAMES: dict[Kind, str] = {"self": "attention", "cross": "cross-attention", "ffn": "the FFN"}
SUBLAYER_NAMES: dict[Kind, str] = {"self": "self_attn", "cross": "encoder_attn", "ffn": "ffn"}
"""Names of sub-layers in a layer: those of fairseq for attention, by which variants draw weights."""
PLACES = {
    "edit_query": "the queries after their projection",
    "edit_key": "the keys after their projection",
    "edit_value": "the values after their projection",
    "edit_scores": "the scores before the softmax",
    "edit_heads": "the outputs of the heads before their projection",
}
RESIDUAL = 0.5
"""Correlation of a sub-layer's output with its input from which it may have a residual connection of its own."""
Arguments = Mapping[str, Any]


def wrap(
    variant: Named,
    layers: Sequence[Sequence[nn.Module] | nn.Module],
    *,
    dim: int,
    heads: int | None = None,
    ffn_dim: int | None = None,
    task: Task = "encoder",
    kinds: Sequence[Kind] | None = None,
    norms: Literal["new", "move"] = "new",
    options: Options | None = None,
    other_depth: int | None = None,
    dropout: float | None = None,
    layerdrop: float = 0.0,
) -> WrappedStack:
    """Wire sub-layers of one's own.

    Their weights stay as they are, but for layers of the library's own modules alone, which are initialised as the
    paper has it. The wiring has the device and the precision of their first parameter, and is in evaluation where all
    of them are.

    Args:
        variant: as for :func:`.build_stack`.
        layers: from the bottom, each an attention and an FFN, of a decoder with a cross-attention in between; or
            ``nn.TransformerEncoderLayer`` or ``nn.TransformerDecoderLayer``, which are taken apart. Where the wiring
            takes the place of the FFN (``depthwise_lstm``), it may be missing.
        dim: channels of the stream.
        heads, ffn_dim: of the sub-layers, for wirings that have a parameter for each of these; by default what
            PyTorch's or the library's modules say.
        task: as for :func:`.build_stack`, for constants that depend on it.
        kinds: of the sub-layers of each layer, where they are not those of ``task``, such as ("ffn", "self", "ffn");
            "self" is whatever mixes positions.
        norms: ``new`` ones, as the wiring has them; or ``move`` those of PyTorch's layers where the wiring has one
            before, or after, the same sub-layer.
        options: of the variant.
        other_depth: as for :func:`.build_stack`.
        dropout: after each sub-layer; 0 for sub-layers with dropout of their own, and by default that of PyTorch's
            layers.
        layerdrop: probability of skipping a layer in training.

    Raises:
        UserError: the variant must see what an FFN does not show, or an argument is not valid; what it must see of
            attention is told by the first pass.
    """
    taken = [take_apart(layer) for layer in layers]
    check_probabilities(dropout=dropout or 0.0, layerdrop=layerdrop)
    if norms not in ("new", "move"):
        raise UserError(f"norms={norms!r} is unknown; valid are new, move")
    if norms == "move" and not all(layer.norms for layer in taken):
        raise UserError('norms="move" takes those of PyTorch\'s own layers; give nn.TransformerEncoderLayer, or new')
    modules = [module for layer in taken for module in layer.modules]
    sizes = {"heads": heads, "ffn_dim": ffn_dim}
    known = {name: _size(name, modules) if size is None else size for name, size in sizes.items()}
    heads, ffn_dim = (1 if known["heads"] is None else known["heads"]), known["ffn_dim"]
    shape = stack_shape(task, len(layers), dim, heads, 4 * dim if ffn_dim is None else ffn_dim, other_depth)
    keys_dim = next((m.k_proj.out_features for m in modules if isinstance(m, MultiheadAttention)), 0)
    shape = replace(shape, keys_dim=keys_dim)
    wiring = parse_wiring(variant, options)
    kinds = _kinds(task, kinds, taken, wiring)
    ours = all(isinstance(module, MultiheadAttention | FeedForward) for module in modules)
    for part in wiring.parts:
        if not ours and (drawing := part.given & {"init", "init_scale"}):
            raise UserError(f"option {min(drawing)} draws the weights of sub-layers, and yours have theirs already")
        if part.config.value_residual != "none" and kinds.count("self") > 1:
            raise UserError("option value_residual is of layers with one attention")
    built = [
        SubModules(list(zip(kinds, layer.modules, strict=False)), layer.dropout if dropout is None else dropout, i)
        for i, layer in enumerate(taken)
    ]
    stack = WrappedStack(built, wiring.build(shape), shape, layerdrop=layerdrop)
    for name in (name for name, size in known.items() if size is None):
        _check_unused(stack, name, wiring.name)
    if ours:
        initialise([(stack, stack)])
    if norms == "move":
        for i, layer in enumerate(taken):
            stack[i].move(layer.norms)  # type: ignore[operator]
    owners: dict[nn.Module, list[nn.Module]] = {}
    for i in range(len(stack)):
        owners.setdefault(stack.wiring.at(i)[0], []).extend(stack[i].connections())
    moved = [norm for layer in taken for norm in layer.norms] if norms == "move" else []
    check_norms(wiring, [[variant, *connections] for variant, connections in owners.items()], moved)
    _follow(stack, modules)
    if not ours:
        _warn(stack, wiring)
    start_omegas(stack)
    return stack


@dataclass(frozen=True)
class TakenApart:
    """The parts of a layer."""

    modules: Sequence[nn.Module]
    norms: Sequence[nn.Module] = ()
    """Norms of the sub-layers, in the same order, where the layer is PyTorch's."""
    dropout: float = 0.0
    """Dropout after each sub-layer, where the layer is PyTorch's."""


def take_apart(layer: Sequence[nn.Module] | nn.Module) -> TakenApart:
    """Return the sub-layers of one of PyTorch's layers, or those that are given."""
    if type(layer) not in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):  # a subclass may run otherwise
        if isinstance(layer, nn.Module) and not isinstance(layer, nn.ModuleList | nn.Sequential):
            raise UserError(
                f"a layer is a sequence of its sub-layers, nn.TransformerEncoderLayer or nn.TransformerDecoderLayer,"
                f" not {type(layer).__name__}"
            )
        return TakenApart(list(layer))  # type: ignore[arg-type]
    assert isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    ffn = FeedForward(1, 1)
    ffn.fc1, ffn.fc2 = layer.linear1, layer.linear2
    ffn.activation_fn, ffn.activation_dropout_module = layer.activation, layer.dropout
    ffn.training = layer.training
    attentions: list[nn.Module] = [layer.self_attn]
    if isinstance(layer, nn.TransformerDecoderLayer):
        attentions.append(layer.multihead_attn)
    names = ("norm1", "norm2", "norm3")[: len(attentions) + 1]
    return TakenApart([*attentions, ffn], [layer.get_submodule(name) for name in names], layer.dropout1.p)


def _kinds(task: Task, kinds: Sequence[Kind] | None, taken: Sequence[TakenApart], wiring: Wiring) -> tuple[Kind, ...]:
    """Return the kind of each sub-layer of a layer.

    Raises:
        UserError: a kind is unknown, or a layer has other sub-layers.
    """
    chosen = tuple(SUBLAYERS[task] if kinds is None else kinds)
    if unknown := [kind for kind in chosen if kind not in NAMES]:
        raise UserError(f"kinds has {unknown[0]!r}; valid are {', '.join(NAMES)}")
    without = tuple(kind for kind in chosen if kind != "ffn" or any(part.variant.has_ffn for part in wiring.parts))
    if not without:
        raise UserError("a layer must have a sub-layer to wire, beside an FFN whose place the wiring takes")
    for i, layer in enumerate(taken):
        if len(layer.modules) not in (len(chosen), len(without)):
            raise UserError(
                f"a layer with task={task} has {len(chosen)} sub-layers, {', '.join(NAMES[kind] for kind in chosen)};"
                f" layer {i} has {len(layer.modules)}; kinds=(...) says what others are"
            )
        for kind, module in zip(chosen, layer.modules, strict=False):
            if not isinstance(module, nn.Module):
                raise UserError(f"{NAMES[kind]} of layer {i} must be a torch.nn.Module, not {module!r:.80}")
    return chosen


def _size(name: str, modules: list[nn.Module]) -> int | None:
    """Return how many heads, or inner channels, the modules say that they have."""
    if name == "heads":
        own = [m.num_heads for m in modules if isinstance(m, MultiheadAttention | nn.MultiheadAttention)]
    else:
        own = [m.fc2.in_features for m in modules if isinstance(m, FeedForward)]
    return own[0] if own else None


def _check_unused(stack: WrappedStack, name: str, variant: str) -> None:
    """Refuse to guess a size on which parameters of the wiring depend."""
    for owner, layers in stack.segments():
        with torch.random.fork_rng():
            other = type(owner)(owner.config, replace(owner.shape, **{name: 2 * getattr(owner.shape, name)}))
            for connection in (own for layer in layers for own in layer.connections()):  # type: ignore[operator]
                larger = other.connect(replace(connection.site, **{name: 2 * getattr(connection.site, name)}))
                if [p.shape for p in larger.parameters()] != [p.shape for p in connection.parameters()]:
                    raise UserError(f"{variant} has parameters for each of the {name} of your sub-layers: give {name}=")


def _warn(stack: WrappedStack, wiring: Wiring) -> None:
    """Say what a user may not expect: weights that stay, and residual connections or norms within sub-layers."""
    for part, (variant, layers) in zip(wiring.parts, stack.segments(), strict=True):
        if _scales(variant, len(layers)):
            logger.warning(
                "wiring %s also scales the weights of sub-layers at initialisation, which wrap leaves as they are;"
                " `fairseq-residuals show %s` says how",
                part.name,
                part.name,
            )
    first = stack[0]
    for kind, name, connects in first.slots:  # type: ignore[union-attr]
        module = first.get_submodule(name)
        alike, norm = tried(module, stack.shape.dim)
        if alike > RESIDUAL:
            logger.warning(
                "%s of layer 0, %s, returns what it is fed and something more (they correlate by %.2f): if it adds a"
                " residual connection of its own, wrap what is inside, for the wiring adds one too",
                NAMES[kind],
                type(module).__name__,
                alike,
            )
        if norm and any(is_norm(part) for part in first.get_submodule(connects).modules()):
            logger.warning(
                "%s of layer 0, %s, normalises what it is fed by a norm of its own, %s, and the wiring has a norm too:"
                " nn.Identity() in its place gives the paper's wiring",
                NAMES[kind],
                type(module).__name__,
                norm,
            )


@torch.no_grad()
def _scales(variant: Variant, depth: int) -> bool:
    """Return whether a wiring would scale, or draw, weights of sub-layers with the library's names; on meta, False."""
    with torch.random.fork_rng():
        probe = nn.ModuleList(SubLayers(LayerSettings(dim=4, heads=1, ffn_dim=4), memory_dim=4) for _ in range(depth))
        before = [p.clone() for p in probe.parameters()]
        variant.init_weights(probe, None)
    return any(not p.is_meta and not torch.equal(p, q) for p, q in zip(before, probe.parameters(), strict=True))


def tried(module: nn.Module, dim: int) -> tuple[float, str]:
    """Return how a sub-layer's output correlates with a random input, and the name of a norm that is fed that input.

    They are 0 and empty where it does not run by itself.
    """
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    if isinstance(module, MultiheadAttention | FeedForward | nn.MultiheadAttention) or like.is_meta:
        return 0.0, ""
    h = torch.randn(8, 8, dim, generator=torch.Generator().manual_seed(1)).to(like.device, like.dtype)
    fed: list[str] = []

    def note(name: str, norm: nn.Module, args: tuple[Any, ...]) -> None:
        fed.extend(name for x in args if x is h)

    with ExitStack() as hooks, torch.random.fork_rng():
        for name, part in module.named_modules():
            if name and looks_like_norm(part, name):
                hooks.callback(part.register_forward_pre_hook(partial(note, name)).remove)
        try:
            with evaluating(module):  # running statistics are to stay as they are
                y = module(h)
        except Exception as error:
            # it needs more than its input, which the first batch will bring
            logger.debug("%s was not tried: %s", type(module).__name__, error)
            return 0.0, ""
    y = y[0] if isinstance(y, tuple) else y
    if not isinstance(y, Tensor) or y.shape != h.shape:
        return 0.0, ""
    return float(torch.corrcoef(torch.stack([h.flatten(), y.flatten()]).float())[0, 1]), next(iter(fed), "")


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
    """Modules that a layer wraps: its sub-layers with their kinds, and which of the stack's layers it is."""

    modules: list[tuple[Kind, nn.Module]]
    dropout: float
    index: int


@dataclass(frozen=True)
class WrappedContext(Context):
    """Input of the sub-layers of a pass beside what the wiring feeds them."""

    arguments: Mapping[Kind, Sequence[Arguments]] = field(default_factory=dict)
    """Keyword arguments of each layer, by kind of sub-layer."""


class WrappedLayer(Layer):
    """Connections around modules of any kind."""

    slots: list[tuple[Kind, str, str]]
    """Kind and name of each sub-layer in turn, and the name of its connection."""

    def __init__(self, built: SubModules, variant: Variant, layer: int) -> None:
        """Connect the sub-layers; see :class:`.ResidualLayer`."""
        super().__init__()
        wired = [(kind, module) for kind, module in built.modules if variant.has_ffn or kind != "ffn"]
        self.encoder_attn = None
        self.index, self.slots = built.index, []
        for i, (kind, module) in enumerate(wired):
            before = sum(other == kind for other, _ in wired[:i])
            again = str(before + 1) if before else ""
            name, connects = f"{SUBLAYER_NAMES[kind]}{again}", f"{CONNECTIONS[kind]}{again}"
            site = replace(self.sites(variant, layer, [kind])[kind], index=i, n_sub=len(wired))
            connection = self.connect(variant, site)
            connection.attention = partial(_run_whole, variant.name, kind)
            if kind == "ffn":
                # a wiring that does nothing there returns what it is given, and not a copy
                inside = next(connection.parameters(), torch.zeros(())).new_zeros(1, 1, site.ffn_dim)
                self.edits_ffn = connection.inner(inside) is not inside
                if self.edits_ffn and not isinstance(module, FeedForward):
                    raise _unseen(variant.name, "ffn", "the activations before the second matrix", FeedForward)
            self.slots.append((kind, name, connects))
            setattr(self, name, module)
            self.add_module(connects, connection)
        self.kinds = [kind for kind, _, _ in self.slots]
        self.add_options(variant, layer)
        self.dropout_module = nn.Dropout(built.dropout)

    def move(self, norms: Sequence[nn.Module]) -> None:
        """Give the connections norms of somebody else, one each, where they have a norm by that name."""
        for (_, _, connects), norm in zip(self.slots, norms, strict=False):
            connection = self.get_submodule(connects)
            if getattr(connection, "norm", None) is not None:
                connection.norm = norm

    def run_sublayers(self, s: Stream, context: WrappedContext) -> tuple[Stream, None]:
        """Return the stream after this layer; weights of attention stay with the sub-layer."""
        for kind, name, connects in self.slots:
            arguments = context.arguments[kind][self.index] if kind in context.arguments else {}
            sublayer = partial(self._sublayer, kind, name, self.connection(connects), arguments)
            s, _ = self.run(connects, s, sublayer)  # type: ignore[arg-type]
        return s, None

    def connection(self, kind: str) -> Connection:
        """Return the connection of a kind of sub-layer, the first one, or the connection of that name."""
        return getattr(self, CONNECTIONS.get(kind, kind))  # type: ignore[call-overload,no-any-return]

    def connections(self) -> list[Connection]:
        """Return the connections (:meth:`.Layer.connections`), of which a kind may have several."""
        return [self.connection(connects) for _, _, connects in self.slots]

    def _sublayer(
        self, kind: Kind, name: str, connection: Connection, arguments: Arguments, h: Tensor, s: Stream
    ) -> tuple[Tensor, None, Stream]:
        module = self.get_submodule(name)
        if kind == "ffn":
            inner = {"inner": connection.inner} if self.edits_ffn else {}
            y = _output(module, h, {**arguments, **inner})
        else:
            edits, kept = {}, {}  # type: ignore[var-annotated]
            if kind == "self" and self.value_residual is not None:
                edits = self.value_residual.edits(s, kept)
            key, value = keys_and_values(h, s) if kind == "self" else (h, h)
            y, _, s = connection.attend(module, h, key, value, s, arguments=arguments, **edits)
            s = s | kept
        return self.dropout_module(connection.outer(y)), None, s


def _run_whole(
    name: str, kind: Kind, attn: Any, query: Tensor, key: Tensor, value: Tensor, *, arguments: Arguments, **edits: Edit
) -> tuple[Tensor, None]:
    """Run attention, as a whole unless it is the library's own: an attention backend, once two arguments are given.

    Args:
        name: of the wiring.
        kind: of the sub-layer.
        attn: runs on ``query``, with the ``arguments`` that it is given beside.

    Raises:
        UserError: the wiring edits what is inside, and ``attn`` does not show it.
    """
    # by what they have, which an adapter or a tool around them has too
    ours, pytorchs = hasattr(attn, "place_heads"), hasattr(attn, "add_zero_attn") and not edits
    if (ours or pytorchs) and kind == "cross" and "key" not in arguments:
        raise UserError('give the stack cross_attention={"key": memory, "value": memory}')
    if ours:
        given: dict[str, Any] = {"key": key, "value": value} | dict(arguments) | edits
        return run_attention(attn, query, **given)[0], None
    if pytorchs:
        given = {"key": key, "value": value, "need_weights": False} | dict(arguments)
        return attn(query, **given)[0], None
    if key is not query or value is not query:
        raise _unseen(name, kind, "the inputs of keys and values", MultiheadAttention)
    if edits:
        raise _unseen(name, kind, " and ".join(PLACES[edit] for edit in edits), MultiheadAttention)
    return _output(attn, query, arguments), None


class WrappedStack(Stack):
    """The stack that :func:`wrap` returns."""

    layer_class = WrappedLayer

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        attention: Arguments | Sequence[Arguments] | None = None,
        cross_attention: Arguments | Sequence[Arguments] | None = None,
        ffn: Arguments | Sequence[Arguments] | None = None,
    ) -> Tensor:
        """Run all layers.

        Args:
            x: (..., ..., C), in the order of positions and sentences that the sub-layers expect.
            attention, cross_attention, ffn: keyword arguments for each sub-layer of that kind, such as masks; or a
                list of them, one for each layer.

        Returns:
            As ``x``.

        Raises:
            UserError: ``x``, or what a sub-layer returns, has another shape.
        """
        if x.dim() != 3 or x.size(-1) != self.shape.dim:
            raise UserError(f"x must have three dimensions, the last of {self.shape.dim}, not {tuple(x.shape)}")
        given: dict[Kind, Any] = {"self": attention, "cross": cross_attention, "ffn": ffn}
        arguments = {kind: self._of_layers(kind, each) for kind, each in given.items() if each is not None}
        return super().forward(x, WrappedContext(arguments=arguments))[0]

    def _of_layers(self, kind: Kind, given: Arguments | Sequence[Arguments]) -> Sequence[Arguments]:
        if isinstance(given, Mapping):
            return [given] * len(self)
        if len(given) != len(self):
            raise UserError(f"arguments of {NAMES[kind]} are for {len(given)} layers, and the stack has {len(self)}")
        return given


def _output(module: nn.Module, h: Tensor, arguments: Arguments) -> Tensor:
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
