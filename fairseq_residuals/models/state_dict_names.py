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
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from modern_fairseq.fixes.layers import DEAD_PARAMETERS

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
_DEAD_COPY = re.compile(rf"^\d+\.(?:{'|'.join(DEAD_PARAMETERS)})$")


def fairseq_name(name: str) -> str:
    """Return a parameter's name in a state dict, from its name in ``model.named_parameters()``."""
    name = _OUR_PLACE.sub(lambda m: f"{m[1]}.{_OURS[m[2]]}", name)
    return _TOP_NORM.sub("layer_norm.", name)


def translate_state_dict(owner: nn.Module, layers: str) -> None:
    """Make ``owner``, an encoder or decoder whose stack is its attribute ``layers``, save and load fairseq's names."""
    owner.register_state_dict_post_hook(partial(_save, layers))
    owner.register_load_state_dict_pre_hook(partial(_load, layers))
    owner.register_load_state_dict_post_hook(_report)


def _save(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}{layers}.")]:
        state[fairseq_name(key)] = state.pop(key)


def _load(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    stack, top = f"{prefix}{layers}.", f"{prefix}layer_norm."
    if getattr(owner, "adaptive_softmax", None) is not None:
        # fairseq adds it to every checkpoint with shared embeddings (transformer_decoder.py, upgrade_state_dict_named)
        state.pop(f"{prefix}output_projection.weight", None)
    for key in list(state):
        if key.startswith(top):
            state[f"{stack}wiring.norm.{key[len(top) :]}"] = state.pop(key)
        elif key.startswith(stack):
            name, value = key[len(stack) :], state.pop(key)
            if not _DEAD_COPY.match(name):
                state[stack + _THEIR_PLACE.sub(lambda m: f"{m[1]}.{_THEIRS[m[2]]}", name)] = value


def _report(owner: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = map(fairseq_name, keys)
