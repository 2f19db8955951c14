"""Checkpoints carry fairseq's names wherever fairseq has one; modules carry ours. The translation, both ways.

=========================================  ==========================================
module                                     state dict
=========================================  ==========================================
``layers.3.self_attn_connection.norm``     ``layers.3.self_attn_layer_norm``
``layers.3.encoder_attn_connection.norm``  ``layers.3.encoder_attn_layer_norm``
``layers.3.ffn_connection.norm``           ``layers.3.final_layer_norm``
``layers.wiring.norm``                     ``layer_norm``
=========================================  ==========================================

(In the speech encoder ``layers`` is ``transformer_layers``.) Everything else is called the same in both.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.layer import CONNECTIONS, FAIRSEQ_NORMS

_OURS = {f"{CONNECTIONS[kind]}.norm": norm for kind, norm in FAIRSEQ_NORMS.items()}
_THEIRS = {norm: ours for ours, norm in _OURS.items()}
_OUR_NORM = re.compile(rf"\b(\d+)\.({'|'.join(map(re.escape, _OURS))})\.")
_THEIR_NORM = re.compile(rf"^(\d+)\.({'|'.join(_THEIRS)})\.")
_TOP_NORM = re.compile(r"\b(?:transformer_)?layers\.wiring\.norm\.")
# fairseq 0.12.2 writes a second copy of each encoder layer's weights for a fused kernel
_DEAD_COPY = re.compile(r"^\d+\.(?:in_proj|out_proj|fc1|fc2)_(?:weight|bias)$")


def fairseq_name(name: str) -> str:
    """A parameter's name in a state dict, from its name in ``model.named_parameters()``."""
    name = _OUR_NORM.sub(lambda m: f"{m[1]}.{_OURS[m[2]]}.", name)
    return _TOP_NORM.sub("layer_norm.", name)


def translate_state_dict(owner: nn.Module, layers: str) -> None:
    """Makes ``owner``, an encoder or decoder whose stack is its attribute ``layers``, save and load fairseq's names."""
    owner.register_state_dict_post_hook(partial(_save, layers))
    owner.register_load_state_dict_pre_hook(partial(_load, layers))
    owner.register_load_state_dict_post_hook(_report)


def _save(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}{layers}.")]:
        state[fairseq_name(key)] = state.pop(key)


def _load(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    stack, top = f"{prefix}{layers}.", f"{prefix}layer_norm."
    for key in list(state):
        if key.startswith(top):
            state[f"{stack}wiring.norm.{key[len(top) :]}"] = state.pop(key)
        elif key.startswith(stack):
            name, value = key[len(stack) :], state.pop(key)
            if not _DEAD_COPY.match(name):
                state[stack + _THEIR_NORM.sub(lambda m: f"{m[1]}.{_THEIRS[m[2]]}.", name)] = value


def _report(owner: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = map(fairseq_name, keys)
