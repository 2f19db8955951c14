"""Make the models that fairseq sees save and load fairseq's names; :mod:`.core.state_dict_names` translates them."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.state_dict_names import fairseq_name, stack_names


def translate_state_dict(owner: nn.Module, layers: str) -> None:
    """Make ``owner``, an encoder or decoder whose stack is its attribute ``layers``, save and load fairseq's names."""
    owner.register_state_dict_post_hook(partial(_save, layers))
    owner.register_load_state_dict_pre_hook(partial(_load, layers))
    owner.register_load_state_dict_post_hook(_report)


def _save(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}{layers}.")]:
        state[fairseq_name(key)] = state.pop(key)


def _load(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    if getattr(owner, "adaptive_softmax", None) is not None:
        # fairseq adds it to every checkpoint with shared embeddings (transformer_decoder.py, upgrade_state_dict_named)
        state.pop(f"{prefix}output_projection.weight", None)
    names = stack_names(state, prefix, layers)
    values = {name: state[key] for key, name in names.items()}
    for key in [key for key in state if key.startswith((f"{prefix}{layers}.", f"{prefix}layer_norm."))]:
        del state[key]
    for name, value in values.items():
        state[f"{prefix}{layers}.{name}"] = value


def _report(owner: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = map(fairseq_name, keys)
