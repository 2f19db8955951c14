"""Profile Admin's omegas in fairseq's trainer, on the first batch of training, or by a command before it.

``fairseq-residuals profile-admin DATA --arch ... --out FILE`` writes a file for ``profile=FILE``.
:mod:`fairseq_residuals.wirings.admin_measurement` measures.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed
from fairseq.optim import FP16Optimizer
from fairseq.optim.bmuf import FairseqBMUF
from torch import nn

import fairseq_residuals
from fairseq_residuals.plugin.checkpoints.output_check import check_output
from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.training.packed_batches import padded_batch
from fairseq_residuals.plugin.training.trainer_hooks import before_next_step, hooks_of
from fairseq_residuals.wirings.admin_measurement import average, measure, start_from, take_from_files, unprofiled
from fairseq_residuals.wirings.admin_profile_file import Omegas
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from modern_fairseq.atomic_write import atomic_write

logger = logging.getLogger(__name__)


def profile(trainer: Any, samples: Iterable[Any]) -> Omegas:
    """Measure the omegas for the model of a fairseq trainer, as it would train it: device, precision, criterion, seed.

    Args:
        samples: batches of its iterator.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    criterion.train()
    trainer._set_seed()
    profiles = []
    for sample in samples:
        # variances are those of a padded batch, in which padding counts
        batch, _ = trainer._prepare_sample(padded_batch(sample, criterion.padding_idx))
        with torch.autocast(trainer.device.type, torch.float16, enabled=trainer.cuda and trainer.cfg.common.amp):
            profiles.append(measure(model, functools.partial(criterion, model, batch)))
    return average(profiles)


def write_profile(path: Path, omegas: Omegas, measured_with: dict[str, Any]) -> None:
    """Write ``path`` whole or not at all.

    Args:
        measured_with: what tells one profile from another.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"measured_with": measured_with, "omegas": omegas}, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


@register_extension("admin_profile")
class AdminProfile(Extension):
    """Give the models that fairseq's trainer trains their omegas, unless a checkpoint does."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Wait for the checkpoint to start from, if the wiring has omegas."""
        if unprofiled(model):
            hooks_of(model).after_load_checkpoint.append(_profile_what_is_left)


def _profile_what_is_left(trainer: Any) -> None:
    """Read files now, before training data is read; ``profile=auto`` waits for the first batch."""
    take_from_files(trainer.get_model())
    if unprofiled(trainer.get_model()):
        before_next_step(trainer, _profile_first_batch)


def _profile_first_batch(trainer: Any, samples: list[Any]) -> None:
    """Measure the omegas on the first batch of the process of rank 0."""
    optimizer = trainer.optimizer  # makes the trainer move the model to its device, if it has not yet
    omegas: Any = profile(trainer, samples[:1]) if trainer.data_parallel_rank == 0 else None
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


HELP = "profile a model wired by admin, as fairseq-train with the same flags would build it, on its first batches"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s DATA --arch ARCH [any flag of fairseq-train] [--batches N] --out FILE"
    parser.epilog = (
        "The weights are those that fairseq-train draws with the same --seed, the batches the first ones that it trains"
        " on. One process does it, whatever number of them is to train."
    )
    # an abbreviation could be meant for fairseq-train
    parser.allow_abbrev = False
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the JSON file to write")
    parser.add_argument("--batches", type=int, default=1, metavar="N", help="how many to average over; default: 1")
    parser.set_defaults(further=[])


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: flags that fairseq-train would refuse, a model without omegas, too few batches, or a file that cannot
            be written.
    """
    if args.batches < 1:
        raise UserError(f"--batches must be at least 1, not {args.batches}")
    check_output(args.out, [])
    parser = options.get_training_parser()
    parser.prog = "fairseq-residuals profile-admin"
    flags = options.parse_args_and_arch(parser, args.further)
    trainer = _make_trainer(flags)
    if not unprofiled(trainer.get_model()):
        raise UserError(
            f"the model of --arch {flags.arch} has no omegas to profile: choose one that is wired by admin, such as"
            " --arch transformer_admin_18l"
        )
    samples = list(itertools.islice(_training_batches(trainer), args.batches))
    if len(samples) < args.batches:
        raise UserError(f"--batches {args.batches} is more than the training data have: {len(samples)}")
    omegas = profile(trainer, samples)
    measured_with = {
        "flags": args.further,
        "batches": len(samples),
        "tokens": sum(int(sample["ntokens"]) for sample in samples),
        "versions": {"fairseq_residuals": fairseq_residuals.__version__, "torch": torch.__version__},
    }
    write_profile(args.out, omegas, measured_with)
    print(*_table(omegas), f"wrote {args.out}", sep="\n")
    return 0


def _make_trainer(flags: argparse.Namespace) -> Any:
    """Make a trainer as fairseq_cli.train.main does, in one process."""
    from fairseq.trainer import Trainer

    cfg = convert_namespace_to_omegaconf(flags)
    add_defaults(cfg)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError("the size of a batch is missing: give --max-tokens or --batch-size")
    cfg.distributed_training.distributed_world_size = 1
    np.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def _training_batches(trainer: Any) -> Any:
    """Return an iterator over the batches of the first epoch, in the order in which they are trained on."""
    epoch = trainer.get_train_iterator(epoch=1)
    batches = epoch.next_epoch_itr(
        fix_batches_to_gpus=trainer.cfg.distributed_training.fix_batches_to_gpus,
        shuffle=epoch.next_epoch_idx > trainer.cfg.dataset.curriculum,
    )
    trainer.task.begin_epoch(1, trainer.get_model())
    return batches


def _table(omegas: Omegas) -> list[str]:
    """Return some layers from the bottom to the top of each stack."""
    lines = [f"{'':10}{'layer':>6}" + "".join(f"{kind:>10}" for kind in CONNECTIONS)]
    for stack, layers in omegas.items():
        last = len(layers) - 1
        for i in sorted({0, last // 4, last // 2, 3 * last // 4, last}):
            values = (f"{layers[i][kind]:10.4f}" if kind in layers[i] else f"{'-':>10}" for kind in CONNECTIONS)
            lines.append(f"{stack:10}{i:6}" + "".join(values))
    return lines
