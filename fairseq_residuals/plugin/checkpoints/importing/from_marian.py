"""``import --from hf`` of MarianMT: Post-LN, with other numbers of words and positions than fairseq's.

::

    fairseq    words: <s> 0, <pad> 1, </s> 2, <unk> 3, ...    positions from 2, the decoder begins with </s>
    Marian     words: </s> 0, <unk> 1, ..., <pad>             positions from 0, the decoder begins with <pad>

Words are numbered anew. A decoder reads </s> at its beginning only, so that the embedding of </s> there is that of
Marian's beginning. Marian's sinusoids have other rates than fairseq's, and become tables.

Marian adds a bias c to its logits W h, and has no <s>. Of the last LayerNorm's output h = g n + b, n has mean zero. So
k = sum_i h_i / g_i = sum_i b_i / g_i is a constant, and (W + c u^T) h = W h + c where u_i = 1 / (k g_i). Likewise
<s> gets a logit that is never chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings
from fairseq_residuals.plugin.checkpoints.transformers_classes import activation_of
from fairseq_residuals.wirings.blocks.settings import PAD
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_object

VOCABULARY = "vocab.json"
_MOST_BYTES, _MOST_POSITIONS = 64 << 20, 1 << 16
NEVER = -100.0
"""The logit of <s>."""
SMALLEST = 1e-3
"""Of k per channel: below it, rounding would show in the biases."""
_BIAS, _OUTPUT, _SHARED = "final_logits_bias", "lm_head.weight", "model.shared.weight"


def read_marian(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Settings, dict[str, Tensor]]:
    """Return the settings and parameters of fairseq that compute what a MarianMT model does.

    Raises:
        UserError: the folder does not say which word is which, or the biases of the output cannot be folded.
    """
    source, target, output = _matrices(tensors)
    words, dim = output.shape
    eos, pad, start = (
        _token(config, key, default, words)
        for key, default in (("eos_token_id", 0), ("pad_token_id", 58100), ("decoder_start_token_id", 58100))
    )
    unknown = _token(_vocabulary(folder), "<unk>", 1, words)
    if len({eos, pad, unknown}) < 3:
        raise UserError(f"{folder}: </s>, <pad> and <unk> must be three words, not {eos}, {pad} and {unknown}")
    others = [word for word in range(words) if word not in (eos, pad, unknown)]
    parameters = {
        name.removeprefix("model."): value
        for name, value in tensors.items()
        if name not in (_BIAS, _OUTPUT, _SHARED)
        and not name.endswith((".embed_tokens.weight", ".embed_positions.weight"))
    }
    nothing = torch.zeros_like(source[:1])
    parameters["encoder.embed_tokens.weight"] = torch.cat([nothing, nothing, source[[eos, unknown, *others]]])
    parameters["decoder.embed_tokens.weight"] = torch.cat([nothing, nothing, target[[start, unknown, *others]]])
    bias = _of_shape(_BIAS, tensors.get(_BIAS, torch.zeros(1, words)), 1, words)[0]
    order = [pad, eos, unknown, *others]
    parameters["decoder.output_projection.weight"] = _with_bias(
        torch.cat([nothing, output[order]]),
        torch.cat([torch.tensor([NEVER]), bias[order]]),
        _last_norm(parameters, dim),
    )
    settings: Settings = {
        "arch": "transformer_post_ln",
        "task": "translation",
        "activation_fn": activation_of(config, "gelu"),
        "no_scale_embedding": not config.get("scale_embedding", False),
    }
    for side, limit in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        table = _positions(config, tensors, side, dim)
        parameters[f"{side}.embed_positions.weight"] = torch.cat([table.new_zeros(PAD + 1, table.size(1)), table])
        settings[f"{side}_attention_heads"] = config.get(f"{side}_attention_heads", 16)
        settings |= {f"{side}_learned_pos": True, limit: len(table)}
    return settings, parameters


def _positions(config: dict[str, Any], tensors: dict[str, Tensor], side: str, dim: int) -> Tensor:
    """Return the table of a stack, (positions, C), which files have or not: transformers computes it."""
    longest = config.get("max_position_embeddings", 1024)
    if type(longest) is not int or not 0 < longest <= _MOST_POSITIONS:
        raise UserError(f"its max_position_embeddings is {longest!r:.40}, and must be from 1 to {_MOST_POSITIONS:,}")
    name = f"model.{side}.embed_positions.weight"
    if name in tensors:
        return _of_shape(name, tensors[name], longest, dim)
    return sinusoids_of_marian(longest, dim)


def sinusoids_of_marian(positions: int, dim: int) -> Tensor:
    """Return sines, then cosines, of positions from 0 at rates 10000^(-2i/C), (positions, C)."""
    rates = 10000 ** (-2 * torch.arange((dim + 1) // 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()[:, : dim // 2]], 1).float()


def _matrices(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the embeddings of source and target, and the output matrix; those that are one are in the file once."""
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", _OUTPUT)
    shared = next((tensors[name] for name in (_SHARED, *names) if name in tensors), None)
    if shared is None or shared.dim() != 2:
        raise UserError("the folder has no embedding of MarianMTModel")
    source, target, output = (_of_shape(name, tensors.get(name, shared), *shared.shape) for name in names)
    return source, target, output


def _of_shape(name: str, tensor: Tensor, *shape: int) -> Tensor:
    if tensor.shape != shape:
        raise UserError(f"the parameter {name} has the shape {tuple(tensor.shape)}, and must have {shape}")
    return tensor


def _last_norm(parameters: dict[str, Tensor], dim: int) -> tuple[Tensor, Tensor]:
    norms = [name for name in parameters if name.startswith("decoder.layers.") and ".final_layer_norm." in name]
    last = max((int(name.split(".")[2]) for name in norms if name.split(".")[2].isdecimal()), default=0)
    names = [f"decoder.layers.{last}.final_layer_norm.{part}" for part in ("weight", "bias")]
    if not all(name in parameters for name in names):
        raise UserError("the folder has no decoder of MarianMTModel")
    gain, bias = (_of_shape(name, parameters[name], dim) for name in names)
    return gain, bias


def _with_bias(matrix: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    """Add what makes the logits larger by ``bias``, (V, C) -> (V, C)."""
    gain, shift = (value.double() for value in norm)
    constant = (shift / gain).sum()
    if not SMALLEST * len(gain) <= constant.abs() < torch.inf:
        raise UserError(
            "the biases of its logits cannot be folded: those of its decoder's last norm, divided by the gains, sum to"
            f" {constant.item():.1e}, and need a number that can be told from rounding"
        )
    return (matrix.double() + bias.double()[:, None] / (constant * gain)).float()


def _vocabulary(folder: Path) -> dict[str, Any]:
    path = folder / VOCABULARY
    if not path.is_file():
        raise UserError(f"there is no {VOCABULARY} in {folder}, which numbers the words")
    return read_object(path, "vocabulary", _MOST_BYTES)


def _token(numbers: dict[str, Any], key: str, default: int, words: int) -> int:
    number = numbers.get(key, default)
    if type(number) is not int or not 0 <= number < words:
        raise UserError(f"the number of {key} is {number!r:.40}, and must be one of {words} words")
    return number
