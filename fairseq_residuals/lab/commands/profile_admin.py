"""``fairseq-residuals profile-admin DATA --arch ... --out FILE``: where Admin's omegas start, for ``profile=FILE``."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_residuals
from fairseq_residuals.lab.commands.output_check import check_output
from fairseq_residuals.plugin.training.admin_profile import profile, write_profile
from fairseq_residuals.wirings.admin_measurement import unprofiled
from fairseq_residuals.wirings.admin_profile_file import Omegas
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS

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
