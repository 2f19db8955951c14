"""The exponential average of parameters (``--store-ema``) is that of its decay."""

import types
from typing import Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


def _once(state: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a model's state with which each tensor of an average is updated once."""
    seen: set[int] = set()
    kept = {}
    for name, value in state.items():
        average = held.get(name)
        place = average.data_ptr() if isinstance(average, torch.Tensor) else 0  # which an empty one has too
        if place == 0 or place not in seen:
            kept[name] = value
        seen.add(place)
    return kept


def shared_parameters_once(module: types.ModuleType) -> None:
    """Let embeddings that are shared decay once for each update (models/ema/ema.py:140-174).

    They are updated in place under each of their names, so a decay d became d^2 or, with ``--share-all-embeddings``,
    d^3. Can go when fairseq > 0.12.2 updates parameters.
    """

    @replaces(module.EMA, "_step_internal")
    def step_internal(original: Any, self: Any, new_model: Any, updates: Any = None) -> None:
        held = self.fp32_params if self.config.ema_fp32 else self.model.state_dict()
        once = types.SimpleNamespace(state_dict=lambda: _once(new_model.state_dict(), held))
        original(self, once, updates)


def same_updates_when_resumed(module: types.ModuleType) -> None:
    """Let a resumed run average at the updates of an unbroken one (models/ema/ema.py:176-190).

    With ``--ema-update-freq``, no checkpoint holds the count of updates since the last one that was averaged. Can go
    when fairseq > 0.12.2 counts by the number of updates.
    """

    @replaces(module.EMA, "step")
    def step(original: Any, self: Any, new_model: Any, updates: Any = None) -> None:
        if updates is not None:
            self.update_freq_counter = (updates - 1) % max(1, self.config.ema_update_freq)
        original(self, new_model, updates)


def versions_kept(module: types.ModuleType) -> None:
    """Hand an average the versions of its modules with each update (models/ema/ema.py:164-174).

    Without them, modules take the update for a checkpoint of early days: a Pre-LN stack drops its norm on top without
    a word, and adaptive softmax ends the training. Can go when fairseq > 0.12.2 hands them on.
    """

    @replaces(module.EMA, "restore")
    def restore(original: Any, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        buffers = self.model.named_buffers(remove_duplicate=False)  # a whole state would be made for each update
        versions = {name: value for name, value in buffers if "version" in name}
        original(self, versions | state, *args, **kwargs)


def averages_that_move(module: types.ModuleType) -> None:
    """Refuse an average in half precision that each update rounds to what it was (models/ema/ema.py:171).

    With ``--fp16`` or ``--bf16``, the default decay of 0.9999 kept the weights of the first update for good. Can go
    when fairseq > 0.12.2 has ``--ema-fp32`` by default.
    """

    @replaces(module.EMA, "__init__")
    def __init__(original: Any, self: Any, model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        precision = torch.finfo(next(model.parameters()).dtype)
        if precision.bits == 16 and not config.ema_fp32 and 1 - config.ema_decay < precision.eps / 2:
            raise UserError(
                f"--store-ema in half precision never moves with --ema-decay {config.ema_decay}: add --ema-fp32"
            )
        original(self, model, config, *args, **kwargs)
