"""The abstraction of a wiring.

fairseq owns tokens, masks and time; the stack owns depth; a variant owns only how a sub-layer reads from and writes to
the stream.

    stream = variant.open(x)                          x: embeddings after dropout
    for every layer (once unless variant.evaluate says otherwise), for every sub-layer F of it:
        h, stream = connection.read(stream)           what F is fed
        y = dropout(connection.outer(F(h)))
        stream = connection.write(stream, y)
      stream = variant.after_layer(i, stream)
    output = variant.close(stream)

Time-major shapes throughout, as in fairseq: T positions, B sequences, C channels, F inner channels of the FFN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fairseq_residuals.wirings.core.attention import AttentionBackend, run_attention
from fairseq_residuals.wirings.core.common_options import STARTS_BY_DEPTH, CommonOptions
from fairseq_residuals.wirings.core.config import show_value
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale, layer_scale
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import build_norm
from fairseq_residuals.wirings.core.value_residual import value_equations

Stream = dict[str, Tensor]
"""Tensors that travel along depth. "x" (T, B, C) is always there; any other key is documented by its variant.
Streams are updated functionally (``s | {"x": ...}``), never in place: activation checkpointing relies on it."""

Kind = Literal["self", "cross", "ffn"]
Summation = Literal["none", "pre", "post", "mixed"]
"""``pre``: x' = x + branch; ``post``: x' = LN(x + branch); ``mixed``: both, or others too; ``none``: no such sum."""
Stock = Literal["", "post_ln", "pre_ln"]


@dataclass(frozen=True)
class StackShape:
    """The stack that a variant wires; whatever depends on depth or width is computed from this."""

    stack: Literal["encoder", "decoder"]
    depth: int
    """Layers in this stack."""
    dim: int
    ffn_dim: int
    heads: int
    enc_depth: int
    """Layers of the encoder; 0 where there is none (a language model)."""
    dec_depth: int
    cross: bool
    """Whether the stack is part of an encoder-decoder pair (a language model: False)."""
    norm_type: str = field(default="layer", kw_only=True)
    """Kind of the norms that :meth:`new_norm` makes."""
    norm_eps: float = field(default=0.0, kw_only=True)
    """Number that norms add to a mean square; 0: that of their kind, or of the wiring (:meth:`eps`)."""
    heads_dim: int = field(default=0, kw_only=True)
    """Channels of all heads together; 0: as many as the stream has."""
    keys_dim: int = field(default=0, kw_only=True)
    """Channels of all heads of keys together; 0: as many as of those of queries."""

    def require_layer(self, option: str, value: int, *, lowest: int = 0) -> int:
        """Return the number of a layer that an option says, counted from ``lowest``.

        Raises:
            UserError: the stack has no such layer.
        """
        last = self.depth - 1 + lowest
        if value > last:
            raise UserError(f"option {option}={value}: the layers of this {self.stack} are {lowest} to {last}")
        return value

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return (self.heads_dim or self.dim) // self.heads

    def eps(self, usual: float) -> float:
        """Return the eps of a norm that has ``usual`` unless the option ``norm_eps`` says otherwise."""
        return self.norm_eps or usual

    def new_norm(self, width: int = 0, *, eps: float = 0.0, bias: bool = True, gain: float = 1.0) -> nn.Module:
        """Return a norm of this stack's kind; every norm that a variant has is made by this.

        Args:
            width: channels; 0: those of the stream.
            eps: eps where ``norm_eps`` leaves it to the wiring; 0: the usual one of its kind.
            bias: False: no kind has one.
            gain: factor on where its gain starts.
        """
        norm = build_norm(self.norm_type, width or self.dim, self.eps(eps), bias)
        if gain != 1.0:
            dict(norm.named_parameters())["weight"].data.mul_(gain)
        return norm


@dataclass(frozen=True)
class Site(StackShape):
    """Place of one connection."""

    kind: Kind
    layer: int
    index: int
    """Number of the sub-layer in its layer, from 0."""
    n_sub: int
    """Sub-layers per layer of this stack."""
    config: Any = field(default=None, kw_only=True)
    """Options of the variant that wires this place."""

    @property
    def first(self) -> bool:
        """Whether this is the first sub-layer of its layer."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether this is the last sub-layer of its layer."""
        return self.index == self.n_sub - 1


SubLayer = Callable[[Tensor, Stream], tuple[Tensor, Tensor | None, Stream]]
"""h (T, B, C), stream -> output after dropout (T, B, C), attention weights or None, stream."""


RunLayer = Callable[[Stream], tuple[Stream, Tensor | None]]
"""The stream below a layer -> that above it, attention weights or None."""


