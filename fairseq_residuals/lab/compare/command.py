"""The command line of ``fairseq-residuals compare``."""

from __future__ import annotations

import argparse
import importlib.util
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fairseq_residuals.lab.compare import report, today
from fairseq_residuals.lab.compare.cells import (
    CLUSTERS,
    Cell,
    Comparison,
    Result,
    carry_out,
    carry_out_there,
    read_results,
    write_results,
)
from fairseq_residuals.lab.compare.checks import FEW_ROUNDS, ROUNDS, look, seconds_of_a_run
from fairseq_residuals.lab.compare.entries import read_entries
from fairseq_residuals.lab.compare.schedule import Plan, cells_of, next_cells
from fairseq_residuals.lab.compare.tasks import RUNGS, TASKS, Rung, Task, check_test_set, folder_task, make_copy
from fairseq_residuals.lab.data.parallel_map import cores
from fairseq_residuals.lab.recipes.compose import key_of
from fairseq_residuals.lab.recipes.runner import THREADS, Run, Runner, environments, terminable
from fairseq_residuals.lab.recipes.stages import Stages
from fairseq_residuals.lab.utils.checkout import CONFIGS, require_checkout
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.plugin.progress import quiet, say
from fairseq_residuals.wirings.core.errors import UserError

HELP = "train wirings side by side, each at its own best rate, and say whether one is better than the baseline"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "entries",
        nargs="*",
        metavar="WIRING",
        help="NAME, NAME/option=value,..., a list such as post_ln:0-5,pre_ln:6-17, or a Python file that defines one;"
        " @warmup=N behind one gives it a warm-up of its own",
    )
    add("--baseline", default="pre_ln", metavar="WIRING", help="what the others are compared with (%(default)s)")
    what = parser.add_argument_group("what on")
    what.add_argument("--task", choices=tuple(TASKS), help="; ".join(f"{t.name}: {t.about}" for t in TASKS.values()))
    what.add_argument("--data", type=Path, metavar="DIR", help="instead of --task, a folder of fairseq-preprocess")
    rungs = "; ".join(f"{n}: {r.dim} wide, up to {r.updates * r.tokens / 1e6:.0f}M tokens" for n, r in RUNGS.items())
    what.add_argument("--size", choices=tuple(RUNGS), help=f"{rungs}; copy and cldr train for less (the task's own)")
    sizes = {"depth": "layers of each stack", "dim": "width; the FFN is four times as wide"}
    steps = {"updates": "updates of a run", "tokens": "most tokens of an update, with padding"}
    for flag, words in (sizes | steps).items():
        what.add_argument(f"--{flag}", type=int, metavar="N", help=words)
    what.add_argument(
        "--blocks",
        choices=("fairseq", "today"),
        default="fairseq",
        help="sub-layers of language models: fairseq's, or rotary positions, SwiGLU, RMSNorm, no biases (%(default)s)",
    )
    what.add_argument(
        "--override", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings, as hydra takes them"
    )
    runs = parser.add_argument_group("runs")
    runs.add_argument(
        "--rates", nargs="+", action="extend", type=float, metavar="X", help="these learning rates, and no others"
    )
    runs.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds of an entry (%(default)s)")
    runs.add_argument("--baseline-seeds", type=int, default=8, metavar="N", help="seeds of the baseline (%(default)s)")
    runs.add_argument("--hours", type=float, default=math.inf, metavar="X", help="begin no run that would end later")
    runs.add_argument("--score", action="store_true", help="BLEU or perplexity on the test set, of each run")
    runs.add_argument("--keep-checkpoints", action="store_true", help="keep the checkpoints of finished runs")
    where = parser.add_argument_group("where")
    where.add_argument("--out", type=Path, default=Path("compare_out"), metavar="DIR", help="folder (%(default)s)")
    where.add_argument("--jobs", type=int, metavar="N", help="runs at a time on the CPU, one thread each (all cores)")
    where.add_argument("--gpus", type=int, default=0, metavar="N", help="runs at a time, one GPU each (0: the CPU)")
    where.add_argument("--cluster", choices=CLUSTERS, help="each run is a job there, --jobs or --gpus at a time")
    where.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="fp32 on a CPU")
    where.add_argument(
        "--merge", nargs="+", action="extend", type=Path, metavar="DIR", help="add the runs.csv of these folders"
    )
    where.add_argument("--dry-run", action="store_true", help="print the plan and train nothing")
    where.add_argument("--show", action="store_true", help="write the report of what is finished, and train nothing")


