"""What preparing parallel text costs: ``python -m fairseq_residuals.lab.bench.preparation --lines 100000 1000000``.

Each size is prepared in a process of its own from a synthetic corpus, by the recipe of wmt17_en_de, but with fewer
merges: what learning them costs depends on their number and on that of different words, hardly on that of lines. Words
follow Zipf's law, so that there are always new ones, as in real text; a line has 5 to 35 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairseq_residuals.lab.data.corpora.wmt17_en_de import WMT17
from fairseq_residuals.lab.data.pipeline.corpus import Job
from fairseq_residuals.lab.data.pipeline.download import Downloads, Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Part, Pipeline
from fairseq_residuals.lab.data.pipeline.steps import Cost, Steps
from fairseq_residuals.lab.utils.tables import Cell, csv_text, text_table
from modern_fairseq.atomic_write import atomic_write

SYLLABLES = {
    "en": [a + b for a in "bcdfghlmnprstw" for b in ("a", "e", "i", "o", "ing")],
    "de": [a + b for a in "bdfghklmnprstz" for b in ("a", "e", "ü", "au", "en")],
}
SHOWN = ("work/tokenized", "work/cleaned", "codes", "work/encoded", "text", "data-bin")
HELD_OUT = 1000
HEAD = ("pairs", "step", "seconds", "pairs/s", "CPU seconds", "pairs/CPU s")


def word(rank: int, language: str) -> str:
    """Return the word of a rank: the commoner, the shorter."""
    syllables, made = SYLLABLES[language], ""
    while rank >= 0:
        rank, number = divmod(rank, len(syllables))
        made += syllables[number]
        rank -= 1
    return made


def write_corpus(folder: Path, name: str, lines: int, seed: int, block: int = 10_000) -> None:
    """Write ``lines`` pairs of the same words in two languages, with commas, quotation marks and a period."""
    draw = np.random.default_rng(seed)
    files = {language: (folder / f"{name}.{language}").open("w", encoding="utf-8") for language in SYLLABLES}
    for start in range(0, lines, block):
        lengths = draw.integers(5, 36, size=min(block, lines - start))
        ranks = np.minimum(draw.zipf(1.4, size=int(lengths.sum())), 10**9).tolist()
        for language, file in files.items():
            at = 0
            for length in lengths.tolist():
                words = [word(rank, language) for rank in ranks[at : at + length]]
                at += length
                file.write(f"„{words[0].capitalize()}“, {' '.join(words[1:])}.\n")
    for file in files.values():
        file.close()


class Measured(NamedTuple):
    """What a preparation took: by step, and the most memory (MiB) of the main process and of any other."""

    costs: dict[str, Cost]
    main_memory: float
    other_memory: float


def measure(lines: int, workers: int, merges: int) -> Measured:
    """Prepare a corpus of ``lines`` pairs."""
    with tempfile.TemporaryDirectory() as temporary:
        mirror = Path(temporary, "mirror")
        source = Source("made/")
        (mirror / source.name).mkdir(parents=True)
        for seed, (name, count) in enumerate({"train": lines, "test": HELD_OUT}.items()):
            write_corpus(mirror / source.name, name, count, seed)
        train, test = (Part(source, f"{name}.{{lang}}") for name in ("train", "test"))
        recipe = replace(WMT17, train=(train,), tests={"test": (test,)}, bpe=Bpe(merges), lines={})
        out = Path(temporary, "out")
        steps = Steps(out)
        for step in Pipeline(recipe, Job(out, Downloads(out / "downloads", mirror), workers)).results():
            steps.ensure(step)
    taken = {name: steps.costs[name] for name in SHOWN}
    taken["all"] = Cost(*map(sum, zip(*taken.values(), strict=True)))
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Measured(taken, *peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 1_000_000, 4_000_000], help="pairs")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--merges", type=int, default=4000, help="of the BPE (the recipe has 40000)")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.single:
        print(json.dumps(measure(args.lines[0], args.workers, args.merges)))
        return
    machine = f"{platform.processor() or platform.machine()}; Python {platform.python_version()}"
    print(f"{args.workers} processes; {args.merges} merges; {machine}")
    table: list[list[Cell]] = []
    for lines in args.lines:
        sizes = ["--lines", str(lines), "--workers", str(args.workers), "--merges", str(args.merges)]
        command = [sys.executable, "-m", __spec__.name, "--single", *sizes]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows = list(rows_of(lines, *json.loads(ended.stdout.splitlines()[-1])))
        print(f"\n{text_table(HEAD, rows)}", flush=True)
        table += rows
    if args.csv:
        with atomic_write(args.csv) as file:
            file.write_text(csv_text(HEAD, table), encoding="utf-8")


def rows_of(lines: int, costs: dict[str, tuple[float, float]], main: float, other: float) -> Iterator[list[Cell]]:
    """Yield the rows of a measurement: one for each step, and two of memory."""
    for name, spent in costs.items():
        yield [
            str(lines),
            name,
            *(text for cost in spent for text in (f"{cost:.1f}", f"{lines / max(cost, 0.01):.0f}")),
        ]
    yield [str(lines), "peak MiB: main process", f"{main:.0f}", "", "", ""]
    yield [str(lines), "peak MiB: largest other", f"{other:.0f}", "", "", ""]


if __name__ == "__main__":
    main()