class Connection(nn.Module):
    """The wiring around one sub-layer; owns its norms and gains, keeps no state between calls.

    The norm that fairseq has at this place is an attribute ``norm``: checkpoints then carry fairseq's name for it.
    """

    norm_gain: float = 1.0
    """Factor by which :meth:`read` multiplies the output of ``norm``, of a variant that is Pre-LN but for it."""
    summation: Summation = "none"
    """Kind of sum of the stream "x" and the sub-layer's output; of a ``mixed`` variant, that of this connection."""
    edits_scores: ClassVar[bool] = False
    """Whether :meth:`attend` edits scores, which kernels for packed rows never show."""
    multiplier: float = 1.0
    """Factor on each branch outside of its norms (:meth:`scaled`), a constant of the wiring or that of ``depth_mup``; 1
    in wirings such as Post-LN and B2T, which refuse that option."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.attention: AttentionBackend = run_attention

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        """Return what the sub-layer is fed, (T, B, C), and the stream."""
        return s["x"], s

    def write(self, s: Stream, y: Tensor) -> Stream:
        """Return the stream after the sub-layer's output ``y`` (T, B, C), dropout already applied."""
        raise NotImplementedError(f"{type(self).__name__} does not say how a sub-layer's output is written")

    def scaled(self, branch: Tensor) -> Tensor:
        """Return what is added to the stream: ``branch`` (T, B, C) times :attr:`multiplier`."""
        return branch if self.multiplier == 1.0 else self.multiplier * branch

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the factors, numbers or (C,), on the stream and on the sub-layer's output before the two are added.

        They are those of a variant that says what it is but for them (:attr:`Variant.export_as`).
        """
        return 1.0, 1.0

    def inner(self, h: Tensor) -> Tensor:
        """(T, B, F) -> (T, B, F), between the FFN's activation (and its dropout) and its second matrix."""
        return h

    def outer(self, y: Tensor) -> Tensor:
        """(T, B, C) -> (T, B, C), between the sub-layer and its dropout."""
        return y

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        """Run the attention module: output (T, B, C) before dropout, weights or None, stream.

        ``kwargs`` are those of :func:`~fairseq_residuals.wirings.core.attention.run_attention`, edits among them.
        A variant with edits of its own passes on those that it is given. In self-attention, ``key`` and ``value`` are
        what :meth:`read` has put into the stream under these names, to be taken out here, or else the query.
        """
        return *self.attention(attn, query, key, value, **kwargs), s

    def forward(self, s: Stream, sublayer: SubLayer) -> tuple[Stream, Tensor | None]:
        """Read, run the sub-layer, write. A forward hook on this module sees the stream before and after."""
        h, s = self.read(s)
        y, weights, s = sublayer(h, s)
        return self.write(s, y), weights

    def extra_repr(self) -> str:
        return f"{self.site.stack} {self.site.kind}, layer {self.site.layer + 1} of {self.site.depth}"


@dataclass(frozen=True)
class DepthWeights:
    """Hold what a wiring has learned to combine over depth, for analysis.

    Attributes:
        name: name of the weights, as in the equations.
        matrix: (R, K), single precision, on the CPU; nan where a layer would combine what lies above it.
        first_row, first_column: the numbers of the first layers.
        rows, columns: what they are.
    """

    name: str
    matrix: Tensor
    first_row: int
    first_column: int
    rows: str = "into layer"
    columns: str = "output of layer"