def run(args: argparse.Namespace) -> int:
    """Train what has not been trained, write the report, and return 0.

    Raises:
        UserError: nothing can be compared so, or a run failed.
    """
    deadline = time.monotonic() + 3600 * args.hours
    with quiet():
        comparison, plan = _asked(args)
        _prepare(comparison, args.data)
    with locked(comparison.folder), terminable():
        known = _known(comparison, args.merge or ())
        named = {entry.name for entry in plan.entries}
        results = [o for o in known if o.entry in named and (plan.grows or o.lr in plan.rates)]
        others = [o for o in known if o not in results]
        if unnamed := sorted({o.entry for o in others} - named):
            say(f"the report leaves out what this call does not name: {', '.join(unnamed)}")
        if args.score and (without := sum(o.score is None and o.ended == "learned" for o in results)):
            say(
                f"{without} finished runs have no score: to train them again, take their lines out of runs.csv and"
                " delete their folders in runs/"
            )
        jobs = environments(args.gpus, 1) if args.gpus else [dict.fromkeys(THREADS, "1")] * (args.jobs or cores())
        with quiet():
            here = 0 if args.gpus or args.cluster else len(jobs)
            # one seed decides nothing, at equal seconds neither
            most_rounds = ROUNDS if plan.seeds > 1 else FEW_ROUNDS
            starts = look(comparison, plan.entries, min(here, cores()), most_rounds)

        def save() -> None:
            write_results(comparison.runs_csv, [*others, *results])

        def conclude() -> None:
            save()
            print(report.write(comparison, plan, results, starts))

        if args.show or args.merge:
            conclude()
            return 0
        on_a_core = max(1.0, here / cores())
        estimates = {name: on_a_core * seconds_of_a_run(comparison.rung, start) for name, start in starts.items()}
        print(report.plan_text(comparison, plan, results, starts, estimates, len(jobs)), flush=True)
        if args.dry_run:
            return 0
        try:
            _train(comparison, plan, results, save, estimates, jobs, deadline, args.cluster)
        finally:
            conclude()
    if failed := [result for result in results if result.ended == "failed"]:
        raise UserError(
            f"{len(failed)} of {len(results)} runs failed, the first of {failed[0].entry}: {failed[0].reason}; the"
            " same command tries them again"
        )
    return 0


