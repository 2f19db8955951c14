"""Names and layouts of parameters in the authors' repositories and older versions of fairseq, made this plugin's.

Gradients have the names and shapes of their parameters, and are translated by the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from modern_fairseq.fixes.layers import DEAD_PARAMETERS

Values = dict[str, Tensor]
"""Parameters by their names in a state dict."""


@dataclass(frozen=True)
class Authors:
    """A repository whose checkpoints and golden files can be read."""

    repository: str
    """Repository on GitHub, as owner/name."""
    convert: Callable[[Values], Values] = dict
    """A function for what renaming cannot do; applied first."""
    renames: tuple[tuple[str, str], ...] = ()
    """Regular expressions and their replacements, for what was called otherwise than fairseq ever did."""


def _number_history(values: Values) -> Values:
    """Rename what ``simple_dlcl_*`` counts from 0 instead of 1, and add the last dimension of its weights."""
    simple = any(".history.layer_norms.0." in name for name in values)
    norm = re.compile(r"(\.history\.layer_norms\.)(\d+)")
    return {
        norm.sub(lambda m: f"{m[1]}{int(m[2]) + simple}", name): (
            value.unsqueeze(-1) if name.endswith(".history.weight") and value.dim() == 2 else value
        )
        for name, value in values.items()
    }


def _drop_lone_norm(values: Values) -> Values:
    """Drop the norm that T-Fixup's decoder layers make and never use."""
    used = any(f".{FAIRSEQ_NORMS['self']}." in name for name in values)
    return {name: value for name, value in values.items() if used or f".{FAIRSEQ_NORMS['cross']}." not in name}


AUTHORS = {
    "b2t": Authors(
        "takase/b2t_connection", renames=((r"^decoder\.embed_positions_original\.", "decoder.embed_positions."),)
    ),
    "resi_dual": Authors("microsoft/ResiDual"),
    "dlcl": Authors(
        "wangqiangneu/dlcl",
        _number_history,
        (
            (r"\.history\.weight$", ".layers.wiring.weight"),
            (r"\.history\.layer_norms\.", ".layers.wiring.norms."),
        ),
    ),
    "admin": Authors(
        "LiyuanLucasLiu/Transformer-Clinic",
        renames=(
            (r"\.(?:attention|self)_ratio_change$", f".{CONNECTIONS['self']}.omega"),
            (r"\.encoder_ratio_change$", f".{CONNECTIONS['cross']}.omega"),
            (r"\.fc_ratio_change$", f".{CONNECTIONS['ffn']}.omega"),
        ),
    ),
    "t_fixup": Authors("layer6ai-labs/T-Fixup", _drop_lone_norm),
    "torchscale": Authors(
        "microsoft/torchscale",
        renames=(
            (r"\.ffn\.", "."),
            (r"\.self_attn\.inner_attn_ln\.", f".{CONNECTIONS['self']}.inner_norm."),
        ),
    ),
    "fairseq": Authors("facebookresearch/fairseq"),
}
"""Authors by short name. fairseq is last: others are used together with it."""


# buffers, not parameters: a format number, and something that shows the device
_BUFFER = re.compile(r"\.(?:version|_float_tensor)$")
_DEAD_COPY = re.compile(rf"\.(?:transformer_)?layers\.\d+\.(?:{'|'.join(DEAD_PARAMETERS)})$")
_NUMBERED_NORM = re.compile(r"^(encoder|decoder)(\.layers\.\d+)\.layer_norms\.(\d)\.")
_JOINT_PROJECTION = re.compile(r"^(.*)\.in_proj_(weight|bias)$")
_OF_FAIRSEQ = (
    # fairseq < 0.10 kept an output matrix of its own
    (r"^decoder\.embed_out$", "decoder.output_projection.weight"),
    # fairseq 0.7 to 0.8, where queries, keys and values are not one matrix
    (r"\.([qkv])_proj_weight$", r".\1_proj.weight"),
)


def translate(values: Values, authors: Authors) -> Values:
    """Return parameters or gradients by this plugin's names and in its shapes.

    Buffers, and the dead copies of fairseq 0.12, are left out.
    """
    cross_attention = any(".encoder_attn." in name for name in values)
    norms = {
        "encoder": [FAIRSEQ_NORMS[kind] for kind in ("self", "ffn")],
        "decoder": [FAIRSEQ_NORMS[kind] for kind in ("self", "cross", "ffn") if kind != "cross" or cross_attention],
    }
    translated: Values = {}
    for name, value in authors.convert(values).items():
        if _BUFFER.search(name) or _DEAD_COPY.search(name):
            continue
        for pattern, replacement in (*authors.renames, *_OF_FAIRSEQ):
            name = re.sub(pattern, replacement, name)
        # fairseq < 0.6 numbered the norms of a layer
        name = _NUMBERED_NORM.sub(lambda m: f"{m[1]}{m[2]}.{norms[m[1]][int(m[3])]}.", name)
        # fairseq < 0.8 had one matrix for queries, keys and values
        joint = _JOINT_PROJECTION.match(name)
        if joint:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                translated[f"{joint[1]}.{part}_proj.{joint[2]}"] = rows
        else:
            translated[name] = value
    return translated
