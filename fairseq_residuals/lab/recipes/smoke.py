"""Every step of a table's recipes within minutes: narrow models, a few updates, and stand-ins for corpora.

It finds out whether a table gets through, from the archives to the scores. The scores mean nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.lab.data.corpora import SYNTHETIC, find_corpus
from fairseq_residuals.lab.data.synthetic.stand_ins import write_mirror
from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.reproduce import Work, jobs_of, run
from fairseq_residuals.lab.recipes.runner import Runner
from fairseq_residuals.lab.recipes.tables import read_records
from fairseq_residuals.lab.recipes.tables.cells import Cell, TableRecipe
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError

UPDATES = 4
AVERAGED = 2
WIDTH, HEADS, LAYERS = 16, 2, 2
TOKENS = 200
"""Of a batch: a few sentences of a stand-in, or utterances."""


def smoke(
    table: TableRecipe,
    settings: Settings,
    runner: Runner,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> str:
    """Run the chosen cells of a table at small scale, and return a sentence about it.

    Everything is made anew in the folder ``smoke`` of the runs' folder.

    Raises:
        UserError: a step failed, or a cell got no score.
    """
    folder = settings.out / "smoke"
    with locked(folder):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        records = folder / "results.csv"
        records.unlink(missing_ok=True)
        work = small_work(table, settings, folder, rows, columns)
        for job in work:
            if (mirror := job.settings.mirror) and not mirror.exists():
                variant, _ = find_corpus(job.recipe.corpus).variant(job.recipe.variant)
                write_mirror(job.recipe.corpus, variant, mirror)
        run(table, work, records, runner)
    scored = {(record.row, record.column) for record in read_records(records)}
    lacking = sorted(
        {_name(cell) for cells in work.values() for cell in cells}
        - {_name(cell) for cell in table.cells if (cell.row, cell.column) in scored}
    )
    if lacking:
        raise UserError(f"no score came of {', '.join(lacking)}")
    return f"every cell got a score, which means nothing: {records}"


def _name(cell: Cell) -> str:
    """Name a cell; of a curve, of which a small run has only some rows, the column."""
    return cell.column if cell.key else f"{cell.row}, {cell.column}"


def small_work(
    table: TableRecipe, settings: Settings, folder: Path, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> Work:
    """Return the runs of some cells, with one seed each, made small."""
    work: Work = {}
    for job, cells in jobs_of(table, settings, rows, table.seeds[:1], columns).items():
        synthetic = folder / job.recipe.corpus / (job.recipe.variant or "")
        of_corpus = ("recipe.variant=tiny",) if job.recipe.corpus in SYNTHETIC else ()
        changed = replace(
            job.settings,
            data=synthetic / "data",
            mirror=None if of_corpus else synthetic / "mirror",
            out=folder / "runs",
            overrides=(*job.settings.overrides, *small(job, cells), *of_corpus),
        )
        work[Job(changed, job.name, job.given_seed)] = cells
    return work


def small(job: Job, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return what is changed of a recipe, as hydra takes it."""
    recipe = job.recipe
    tools = {score: measurements[0].tool for score, measurements in recipe.measurements.items()}
    # a curve of validations has its first point after so many updates
    updates = min(int(str(cell.key)) for cell in cells) if "train-log" in tools.values() else UPDATES
    shape = {"embed_dim": WIDTH, "ffn_embed_dim": WIDTH, "attention_heads": HEADS, "layers": LAYERS}
    is_language_model = job.asked.task._name == "language_modeling"
    stacks = ("decoder",) if is_language_model else ("encoder", "decoder")
    overrides = [f"model.{stack}_{key}={value}" for stack in stacks for key, value in shape.items()]
    if job.asked.criterion._name == "adaptive_loss":
        overrides += [f"model.decoder_{key}_dim={WIDTH}" for key in ("input", "output")]
        overrides += [f"model.adaptive_{key}_cutoff='10,20'" for key in ("input", "softmax")]
    overrides += ["dataset.num_workers=0", "optimization.update_freq=[1]"]
    if not is_language_model:  # whose stand-in is one block
        overrides.append(f"dataset.max_tokens={TOKENS}")
    overrides += _saved_as_often_as_averaged(recipe.average)
    if recipe.average is None or recipe.average[1] == "update":  # else as many as the epochs have
        overrides.append(f"optimization.max_update={updates}")
    if "fairseq-generate" in tools.values():
        overrides += ["recipe.evaluate.flags.max_len_a=0", "recipe.evaluate.flags.max_len_b=10"]
        validated = [score for score, tool in tools.items() if tool == "fairseq-validate"]  # which has no such flags
        overrides += [f"recipe.scores.{score}.flags.max_len_{end}=null" for score in validated for end in "ab"]
    linearized = [score for score, tool in tools.items() if tool == "linearize"]
    overrides += [f"recipe.scores.{score}.flags.{key}=1" for score in linearized for key in ("fit", "updates")]
    return tuple(overrides)


def _saved_as_often_as_averaged(average: tuple[int, str] | None) -> tuple[str, ...]:
    """Return the overrides by which a short training saves what a recipe averages, in its own unit."""
    if average is None:  # then the epochs of a tiny corpus need not be saved
        return ("checkpoint.save_interval=1000000", "dataset.validate_interval=1000000")
    if average[1] == "update":
        saved = ("checkpoint.save_interval_updates=1", f"checkpoint.keep_interval_updates={AVERAGED}")
    else:
        saved = (f"checkpoint.keep_last_epochs={AVERAGED}", f"optimization.max_epoch={AVERAGED}")
    return (*saved, f"recipe.average.last={AVERAGED}")
