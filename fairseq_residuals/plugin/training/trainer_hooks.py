"""Hooks of a model in the trainer that trains it: the one place where the plugin touches ``fairseq.trainer.Trainer``.

fairseq has no callbacks. Its trainer is patched once, when it is imported and a model has asked for hooks; a process
that only translates does not import it. A trainer of a model without hooks runs as fairseq wrote it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from modern_fairseq import table

Hook = Callable[[Any], object]
"""Function of the trainer."""


@dataclass
class TrainerHooks:
    """The calls that one model asks for. Those of one moment run in the order of their list."""

    after_load_checkpoint: list[Hook] = field(default_factory=list)
    """The checkpoint to begin with is loaded, or there is none; training data is not read yet; may raise UserError."""
    around_train_step: list[Callable[[Any], AbstractContextManager[object]]] = field(default_factory=list)
    """Returns the context of a training step: the passes of its batches, and the update."""
    before_clip: list[Hook] = field(default_factory=list)
    """The gradients of an update are complete: summed over batches and workers, and not clipped yet."""
    on_log: list[Hook] = field(default_factory=list)
    """An update was made and is about to be logged; not one whose gradients overflowed."""


def hooks_of(model: nn.Module) -> TrainerHooks:
    """Return the hooks of a model, of which there are none at first."""
    if not has_hooks(model):
        model.trainer_hooks = TrainerHooks()  # type: ignore[assignment]
        table.when_imported("fairseq.trainer", patch_trainer)
    return model.trainer_hooks  # type: ignore[return-value]


def has_hooks(model: nn.Module) -> bool:
    """Return whether anything has asked for the hooks of a model."""
    return "trainer_hooks" in vars(model)


def before_next_step(trainer: Any, action: Callable[[Any, list[Any]], object]) -> None:
    """Call ``action(trainer, batches)`` once: before the next training step, and outside the contexts of all steps."""
    vars(trainer).setdefault("_before_next_step", []).append(action)
    trainer.train_step = functools.partial(_first_step, trainer)


def _first_step(trainer: Any, samples: list[Any], raise_oom: bool = False) -> Any:
    del trainer.train_step
    for action in vars(trainer).pop("_before_next_step"):
        action(trainer, samples)
    return trainer.train_step(samples, raise_oom)


def patch_trainer(module: types.ModuleType) -> None:
    """Call the hooks of models, for which fairseq's trainer has no place (trainer.py:448, 780, 1252, 1490).

    Can stay as long as it has none.
    """
    trainer_class: Any = module.Trainer
    load_checkpoint, train_step = trainer_class.load_checkpoint, trainer_class.train_step
    clip_grad_norm, log_stats = trainer_class.clip_grad_norm, trainer_class._reduce_and_log_stats

    @functools.wraps(load_checkpoint)
    def load_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra_state = load_checkpoint(self, *args, **kwargs)
        for hook in _of(self).after_load_checkpoint:
            hook(self)
        return extra_state

    @functools.wraps(train_step)
    def step_in_contexts(self: Any, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as contexts:
            for context_of in _of(self).around_train_step:
                contexts.enter_context(context_of(self))
            return train_step(self, *args, **kwargs)

    @functools.wraps(clip_grad_norm)
    def call_and_clip(self: Any, *args: Any, **kwargs: Any) -> Any:
        for hook in _of(self).before_clip:
            hook(self)
        return clip_grad_norm(self, *args, **kwargs)

    @functools.wraps(log_stats)
    def call_and_log(self: Any, logging_outputs: Any, sample_size: Any, grad_norm: Any = None) -> Any:
        if grad_norm is not None:  # validation has none
            for hook in _of(self).on_log:
                hook(self)
        return log_stats(self, logging_outputs, sample_size, grad_norm)

    trainer_class.load_checkpoint, trainer_class.train_step = load_and_call, step_in_contexts
    trainer_class.clip_grad_norm, trainer_class._reduce_and_log_stats = call_and_clip, call_and_log


_NONE = TrainerHooks()


def _of(trainer: Any) -> TrainerHooks:
    model = trainer.get_model()
    return hooks_of(model) if has_hooks(model) else _NONE
