"""Profile Admin's omegas in fairseq's trainer, on the first batch of training.

:mod:`fairseq_residuals.wirings.admin_measurement` measures.
"""

from __future__ import annotations

import functools
import logging
from argparse import Namespace
from typing import Any

import torch
from fairseq.distributed import utils as distributed
from fairseq.optim import FP16Optimizer
from fairseq.optim.bmuf import FairseqBMUF
from torch import nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.training.packed_batches import PADDED
from fairseq_residuals.plugin.training.trainer_hooks import before_next_step, hooks_of
from fairseq_residuals.wirings.admin_measurement import Omegas, measure, refuse_files, start_from, unprofiled

logger = logging.getLogger(__name__)


def profile(trainer: Any, sample: Any) -> Omegas:
    """Measure the omegas for the model of a fairseq trainer, as it would train it: device, precision, criterion, seed.

    Args:
        sample: a batch of its iterator.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    criterion.train()
    trainer._set_seed()
    # variances are those of a padded batch, in which padding counts
    batch, _ = trainer._prepare_sample(sample[PADDED].batch if PADDED in sample else sample)
    with torch.autocast(trainer.device.type, torch.float16, enabled=trainer.cuda and trainer.cfg.common.amp):
        return measure(model, functools.partial(criterion, model, batch))


@register_extension("admin_profile")
class AdminProfile(Extension):
    """Give the models that fairseq's trainer trains their omegas, unless a checkpoint does."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Wait for the checkpoint to start from, if the wiring has omegas."""
        if unprofiled(model):
            hooks_of(model).after_load_checkpoint.append(_profile_what_is_left)


def _profile_what_is_left(trainer: Any) -> None:
    """Wait for the first batch, unless a checkpoint had the omegas."""
    if connections := unprofiled(trainer.get_model()):
        refuse_files(connections)
        before_next_step(trainer, _profile_first_batch)


def _profile_first_batch(trainer: Any, samples: list[Any]) -> None:
    """Measure the omegas on the first batch of the process of rank 0."""
    optimizer = trainer.optimizer  # makes the trainer move the model to its device, if it has not yet
    omegas: Any = profile(trainer, samples[0]) if trainer.data_parallel_rank == 0 else None
    if trainer.data_parallel_world_size > 1:
        omegas = distributed.broadcast_object(
            omegas, src_rank=0, group=trainer.data_parallel_process_group, dist_device=trainer.device
        )
    start_from(unprofiled(trainer.get_model()), omegas)
    _renew_copies(optimizer)
    for stack, layers in omegas.items():
        values = [omega for layer in layers for omega in layer.values()]
        logger.info("profiled the first batch: omegas of the %s %.4f to %.4f", stack, min(values), max(values))


def _renew_copies(optimizer: Any) -> None:
    """Repeat the copies of the parameters that fairseq's optimizers made when they were built."""
    if isinstance(optimizer, FairseqBMUF):
        _renew_copies(optimizer._optimizer)
        optimizer._reset_local_data()
    if isinstance(optimizer, FP16Optimizer):
        if optimizer.has_flat_params:
            (flat,) = optimizer.fp32_params.values()
            flat.data.copy_(nn.utils.parameters_to_vector(optimizer.fp16_params))
        else:
            for copy, parameter in zip(optimizer.fp32_params, optimizer.fp16_params, strict=True):
                copy.data.copy_(parameter.data)
