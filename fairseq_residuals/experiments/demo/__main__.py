"""``python -m fairseq_residuals.experiments.demo``: the demo's command line."""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.demo import report
from fairseq_residuals.experiments.demo.corpus import Data, prepare_data
from fairseq_residuals.experiments.demo.plot import plot_losses
from fairseq_residuals.experiments.demo.processes import Children, StepFailed
from fairseq_residuals.experiments.demo.progress import display
from fairseq_residuals.experiments.demo.results import Result, summarize
from fairseq_residuals.experiments.demo.runs import Run
from fairseq_residuals.experiments.demo.settings import Settings, default_jobs, partial_of, versions

OUTPUTS = ("report.md", "results.json", "curves.csv", "curves.png")
INTERRUPTED = 130
VERSIONS_TOLD = ("fairseq", "torch", "Babel", "subword-nmt", "sacrebleu")


def parse(argv: Sequence[str] | None) -> Settings:
    """The command line.

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


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Holds ``folder`` for this demo. Its children inherit the lock, in case that one outlives a killed demo.

    Raises:
        UserError: another demo holds it, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"--out names {folder}, where nothing can be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another demo is running in {folder}: wait, or choose another --out") from error
        yield lock.fileno()


def execute(settings: Settings, inherited_fd: int) -> tuple[Data, list[Run]]:
    """Everything that takes time; what is finished already is reused."""
    with (
        ThreadPoolExecutor(settings.jobs) as pool,
        Children([inherited_fd]) as children,  # stopped before the pool waits for its threads
    ):
        data = pool.submit(prepare_data, settings, children).result()
        seeds = range(1, settings.seeds + 1)
        runs = [Run(settings, data, variant, seed) for seed in seeds for variant in settings.variants]
        for run in runs:
            if run.translated:
                print(f"{run.name}: finished before, reused from {run.folder}")

        def complete(run: Run) -> None:
            run.train(children)
            run.translate(children)

        with display(runs) as refresh:
            pending = {pool.submit(complete, run) for run in runs}
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                refresh()
    return data, runs


def conclude(settings: Settings, data: Data, runs: Sequence[Run]) -> str:
    """Writes the outputs and returns the report."""
    summaries = summarize([Result.of(run) for run in runs])
    unigram_loss = data.unigram_loss()
    sections = (
        f"{report.table(summaries)}\n\n{report.caption(settings, summaries, unigram_loss)}",
        report.verdict(settings, summaries, unigram_loss),
        f"Samples:\n\n{report.samples(data, summaries)}",
    )
    text = "\n\n".join(sections) + "\n"
    written = {
        "report.md": text,
        "results.json": report.as_json(settings, summaries, unigram_loss, versions(*VERSIONS_TOLD)),
        "curves.csv": report.as_csv(summaries, unigram_loss),
    }
    for name, content in written.items():
        partial_of(settings.out / name).write_text(content, encoding="utf-8")
    plot_losses(partial_of(settings.out / "curves.png"), summaries, unigram_loss)
    for name in OUTPUTS:
        partial_of(settings.out / name).rename(settings.out / name)
    return text


def run_demo(settings: Settings) -> None:
    began = time.monotonic()
    with locked(settings.out) as lock:
        for name in OUTPUTS:  # of an earlier demo: they would look like this one's
            (settings.out / name).unlink(missing_ok=True)
        data, runs = execute(settings, lock)
        print(f"\n{conclude(settings, data, runs)}")
    print(f"Written to {settings.out}: {', '.join(OUTPUTS)}; commands and logs are in data-*/ and runs/.")
    print(f"This took {time.monotonic() - began:.0f} seconds.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and returns its exit status."""
    try:
        run_demo(parse(argv))
    except (UserError, StepFailed) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; repeat the command to go on with what is unfinished", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the children as Ctrl-C does
    sys.exit(main())
