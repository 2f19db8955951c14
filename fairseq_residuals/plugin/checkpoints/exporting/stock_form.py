"""A model as plain Post-LN or Pre-LN, where its wiring amounts to one of them: what fairseq has.

Factors on residuals and branches are folded into weights. fairseq's own wirings then compute the same.

::

    x' = LN(a x + b F(x))      a, b: a number, or one per channel

Let the stream of fairseq's x' = LN(x + F(x)) be z = a x. The norm that made x makes z if its gain and bias are
multiplied by a; F sees x again if the columns of the matrices that read the stream (queries, keys, values, or the
FFN's first) are divided by a; b multiplies the rows of F's last matrix and its bias. The last norm of a stack feeds no
residual and stays. All this is exact, the norm's eps included; dividing the sum by a instead would not be.

In Pre-LN a connection may have a ``norm_gain`` c, where F is fed c LN(x): it multiplies the norm's gain and bias.

Below the first sub-layer there is no norm. The embeddings are multiplied by a, and so are the positions: sinusoids
become a table of learned positions. Embeddings that are shared have to part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings
from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.wiring import Wiring

FAIRSEQ_HAS = {"norm_type": "layer", "norm_eps": 0.0, "fixnorm": False, "value_residual": "none", "gpas": "none"}
"""Options of every variant that fairseq's own models leave no choice."""

READS_STREAM: dict[Kind, tuple[str, ...]] = {
    "self": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "cross": ("encoder_attn.q_proj",),
    "ffn": ("fc1",),
}
MAKES_OUTPUT: dict[Kind, str] = {"self": "self_attn.out_proj", "cross": "encoder_attn.out_proj", "ffn": "fc2"}


def fold_model(model: Any, wirings: Mapping[str, Wiring], state: dict[str, Tensor]) -> Settings:
    """Fold the gains of all stacks of a model into its parameters.

    Args:
        model: as fairseq builds it.
        wirings: of its stacks, by "encoder" and "decoder".
        state: its state dict in double precision, which changes.

    Returns:
        The settings of a model of fairseq's own that say the same.

    Raises:
        UserError: a wiring is no Post-LN or Pre-LN up to factors, or has an option that those have not.
    """
    exactly: Settings = {}
    for side, wiring in wirings.items():
        owner = getattr(model, side)
        layers = "layers" if hasattr(owner, "layers") else "transformer_layers"
        stack = getattr(owner, layers)
        if not stack.wiring.export_as:
            raise UserError(
                f"its {side} is wired by {wiring.name} ({'; '.join(wiring.equations)}), where fairseq's own has"
                " x = LN(x + F(x)) in all layers, or x = x + F(LN(x)), up to constant factors"
            )
        for option, only in FAIRSEQ_HAS.items():
            for value in (getattr(part.config, option) for part in wiring.parts):
                if value != only:
                    raise UserError(f"its {side} has {option}={value}, and fairseq's own model has {option}={only}")
        exactly |= _placement(stack, f"{side}.layer_norm.weight" in state)
        exactly |= _fold(owner, stack, f"{side}.{layers}", state)
    return exactly


def _placement(stack: Stack, top_norm: bool) -> Settings:
    """Return where a stock model has its norms."""
    side, before = stack.shape.stack, stack.wiring.export_as == "pre_ln"
    if before and not top_norm and side == "encoder":
        raise UserError("its encoder is Pre-LN without a norm on top, where fairseq has one")
    placed: Settings = {f"{side}_normalize_before": before}
    return placed | {"no_decoder_final_norm": before and not top_norm} if side == "decoder" else placed


def _fold(owner: Any, stack: Stack, prefix: str, state: dict[str, Tensor]) -> Settings:
    """Fold the gains of one stack into ``state``, the model's state dict in double precision.

    Args:
        owner: fairseq's encoder or decoder.
        stack: its layers, wired by a variant that has an ``export_as``.
        prefix: the layers' name in ``state``: "encoder.layers".

    Returns:
        settings of a stock model that change by it.

    Raises:
        UserError: a gain is zero, or sits where it cannot be folded.
    """
    side, changed, below = stack.shape.stack, {}, ""
    for i in range(len(stack)):
        for kind in stack[i].kinds:
            connection = getattr(stack[i], CONNECTIONS[kind])
            residual, branch = (_vector(gain, stack.shape.dim) for gain in connection.gains())
            where, layer = f"{side} layer {i + 1}, {kind}", f"{prefix}.{i}"
            for name, _ in connection.named_parameters():
                if not name.startswith("norm."):
                    del state[fairseq_name(f"{layer}.{CONNECTIONS[kind]}.{name}")]
            _multiply(state, f"{layer}.{MAKES_OUTPUT[kind]}", branch)
            if stack.wiring.export_as == "pre_ln":
                fed = _vector(connection.norm_gain, stack.shape.dim)
                _multiply(state, f"{layer}.{FAIRSEQ_NORMS[kind]}", fed)
            if not residual.eq(1).all():
                if stack.wiring.export_as != "post_ln":
                    _refuse(where, "a Pre-LN residual has no norm before it that could take it")
                if residual.eq(0).any():
                    _refuse(where, "it is zero in some channel, and cannot be taken out of the branch again")
                for name in READS_STREAM[kind]:
                    state[f"{layer}.{name}.weight"] = state[f"{layer}.{name}.weight"] / residual
                if below:
                    _multiply(state, below, residual)
                else:
                    changed = _fold_into_input(owner, side, residual, state, where)
            below = f"{layer}.{FAIRSEQ_NORMS[kind]}"
    return changed


def _fold_into_input(owner: Any, side: str, gain: Tensor, state: dict[str, Tensor], where: str) -> Settings:
    """Make what enters the first layer ``gain`` times as large; return the settings that change."""
    if f"{side}.layernorm_embedding.weight" in state:
        _multiply(state, f"{side}.layernorm_embedding", gain)
        return {}
    words, positions = f"{side}.embed_tokens.weight", f"{side}.embed_positions"
    if words not in state:
        _refuse(where, "fairseq's own model cannot scale its input, which is speech or an adaptive embedding")
    if f"{side}.project_in_dim.weight" in state:
        _multiply(state, f"{side}.project_in_dim", gain)
    else:
        state[words] = state[words] * gain
    if isinstance(owner.embed_positions, SinusoidalPositionalEmbedding):
        state.pop(f"{positions}._float_tensor", None)
        pad = owner.embed_positions.padding_idx
        longest = owner.max_source_positions if side == "encoder" else owner.max_target_positions
        table = owner.embed_positions.get_embedding(longest + pad + 1, len(gain), pad)
        state[f"{positions}.weight"] = table.double() * gain
        limit = "max_source_positions" if side == "encoder" else "max_target_positions"
        return {f"{side}_learned_pos": True, limit: longest}
    if owner.embed_positions is not None:
        state[f"{positions}.weight"] = state[f"{positions}.weight"] * gain
    return {}


def _multiply(state: dict[str, Tensor], module: str, gain: Tensor) -> None:
    """Multiply the output of a matrix or norm, its bias included."""
    for name in (f"{module}.weight", f"{module}.bias"):
        if name in state:
            state[name] = state[name] * gain.view(-1, *[1] * (state[name].dim() - 1))


def _vector(gain: Tensor | float, channels: int) -> Tensor:
    return torch.as_tensor(gain, dtype=torch.float64).detach().expand(channels)


def _refuse(where: str, why: str) -> NoReturn:
    raise UserError(f"the factor on the residual of {where} cannot be folded: {why}")
