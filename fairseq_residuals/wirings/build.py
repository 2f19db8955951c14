"""Build a wired stack of any variant without fairseq."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from fairseq_residuals.wirings.admin_measurement import ProfileFirstBatch, take_from_files, unprofiled
from fairseq_residuals.wirings.blocks.feed_forward import Activation
from fairseq_residuals.wirings.blocks.transformer import SubLayers, TransformerStack
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring

Task = Literal["encoder", "decoder", "language_model"]
Options = Mapping[str, bool | int | float | str]


def build_stack(
    variant: str,
    *,
    depth: int,
    dim: int,
    heads: int,
    ffn_dim: int,
    task: Task = "encoder",
    options: Options | None = None,
    other_depth: int | None = None,
    memory_dim: int | None = None,
    activation: Activation = "relu",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    layerdrop: float = 0.0,
    embed_tokens: nn.Embedding | None = None,
    batch_first: bool = False,
) -> TransformerStack:
    """Build the layers of a Transformer, wired and initialised as a paper has it.

    The same seed draws the weights that fairseq draws for a stack of the same sizes (docs/PYTHON.md says where not).

    Args:
        variant: a name of :func:`list_variants`, or a list with layers such as ``post_ln:0-5,pre_ln:6-17``.
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
        activation: of the FFN.
        dropout: after each sub-layer.
        attention_dropout: on the weights of attention.
        activation_dropout: after the activation.
        layerdrop: probability of skipping a layer in training (Fan et al. 2020).
        embed_tokens: the embedding below the stack, which rules of initialisation reach (T-Fixup's, ``lipschitz``).
        batch_first: whether ``x``, ``memory`` and the output are (sentences, positions, channels). Padding masks are
            (sentences, positions) either way.

    Raises:
        UserError: a variant, an option or a number that is not valid; the message says what is.
    """
    if memory_dim is not None:
        check_sizes(memory_dim=memory_dim)
    dropouts = {"dropout": dropout, "attention_dropout": attention_dropout, "activation_dropout": activation_dropout}
    check_probabilities(**dropouts, layerdrop=layerdrop)
    shape = stack_shape(task, depth, dim, heads, ffn_dim, other_depth)
    if memory_dim is not None and task != "decoder":
        raise UserError(f"memory_dim has no meaning for task={task}, which reads no memory")
    wiring = parse_wiring(variant, options)
    # before the wiring draws numbers of its own, as under fairseq
    built = [
        SubLayers(
            dim,
            heads,
            ffn_dim,
            memory_dim=(memory_dim or dim) if task == "decoder" else None,
            activation=activation,
            **dropouts,
        )
        for _ in range(depth)
    ]
    stack = TransformerStack(built, wiring.build(shape), shape, layerdrop=layerdrop, batch_first=batch_first)
    below = {} if embed_tokens is None else {"embed_tokens": embed_tokens}
    initialise([(nn.ModuleDict({**below, "layers": stack}), stack)])
    start_omegas(stack)
    return stack


def start_omegas(stack: Stack) -> None:
    """Give the connections of Admin, if there are any, the omegas of a file, or those of the first batch of training.

    Raises:
        UserError: the file is missing, damaged, or of another stack.
    """
    take_from_files(stack)
    if unprofiled(stack):
        stack.register_forward_pre_hook(ProfileFirstBatch(), with_kwargs=True)


def parse_wiring(variant: str, options: Options | None) -> Wiring:
    """Return the wiring of a variant with its options as values.

    Raises:
        UserError: as :meth:`.Wiring.parse`.
    """
    if not isinstance(options, Mapping | None):
        raise UserError(f'options must be a dictionary such as {{"norm_type": "rms"}}, not {options!r}')
    wiring = Wiring.parse(variant, options)
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
        UserError: one is not from 0 to 1.
    """
    for name, value in probabilities.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name}={value} is no probability from 0 to 1")
