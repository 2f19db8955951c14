"""``fairseq-residuals reproduce EXPERIMENT/TABLE``: rows of a paper's table, from the corpus to the score."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.utils.checkout import CONFIGS, require_checkout
from fairseq_residuals.wirings.core.errors import UserError

HELP = "reproduce rows of a paper's table: prepare, train, average, generate, score, record"
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
"""Settings of a flag with several values, which may also be given several times."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="EXPERIMENT/TABLE", help="such as b2t/table1")
    parser.add_argument(
        "--rows", **SEVERAL, metavar="ROW", help="as the table calls them, or patterns such as '18L*'; default: all"
    )
    parser.add_argument("--columns", **SEVERAL, metavar="COLUMN", help="likewise, such as 'En-De*'; default: all")
    parser.add_argument("--dry-run", action="store_true", help="print every command and run none")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--gpus", type=int, metavar="N", help="of a run; 0: the CPU; default: all")
    machine.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side; default: 1")
    machine.add_argument("--precision", choices=("fp16", "bf16", "fp32"), help="default: the recipe's; on a CPU fp32")
    machine.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="of a pass, as many as fit on a GPU; the effective batch stays; default: the recipe's",
    )
    folders = parser.add_argument_group("files")
    folders.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="corpora; default: data")
    folders.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="models; default: runs")
    folders.add_argument("--results", type=Path, metavar="FILE", help="default: results/reproduced.csv of the checkout")
    folders.add_argument("--configs", type=Path, default=CONFIGS, metavar="DIR", help="default: the checkout's")
    recipe = parser.add_argument_group("changes to the recipe")
    recipe.add_argument("--seeds", **SEVERAL, type=int, metavar="N", help="default: the paper's number of seeds")
    recipe.add_argument(
        "--max-update",
        type=int,
        metavar="N",
        help="train for fewer updates; --override recipe.average=null where these save too little to average",
    )
    recipe.add_argument(
        "--override", **SEVERAL, default=[], metavar="KEY=VALUE", help="as hydra takes them, such as model.dropout=0.1"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: an unknown table, row or setting, or a step that failed.
    """
    import torch

    from fairseq_residuals.lab.recipes import reproduce
    from fairseq_residuals.lab.recipes.job import Settings
    from fairseq_residuals.lab.recipes.runner import INTERRUPTED, Runner, environments
    from fairseq_residuals.lab.recipes.tables.cells import load_table
    from fairseq_residuals.lab.recipes.tables.reproduced import REPRODUCED

    if args.configs == CONFIGS:
        require_checkout(CONFIGS)
    for name in ("jobs", "max_tokens", "max_update"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    there = torch.cuda.device_count()
    if args.gpus is None and 0 < there < args.jobs:
        raise UserError(f"--jobs {args.jobs}: this machine has {there} GPUs; --gpus 0 trains on the CPU")
    gpus = there // args.jobs if args.gpus is None else args.gpus
    if gpus < 0:
        raise UserError(f"--gpus must be at least 0, not {gpus}; 0 trains on the CPU")
    if not args.dry_run and gpus * args.jobs > there:
        raise UserError(f"--gpus {gpus}" + f" --jobs {args.jobs}" * (args.jobs > 1) + f": this machine has {there}")
    updates = [] if args.max_update is None else [f"optimization.max_update={args.max_update}"]
    settings = Settings(
        configs=args.configs.resolve(),
        data=args.data.resolve(),
        out=args.out.resolve(),
        gpus=gpus,
        precision=args.precision,
        max_tokens=args.max_tokens,
        overrides=(*updates, *args.override),
    )
    table = load_table(settings.configs, args.table)
    runner = Runner(environments(args.jobs, gpus), echo=True)
    try:
        work = reproduce.jobs_of(table, settings, args.rows, args.seeds, args.columns)
        if args.dry_run:
            print("\n".join(reproduce.show(work)))
            return 0
        reproduce.run(table, work, args.results or REPRODUCED, runner)
    except KeyboardInterrupt:
        print("reproduce: interrupted; repeat the command to go on with what is unfinished", file=sys.stderr)
        return INTERRUPTED
    recorded = f" --reproduced {args.results}" if args.results else ""
    print(f"fairseq-residuals table {args.table}{recorded} shows what is on record")
    return 0
