"""The names of parameters in older versions of fairseq and in its forks, made those of fairseq 0.12."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from fairseq_residuals.layer import FAIRSEQ_NORMS
from modern_fairseq.layers import DEAD_PARAMETERS

Renames = tuple[tuple[str, str], ...]
"""Regular expressions and their replacements."""

# buffers, not parameters: a format number, and something to tell the device by
_BUFFER = re.compile(r"\.(?:version|_float_tensor)$")
_DEAD_COPY = re.compile(rf"\.layers\.\d+\.(?:{'|'.join(DEAD_PARAMETERS)})$")
_JOINT_PROJECTION = re.compile(r"^(.*)\.in_proj_(weight|bias)$")
_NUMBERED_NORM = re.compile(r"^(encoder|decoder)(\.layers\.\d+)\.layer_norms\.(\d)\.")


def modernise(values: dict[str, Tensor], renames: Renames = ()) -> dict[str, Tensor]:
    """Parameters or gradients by the names of fairseq 0.12, without buffers and without its dead copies.

    Args:
        values: by the name in a state dict.
        renames: what a variant's authors called otherwise than fairseq ever did; applied first.
    """
    cross_attention = any(".encoder_attn." in name for name in values)
    return dict(_modernised(values, renames, cross_attention))


def _modernised(values: dict[str, Tensor], renames: Renames, cross_attention: bool) -> Iterator[tuple[str, Tensor]]:
    norms = {
        "encoder": [FAIRSEQ_NORMS[kind] for kind in ("self", "ffn")],
        "decoder": [FAIRSEQ_NORMS[kind] for kind in ("self", "cross", "ffn") if kind != "cross" or cross_attention],
    }
    for name, value in values.items():
        if _BUFFER.search(name) or _DEAD_COPY.search(name):
            continue
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        # fairseq < 0.6 numbered the norms of a layer
        name = _NUMBERED_NORM.sub(lambda m: f"{m[1]}{m[2]}.{norms[m[1]][int(m[3])]}.", name)
        # fairseq < 0.10 kept an output matrix of its own, and < 0.8 one matrix for queries, keys and values
        name = "decoder.output_projection.weight" if name == "decoder.embed_out" else name
        joint = _JOINT_PROJECTION.match(name)
        if joint:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                yield f"{joint[1]}.{part}_proj.{joint[2]}", rows
        else:
            yield name, value