def _asked(args: argparse.Namespace) -> tuple[Comparison, Plan]:
    """Return what the options ask for, before anything is written but copies of the user's files."""
    require_checkout(CONFIGS)
    for name in ("depth", "dim", "updates", "tokens", "seeds", "baseline_seeds", "jobs"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if args.gpus < 0 or not all(0 < rate < math.inf for rate in args.rates or ()) or not args.hours > 0:
        raise UserError("--rates and --hours must be numbers of more than 0, and --gpus 0 or more")
    if args.gpus and args.jobs:
        raise UserError("--jobs is for runs on the CPU; --gpus says how many there are at a time")
    found = torch.cuda.device_count() if args.gpus else 0
    # one is needed on a cluster too, where the entries are looked at before they train
    if found < (min(args.gpus, 1) if args.cluster else args.gpus):
        raise UserError(f"--gpus {args.gpus}: PyTorch finds {found} GPUs here")
    if (args.data is None) == (args.task is None):
        raise UserError(f"give one of --task ({', '.join(TASKS)}) and --data DIR")
    if args.score and args.data and not any(args.data.glob("test.*idx")):
        raise UserError(f"--score: {args.data} has no test set; fairseq-preprocess --testpref makes one")
    if args.cluster and importlib.util.find_spec("submitit") is None:
        raise UserError("--cluster needs the package submitit: pip install submitit")
    if args.cluster == "slurm" and shutil.which("srun") is None:
        raise UserError("--cluster slurm: there is no srun on this machine")
    texts = list(dict.fromkeys([args.baseline, *args.entries]))
    if len(texts) < 2:
        raise UserError(f"name a wiring to compare with {args.baseline}; `fairseq-residuals list` prints them")
    task = TASKS[args.task] if args.task else folder_task(args.data)
    overridden = [key_of(text) for text in args.override]
    if args.blocks == "today":
        if not task.is_language_model:
            raise UserError("--blocks today is for language models: --task debian_lm, or --data with one")
        if unread := [key for key in overridden if key.startswith("model.") and key != "model.dropout"]:
            raise UserError(f"--override {unread[0]}: of the model, --blocks today takes model.dropout alone")
        about = f"{task.about}, of today's blocks"
        task = replace(task, about=about, overrides=(*task.overrides, f"model._name={today.MODEL}"))
    entries, user_dir = read_entries(texts, args.out.resolve(), args.blocks == "today", args.imported)
    rung, depth = _rung(task, args), args.depth or task.depth
    for entry in entries:
        if args.blocks == "today" and any("norm_type" in part.given for part in entry.wiring.parts):
            raise UserError(f"{entry.name}: --blocks today has RMSNorm in every entry; leave norm_type out")
        for stack in ("decoder",) if task.is_language_model else ("encoder", "decoder"):
            entry.wiring.check(stack, depth, alone=task.is_language_model)
    comparison = Comparison(
        task,
        rung,
        depth,
        args.out.resolve(),
        args.out.resolve() / "data",
        min(1, args.gpus),
        args.precision,
        user_dir,
        tuple(args.override),
        args.score,
        args.keep_checkpoints,
    )
    if stated := comparison.stated.intersection(overridden):
        flags = "--depth, --dim, --updates, --tokens, --rates, --seeds and --precision"
        raise UserError(f"--override {min(stated)}: {flags} say this")
    if args.score and args.data and not task.is_language_model:
        check_test_set(args.data, comparison.any_job.recipe.measurements["BLEU"][0].flags)
    for entry in entries:
        comparison.job(Cell(entry, 1.0, 1)).check_model()
    name = f"{task.name}-{depth}l-{rung.dim}-{comparison.shared[:6]}"
    rates = tuple(dict.fromkeys(args.rates or (task.lr, task.lr / 2, task.lr * 2)))
    plan = Plan(entries, rates, not args.rates, args.seeds, args.baseline_seeds)
    return replace(comparison, folder=comparison.folder / name), plan


def _rung(task: Task, args: argparse.Namespace) -> Rung:
    rung = RUNGS[args.size or task.size]
    if args.dim:
        heads = next((heads for heads in (rung.heads, 4, 2) if args.dim % heads == 0), 1)
        rung = replace(rung, dim=args.dim, ffn=4 * args.dim, heads=heads)
    updates, tokens = args.updates or task.updates or rung.updates, args.tokens or task.tokens or rung.tokens
    return replace(rung, updates=updates, tokens=tokens)


def _prepare(comparison: Comparison, folder: Path | None) -> None:
    """Make or prepare the data where they are not there yet; ``folder`` has them already."""
    with locked(comparison.data, wait=True):
        if not folder and comparison.task.name != "copy":
            runner = Runner()
            runner.run_all([Run("data", lambda run: Stages(comparison.any_job, runner, run).prepare())])
        elif folder and comparison.data_bin.resolve() != folder.resolve():
            comparison.data_bin.parent.mkdir(parents=True, exist_ok=True)
            comparison.data_bin.unlink(missing_ok=True)  # a link to another folder, which may have other data by now
            comparison.data_bin.symlink_to(folder.resolve(), target_is_directory=True)
        elif not folder and not comparison.data_bin.exists():
            make_copy(comparison.data_bin)


def _known(comparison: Comparison, others: Sequence[Path]) -> list[Result]:
    """Return what is finished here and in other folders, each run once; what failed is tried again.

    Raises:
        UserError: a run was trained with other settings or on other data.
    """
    results: dict[tuple[str, float, int], Result] = {}
    for path in (comparison.runs_csv, *(folder / comparison.runs_csv.name for folder in others)):
        if path != comparison.runs_csv and not path.is_file():
            raise UserError(f"--merge: there is no {path}")
        for result in read_results(path):
            if (result.settings, result.data) != (comparison.shared, comparison.data_digest):
                raise UserError(
                    f"{path} has runs of other settings or other data than this comparison's: results compare where"
                    " task, size, depth, updates, tokens and data are the same"
                )
            if result.ended == "failed":
                continue
            there = results.setdefault(result.key, result)
            if there.valid_loss != result.valid_loss:  # as on processors of another kind
                name = f"{result.entry}, lr {result.lr:g}, seed {result.seed}"
                say(
                    f"{path}: {name} has loss {result.valid_loss} here; {there.valid_loss} counts, which was read first"
                )
    return list(results.values())


def _train(
    comparison: Comparison,
    plan: Plan,
    results: list[Result],
    save: Callable[[], None],
    estimates: Mapping[str, float],
    jobs: list[dict[str, str]],
    deadline: float,
    cluster: str | None,
) -> None:
    """Train cells until all are done, or none would end before the deadline; ``results`` grows.

    Each entry goes on by itself, so that none waits for another's rates, and the same cells come of any order of ends.

    Args:
        save: writes all results to runs.csv.
    """
    runner = Runner(jobs)
    made: dict[Run, Result] = {}

    def work(cell: Cell, run: Run) -> None:
        seconds = estimates[cell.entry.name]
        if time.monotonic() + seconds > deadline:
            run.begin("left for another call")
        elif cluster:
            made[run] = carry_out_there(cluster, comparison, cell, runner, run, seconds)
        else:
            made[run] = carry_out(comparison, cell, runner, run)

    def begin(cell: Cell) -> Run:
        run = Run(cell.name, partial(work, cell), comparison.rung.updates)
        cells[run] = cell
        return run

    def finish(run: Run) -> None:
        entry = cells.pop(run).entry
        if run not in made:
            return
        results.append(made.pop(run))
        save()
        if entry not in (cell.entry for cell in cells.values()):
            runs.extend(map(begin, cells_of(entry, plan, results)))
            runs.sort(key=lambda run: cells[run].seed)

    cells: dict[Run, Cell] = {}
    runs = [*map(begin, next_cells(plan, results))]
    runner.run_all(runs, finish)
