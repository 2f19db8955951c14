"""Build a wired stack of any variant without fairseq."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import nn

from fairseq_residuals.wirings.admin_measurement import ProfileFirstBatch, unprofiled
from fairseq_residuals.wirings.blocks.feed_forward import Activation, activation_named
from fairseq_residuals.wirings.blocks.transformer import LayerSettings, TransformerStack, build_layers
from fairseq_residuals.wirings.core.base import Connection, StackShape, Variant
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.norms import NormFactory, is_norm, norm_type_of
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring

Task = Literal["encoder", "decoder", "language_model"]
Options = Mapping[str, Any]
"""Values by the names of options: bool, int, float or str; of ``norm_type`` a class, too."""
Named = str | type[Connection] | type[Variant]
"""A wiring: its name, or the class of one that need not be registered."""


def build_stack(
    variant: Named,
    *,
    depth: int,
    dim: int,
    heads: int,
    ffn_dim: int,
    task: Task = "encoder",
    options: Options | None = None,
    other_depth: int | None = None,
    memory_dim: int | None = None,
    embed_tokens: nn.Embedding | None = None,
    batch_first: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **layers: Unpack[LayerOptions],
) -> TransformerStack:
    """Build the layers of a Transformer, wired and initialised as a paper has it.

    The same seed draws the weights that fairseq draws for a stack of the same sizes (docs/PYTHON.md says where not).

    Args:
        variant: a name of :func:`list_variants`, a list with layers such as ``post_ln:0-5,pre_ln:6-17``, or a class of
            one's own, a :class:`.Connection` or a :class:`.Variant`, which need not be registered.
        depth: layers.
        dim: channels of the stream.
        heads: of attention; they divide ``dim``.
        ffn_dim: channels inside the FFN.
        task: an encoder, whose positions see each other; the decoder of a pair, with cross-attention; or a language
            model, a decoder alone.
        options: of the variant, by name; ``fairseq-residuals show NAME`` lists them.
        other_depth: layers of the other stack of an encoder-decoder pair, on which some constants depend; of a decoder
            by default its own. An encoder without it stands alone.
        memory_dim: channels of the encoder's output that a decoder reads; by default ``dim``.
        embed_tokens: the embedding below the stack, which rules of initialisation reach (T-Fixup's, CompleteP's,
            ``lipschitz``); where two stacks share it, give it to the first alone.
        batch_first: whether ``x``, ``memory`` and the output are (sentences, positions, channels). Padding masks are
            (sentences, positions) either way.
        device, dtype: where the stack goes, and the precision that it gets, once its weights are drawn.
        layers: what else the layers are made of, each as :class:`LayerOptions` says.

    Raises:
        UserError: a variant, an option or a number that is not valid, or that would do nothing; the message says what
            is.
    """
    if memory_dim is not None:
        check_sizes(memory_dim=memory_dim)
    shape = stack_shape(task, depth, dim, heads, ffn_dim, other_depth)
    if memory_dim is not None and task != "decoder":
        raise UserError(f"memory_dim has no meaning for task={task}, which reads no memory")
    settings, options = layer_settings(dim, heads, ffn_dim, options, **layers)
    wiring = parse_wiring(variant, options)
    memory = (memory_dim or dim) if task == "decoder" else None
    stack = build_layers(settings, wiring, shape, memory, batch_first=batch_first)
    check_effects(stack, settings, wiring)
    below = {} if embed_tokens is None else {"embed_tokens": embed_tokens}
    initialise([(nn.ModuleDict({**below, "layers": stack}), stack)])
    start_omegas(stack)
    return stack.to(device=device, dtype=dtype)


class LayerOptions(TypedDict, total=False):
    """Options of layers beside their wiring; the defaults are fairseq's."""

    ffn: Activation
    """The FFN: an activation between two matrices ("relu"), or a gated one ("swiglu", "geglu")."""
    rotary: bool | float
    """Whether self-attention has rotary positions, or the base of their rates; True: 10,000."""
    kv_heads: int
    """Heads of keys and values, which divide those of queries; by default as many."""
    qk_norm: bool
    """Whether each head's queries and keys are normed, by norms of the wiring's kind without biases."""
    norm_type: str | NormFactory
    """The kind of every norm; the option of that name, or a class or function as :func:`.register_norm` takes it."""
    norm_eps: float
    """The eps of every norm; the option of that name."""
    bias: bool
    """Whether linear maps of sub-layers have biases, which they do by default."""
    window: int
    """Number of positions on either side that self-attention sees, a position's own included; by default all."""
    dropout: float
    """Probability of dropping a channel of what a sub-layer gives."""
    attention_dropout: float
    """Probability of dropping a weight of attention."""
    activation_dropout: float
    """Probability of dropping an inner channel of the FFN."""
    layerdrop: float
    """Probability of skipping a layer in training (Fan et al. 2020)."""


