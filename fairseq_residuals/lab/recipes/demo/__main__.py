"""``python -m fairseq_residuals.lab.recipes.demo``: the demo's command line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from fairseq_residuals.lab.recipes.demo import demo_report
from fairseq_residuals.lab.recipes.demo.demo_settings import Settings, unigram_loss_of
from fairseq_residuals.lab.recipes.demo.plot import plot_losses
from fairseq_residuals.lab.recipes.demo.results import DemoResult, summarize
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.runner import Run, Runner, cores, default_jobs
from fairseq_residuals.lab.recipes.stages import Diverged, Stages, is_trained
from fairseq_residuals.lab.recipes.synthetic_tasks.command_line import exit_status
from fairseq_residuals.lab.recipes.workspace import Workspace, versions
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

OUTPUTS = ("report.md", "results.json", "curves.csv", "curves.png")
PACKAGES = ("fairseq", "torch", "Babel", "subword-nmt", "sacrebleu")


def parse(argv: Sequence[str] | None) -> Settings:
    """Return the command line.

    Raises:
        UserError: an option is out of range.
    """
    defaults = Settings(Path("demo_out"), jobs=default_jobs())
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Makes an English-German corpus from CLDR data, trains one deep, narrow Transformer per "
        "variant with fairseq on the CPU, translates and scores unseen sentences, and plots the training "
        "losses. What is finished is reused when the command is repeated.",
    )
    add = parser.add_argument
    chosen = " ".join(defaults.variants)
    add("--variants", nargs="+", default=defaults.variants, metavar="NAME", help=f"compare these ({chosen})")
    add("--layers", type=int, default=defaults.layers, help="of the encoder, and of the decoder (%(default)s)")
    add("--seeds", type=int, default=defaults.seeds, help="runs per variant, seeds 1, 2, ... (%(default)s)")
    add("--updates", type=int, default=defaults.updates, help="parameter updates per run (%(default)s)")
    pairs = "for training; valid and test get a tenth, at most 1000 (%(default)s)"
    add("--pairs", type=int, default=defaults.pairs, help=f"sentence pairs {pairs}")
    add("--out", type=Path, default=defaults.out, metavar="DIR", help="write everything here (%(default)s)")
    add("--jobs", type=int, default=defaults.jobs, help="runs at a time, one thread each (%(default)s)")
    args = vars(parser.parse_args(argv))
    return Settings(**(args | {"variants": tuple(args["variants"])}))


def execute(settings: Settings, workspace: Workspace) -> list[DemoResult]:
    """Do everything that takes time; what is finished already is reused."""
    print(f"corpus: {settings.pairs:,} pairs and their BPE in {workspace.data}", flush=True)
    workspace.prepare(workers=min(settings.jobs, cores()))
    seeds = range(1, settings.seeds + 1)
    jobs = [(settings.job(workspace, v, seed), v) for seed in seeds for v in settings.variants]
    runner = Runner.on_cpu(settings.jobs)
    runs = []
    for job, variant in jobs:
        name = f"{variant} seed {job.seed}"
        if is_trained(job):
            print(f"{name}: trained before, reused from {job.folder}")
        runs.append(Run(name, partial(carry_out, job, runner), settings.updates))
    runner.run_all(runs)
    return [DemoResult.of(job, variant) for job, variant in jobs]


def carry_out(job: Job, runner: Runner, run: Run) -> None:
    """Train from the beginning, so that the CPU seconds are those of a whole training, and translate the test set.

    Raises:
        UserError: one of both failed.
    """
    with Stages.of(job, runner, run) as stages:
        if not is_trained(job):
            stages.forget()
        try:
            stages.train()
        except Diverged as reason:
            raise UserError(f"the training of {run.name} diverged: {reason}") from None
        stages.scores(["BLEU"])


def conclude(settings: Settings, corpus: Path, results: Sequence[DemoResult]) -> str:
    """Write the outputs, all or none, and return the report."""
    summaries = summarize(results)
    unigram_loss = unigram_loss_of(corpus)
    sections = (
        f"{demo_report.table(summaries)}\n\n{demo_report.caption(settings, summaries, unigram_loss)}",
        demo_report.verdict(settings, summaries, unigram_loss),
        f"Samples:\n\n{demo_report.samples(corpus, summaries)}",
    )
    text = "\n\n".join(sections) + "\n"
    contents = {
        "report.md": text,
        "results.json": demo_report.as_json(settings, summaries, unigram_loss, versions(*PACKAGES)),
        "curves.csv": demo_report.as_csv(summaries, unigram_loss),
    }
    with ExitStack() as files:
        new = {name: files.enter_context(atomic_write(settings.out / name)) for name in OUTPUTS}
        for name, content in contents.items():
            new[name].write_text(content, encoding="utf-8")
        plot_losses(new["curves.png"], summaries, unigram_loss)
    return text


def run_demo(settings: Settings) -> None:
    """Do all of it and print the report.

    Raises:
        UserError: another demo is at work in the folder, or a command failed.
    """
    began = time.monotonic()
    with locked(settings.out):
        for name in OUTPUTS:  # of an earlier demo: they would look like this one's
            (settings.out / name).unlink(missing_ok=True)
        workspace = Workspace.under(settings.out, settings.task, settings.sizes, name="runs")
        results = execute(settings, workspace)
        print(f"\n{conclude(settings, workspace.corpus, results)}")
    print(f"Written to {settings.out}: {', '.join(OUTPUTS)}; commands and logs are in {workspace.folder.name}/.")
    print(f"This took {time.monotonic() - began:.0f} seconds.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    return exit_status("demo", lambda: run_demo(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
