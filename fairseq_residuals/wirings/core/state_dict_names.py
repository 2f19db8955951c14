"""Checkpoints carry fairseq's names wherever fairseq has one; modules carry ours. The translation, both ways.

===========================================  ====================================
module                                       state dict
===========================================  ====================================
``layers.3.self_attn_connection.norm``       ``layers.3.self_attn_layer_norm``
``layers.3.encoder_attn_connection.norm``    ``layers.3.encoder_attn_layer_norm``
``layers.3.ffn_connection.norm``             ``layers.3.final_layer_norm``
``layers.wiring.norm``                       ``layer_norm``
``layers.3.self_attn_connection.attn_norm``  ``layers.3.attn_ln``
``layers.3.self_attn_connection.head_gain``  ``layers.3.c_attn``
``layers.3.ffn_connection.inner_norm``       ``layers.3.ffn_layernorm``
``layers.3.ffn_connection.residual_gain``    ``layers.3.w_resid``
``layers.3.self_attn_connection.out_norm``   ``layers.3.self_attn_out_layer_norm`` (and so of the others)
===========================================  ====================================

(In the speech encoder ``layers`` is ``transformer_layers``.) Everything else is called the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS

_OURS = {f"{CONNECTIONS[kind]}.norm": norm for kind, norm in FAIRSEQ_NORMS.items()} | {
    f"{CONNECTIONS['self']}.attn_norm": "attn_ln",
    f"{CONNECTIONS['self']}.head_gain": "c_attn",
    f"{CONNECTIONS['ffn']}.inner_norm": "ffn_layernorm",
    f"{CONNECTIONS['ffn']}.residual_gain": "w_resid",
    **{f"{CONNECTIONS[kind]}.out_norm": norm.replace("layer", "out_layer") for kind, norm in FAIRSEQ_NORMS.items()},
}
_THEIRS = {theirs: ours for ours, theirs in _OURS.items()}
_OUR_PLACE = re.compile(rf"\b(\d+)\.({'|'.join(map(re.escape, _OURS))})(?=\.|$)")
_THEIR_PLACE = re.compile(rf"^(\d+)\.({'|'.join(_THEIRS)})(?=\.|$)")
_TOP_NORM = re.compile(r"\b(?:transformer_)?layers\.wiring\.norm\.")
_DEAD_COPY = re.compile(r"^\d+\.(?:in_proj|out_proj|fc1|fc2)_(?:weight|bias)$")
"""The second copy of a layer's weights in every encoder layer of stock fairseq 0.12.2."""


def fairseq_name(name: str) -> str:
    """Return a parameter's name in a state dict, from its name in ``model.named_parameters()``."""
    name = _OUR_PLACE.sub(lambda m: f"{m[1]}.{_OURS[m[2]]}", name)
    return _TOP_NORM.sub("layer_norm.", name)


def stack_names(state: Mapping[str, Tensor], prefix: str, layers: str) -> dict[str, str]:
    """Return by fairseq's names the names in a stack, of what a state dict holds for it.

    Args:
        prefix: beginning of the names of the encoder or decoder, such as ``decoder.``.
        layers: the attribute of that which is the stack.
    """
    stack, top = f"{prefix}{layers}.", f"{prefix}layer_norm."
    names = {}
    for key in state:
        if key.startswith(top):
            names[key] = f"wiring.norm.{key[len(top) :]}"
        elif key.startswith(stack) and not _DEAD_COPY.match(name := key[len(stack) :]):
            names[key] = _THEIR_PLACE.sub(lambda m: f"{m[1]}.{_THEIRS[m[2]]}", name)
    return names