def layer_settings(
    dim: int, heads: int, ffn_dim: int, options: Options | None, **layers: Unpack[LayerOptions]
) -> tuple[LayerSettings, Options | None]:
    """Check what layers are made of, and return it, with the wiring's options.

    Raises:
        UserError: a value is not valid, is unknown, or is said twice.
    """
    if unknown := layers.keys() - LayerOptions.__annotations__.keys():
        name = min(unknown)
        valid = LayerOptions.__annotations__
        raise UserError(
            f"there is no argument {name!r}{did_you_mean(name, valid)}; those of layers are {', '.join(valid)}; options"
            f" of the wiring are given as options={{{name!r}: ...}}"
        )
    given: dict[str, Any] = dict(layers)
    for name in ("norm_type", "norm_eps"):
        if name in given:
            if not isinstance(options, Mapping | None) or name in (options or {}):
                raise UserError(f"{name} is an argument, so options must be a dictionary without it, not {options!r}")
            options = {**(options or {}), name: given.pop(name)}
    check_probabilities(**{name: value for name, value in given.items() if name.endswith(("dropout", "layerdrop"))})
    check_sizes(**{name: given[name] for name in ("kv_heads", "window") if name in given})
    for name in ("qk_norm", "bias"):
        if not isinstance(given.get(name, True), bool):
            raise UserError(f"{name} must be True or False, not {given[name]!r}")
    rotary = given.pop("rotary", False)
    base = 1e4 if rotary is True else rotary or 0.0
    if isinstance(base, bool) or not isinstance(base, int | float) or (base and not 1 < base < math.inf):
        raise UserError(f"rotary must be True, False or a base of rates larger than 1, not {rotary!r}")
    if base and dim // heads % 2:
        raise UserError(f"rotary positions turn pairs of channels, and a head has {dim // heads}")
    if "ffn" in given:
        activation_named(given["ffn"])
        given["activation"] = given.pop("ffn")
    return LayerSettings(dim=dim, heads=heads, ffn_dim=ffn_dim, rotary=float(base), **given), options


def check_effects(stack: Stack, settings: LayerSettings, wiring: Wiring) -> None:
    """Check that what was asked of layers does something in a stack.

    Raises:
        UserError: it has no FFN, or no norm, or norms undo it.
    """
    if settings.activation != "relu" and not any("ffn" in stack[i].kinds for i in range(len(stack))):
        raise UserError(f"this wiring takes the place of the FFN, so ffn={settings.activation!r} would do nothing")
    if settings.qk_norm and any(getattr(part.config, "mup", False) for part in wiring.parts):
        raise UserError("option mup has no effect where qk_norm norms queries: leave out one of both")
    check_norms(wiring, stack.segments())


def check_norms(wiring: Wiring, owners: Sequence[Sequence[nn.Module]], others: Collection[nn.Module] = ()) -> None:
    """Check that options of norms do something.

    Args:
        owners: of each part of the wiring, the modules whose norms these options make.
        others: norms there that are somebody else's.

    Raises:
        UserError: no part that was given one has a norm.
    """
    for name in ("norm_eps", "norm_type"):
        given = [owned for part, owned in zip(wiring.parts, owners, strict=True) if name in part.given]
        modules = {module for owned in given for owner in owned for module in owner.modules()}
        if given and not any(map(is_norm, modules.difference(others))):
            raise UserError(f"this wiring has no norm{' of its own' if others else ''}, so {name} would do nothing")


def start_omegas(model: nn.Module) -> None:
    """Give the connections of Admin, if there are any, the omegas of the first batch of training."""
    for stack in (module for module in model.modules() if isinstance(module, Stack) and unprofiled(module)):
        stack.register_forward_pre_hook(ProfileFirstBatch(), with_kwargs=True)


def parse_wiring(variant: Named, options: Options | None) -> Wiring:
    """Return the wiring of a variant with its options as values.

    Raises:
        UserError: as :meth:`.Wiring.parse`; ``variant`` is neither a name nor a class.
    """
    own = isinstance(variant, type) and issubclass(variant, Connection | Variant)
    if not own and not isinstance(variant, str):
        raise UserError(f"a wiring is a name, or a class that derives from Connection or Variant, not {variant!r:.80}")
    if not isinstance(options, Mapping | None):
        raise UserError(f'options must be a dictionary such as {{"norm_type": "rms"}}, not {options!r}')
    options = {name: norm_type_of(value) if callable(value) else value for name, value in (options or {}).items()}
    wiring = Wiring.parse(variant, options) if isinstance(variant, str) else Wiring.of(variant, options)
    if any(part.config.fixnorm for part in wiring.parts):
        raise UserError(
            "option fixnorm is of embeddings and of the output matrix, which a stack by itself does not have; divide"
            " the vectors of your words by their lengths"
        )
    return wiring


def stack_shape(task: Task, depth: int, dim: int, heads: int, ffn_dim: int, other_depth: int | None) -> StackShape:
    """Return the shape of a stack of ``task``.

    Raises:
        UserError: a size is not valid, there is no such task, or it has no other stack.
    """
    check_sizes(
        depth=depth, dim=dim, heads=heads, ffn_dim=ffn_dim, other_depth=1 if other_depth is None else other_depth
    )
    if dim % heads:
        raise UserError(f"dim={dim} is not divisible by heads={heads}")
    if task not in get_args(Task):
        raise UserError(f"task={task!r} is unknown; valid are {', '.join(get_args(Task))}")
    if task == "language_model" and other_depth is not None:
        raise UserError("other_depth has no meaning for task=language_model, a decoder alone")
    if task == "encoder":
        depths = depth, other_depth or 0
    else:
        depths = (other_depth or depth) if task == "decoder" else 0, depth
    return StackShape(
        stack="encoder" if task == "encoder" else "decoder",
        depth=depth,
        dim=dim,
        ffn_dim=ffn_dim,
        heads=heads,
        enc_depth=depths[0],
        dec_depth=depths[1],
        cross=min(depths) > 0,
    )


def check_sizes(**sizes: int) -> None:
    """Check numbers by the names of the arguments that they are.

    Raises:
        UserError: one is not a whole number of at least 1.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"{name} must be a whole number of at least 1, not {size!r}")


def check_probabilities(**probabilities: float) -> None:
    """Check numbers by the names of the arguments that they are.

    Raises:
        UserError: one is no number from 0 to 1.
    """
    for name, value in probabilities.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"{name}={value!r} is no probability from 0 to 1")