class Variant(nn.Module):
    """A published way to wire norms and residuals; one instance per stack, owner of what spans the depth.

    The norm that fairseq has on top of a stack is an attribute ``norm``: checkpoints then carry fairseq's name for it.
    """

    name: ClassVar[str] = ""
    """Name, set by :func:`.register_variant`; empty of what is not registered."""
    title: ClassVar[str]
    paper: ClassVar[str]
    year: ClassVar[int]
    symbols: ClassVar[dict[str, str]] = {}
    """Names in the equations that are not those of their parameters, and the ends of the parameters' names."""
    code: ClassVar[str] = ""
    """The authors' code that the variant was checked against: repository@commit; empty where none was published."""
    verified: ClassVar[str]
    """Words on what was compared, and with what."""
    ships_in: ClassVar[str] = ""
    """The released models that are wired so, with the options that they set; empty where none is known."""
    starts_as: ClassVar[str] = ""
    """The variant whose output this has before training, up to the eps of norms and for norms that divide by a
    statistic; "embedding" where the layers add nothing yet; empty where it is none."""
    extension: ClassVar[str] = ""
    """Choices of this plugin that no paper defines, such as where cross-attention sits; empty where there are none."""
    summation: ClassVar[Summation] = "none"
    """Kind of sum of the stream and sub-layers' outputs: where ``gpas`` and ``depth_mup`` have a meaning."""
    normalize_before: ClassVar[bool] = False
    """Whether this is what fairseq calls ``--encoder-normalize-before`` / ``--decoder-normalize-before``."""
    export_as: ClassVar[Stock] = ""
    """Wiring of fairseq's own that this is but for the :meth:`Connection.gains`, which can be folded into weights so
    that fairseq itself runs the model; empty where it is neither."""
    has_ffn: ClassVar[bool] = True
    """Whether a layer keeps its FFN; False where the wiring takes its place."""
    spares: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that weight decay spares."""
    draws_weights: ClassVar[bool] = False
    """Whether ``init_weights`` draws the layers' weights anew, which leaves no choice to the option ``init``."""

    @dataclass(frozen=True)
    class Config(CommonOptions):
        """The options of every variant; one with options of its own derives its ``Config`` from this one."""

    connection: ClassVar[type[Connection]]

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    @classmethod
    def refusal(cls, *, alone: bool, topmost: bool, depth: int = 2) -> str:
        """Return why the variant has no meaning in such a place; empty where it has.

        Args:
            alone: whether that is an encoder without a decoder, or a decoder without an encoder.
            topmost: whether no layers of another variant are above its own.
            depth: the layers that it wires.
        """
        return ""

    @classmethod
    def contradiction(cls, config: Any) -> str:
        """Return why options cannot be together, or cannot be with this wiring; empty where they can."""
        if cls.draws_weights and config.init != "fairseq":
            return f"option init={config.init}, for it draws its weights by its own rule"
        if config.gpas != "none" and cls.summation == "none":
            return "option gpas, for its stream is not one sum to which each sub-layer adds once"
        if not config.depth_mup:
            return ""
        if cls.summation != "pre":
            return "option depth_mup, for the theory is that of branches which are added to a stream and nothing else"
        if cls.draws_weights or config.init in ("ds_init", "ds_init_code") or config.init_scale == "depth":
            return STARTS_BY_DEPTH
        return ""

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        """Return how a stack with the options ``o`` is wired, as docs/EQUATIONS.md describes.

        An empty line is none. What options of every wiring make of a sum is :meth:`.CommonOptions.adds`.
        """
        raise NotImplementedError(f"{cls.__name__} does not say its equations")

    @classmethod
    def equations_of(cls, config: Any) -> tuple[str, ...]:
        """Return the equations of a stack with these options, with what options of every wiring add to them."""
        lines = [line for line in cls.equations(config) if line]
        if config.depth_mup:
            lines.append(f"where m_L = (L / {config.base_depth})^(-{float(config.depth_mup):g})")
        if config.norm_type != "layer" and any("LN" in line for line in lines):
            lines.append(f"LN is norm_type={config.norm_type}")
        eps = (f"where norm_eps = {show_value(config.norm_eps)}",) if config.norm_eps else ()
        return (*eps, *lines, *value_equations(config.value_residual))

    def connect(self, site: Site) -> Connection:
        """Return a new connection for ``site``."""
        return self.connection(replace(site, config=self.config))

    def open(self, x: Tensor) -> Stream:
        """Return the stream from the embeddings (T, B, C), after their dropout."""
        return {"x": x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        """Return the stream after layer ``i`` (also where layer dropout skipped it)."""
        return s

    def evaluate(self, layer: RunLayer, s: Stream) -> tuple[Stream, Tensor | None]:
        """Return the stream after a layer, and its attention weights or None.

        Args:
            layer: runs the layer's sub-layers and connections; a variant may call it several times.
            s: the stream below.
        """
        return layer(s)

    def layer_output(self, s: Stream) -> Tensor:
        """Return what an analysis takes for a layer's output (T, B, C): what the top makes of it, but for norms."""
        return s["x"]

    def depth_weights(self, below: int) -> DepthWeights | None:
        """Return what was learned to combine over layers; None where that is no matrix of weights.

        Args:
            below: number of layers that other variants wire below this one's.
        """
        return None

    def close(self, s: Stream) -> Tensor:
        """Return the stack's output (T, B, C): what the last layer gives, normalized where there is a norm on top."""
        norm, x = getattr(self, "norm", None), self.layer_output(s)
        return x if norm is None else norm(x)

    def at(self, i: int) -> tuple[Variant, int]:
        """Return the variant that wires layer ``i``, and which of its layers this is."""
        return self, i

    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        """Set own initial values, once the whole model is built and drawn as the option ``init`` says.

        Args:
            layers: the layers that this variant wires.
            embed_tokens: the stack's token embedding; None for speech, and in a decoder that shares its encoder's.
        """

    def update_rules(self) -> dict[str, UpdateScale]:
        """Return ends of names of parameters, and the factors on the optimizer's settings of these."""
        return dict.fromkeys(("gpas.gate", *self.spares), SPARED)

    def update_scales(self, layers: nn.ModuleList) -> dict[nn.Parameter, UpdateScale]:
        """Return the factors on the optimizer's settings, of parameters of ``layers`` and of this variant."""
        scales = dict.fromkeys(layers.parameters(), layer_scale(self.config, self.shape.depth))
        for ending, scale in self.update_rules().items():
            for name, parameter in (*layers.named_parameters(), *self.named_parameters()):
                if f".{name}".endswith(f".{ending}"):
                    scales[parameter] = scales.get(parameter, UpdateScale()).times(scale)
        return scales

    def extra_repr(self) -> str:
        return f"{self.name}: {'; '.join(self.equations_of(self.config))}" if self.name else ""
