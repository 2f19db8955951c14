"""``fairseq-train`` on sentences of as many lengths as a corpus has: words a second with padding and without.

The words are random, since what they are makes no step faster. Lengths are log-normal, those of the target near those
of their source.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_residuals.analysis.training_log import TRAIN, Log
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.job import PLUGIN
from fairseq_residuals.experiments.runner import program
from fairseq_residuals.utils.folders import new_folder
from fairseq_residuals.utils.tables import Cell, csv_text, markdown_table
from modern_fairseq.atomic_write import atomic_write

MEDIAN, SIGMA, LONGEST = 20, 0.6, 150
"""Of the lengths of sentences, in words and in natural logarithms."""
LANGUAGES = ("source", "target")
OWN = ("--user-dir", str(PLUGIN), "--arch", "transformer_post_ln_6l")
CONTESTANTS: dict[str, tuple[str, ...]] = {
    "stock": ("--arch", "transformer"),
    "plain": (*OWN, "--plain"),
    "by default": OWN,
    "20 buckets": (*OWN, "--num-batch-buckets", "20"),
    "packed": (*OWN, "--packed"),
    "packed full": (*OWN, "--packed", "full"),
}
WARM_UP = 2
"""Records of a log that are left out: kernels are loaded then, and graphs recorded."""


@dataclass(frozen=True)
class Sizes:
    """How large the work is."""

    words: int
    pairs: int
    layers: int
    dims: tuple[int, int, int]
    """Channels, inner channels of the FFN, heads."""
    max_tokens: int
    updates: int
    every: int
    """Updates of one record."""


GPU = Sizes(words=32768, pairs=60_000, layers=18, dims=(512, 2048, 8), max_tokens=3584, updates=100, every=10)
CPU = Sizes(words=64, pairs=200, layers=1, dims=(32, 64, 2), max_tokens=400, updates=4, every=1)


def write_corpus(folder: Path, sizes: Sizes, seed: int = 1) -> None:
    """Write a binarized corpus with the languages "source" and "target", unless it is there."""
    if folder.exists():
        return
    generator = np.random.default_rng(seed)
    dictionary = Dictionary()
    for number in range(sizes.words - dictionary.nspecial):
        dictionary.add_symbol(f"w{number}")
    with new_folder(folder) as partial:
        for language in LANGUAGES:
            dictionary.save(str(partial / f"dict.{language}.txt"))
        # fairseq-train asks for validation data that it does not use, too
        for split, pairs in (("train", sizes.pairs), ("valid", 1)):
            source = generator.lognormal(np.log(MEDIAN), SIGMA, pairs)
            lengths = (source, source * generator.lognormal(0, 0.15, pairs))
            for language, of_side in zip(LANGUAGES, lengths, strict=True):
                stem = partial / f"{split}.{'-'.join(LANGUAGES)}.{language}"
                builder = MMapIndexedDatasetBuilder(f"{stem}.bin")
                for length in np.clip(of_side, 1, LONGEST).astype(int):
                    words = generator.integers(dictionary.nspecial, len(dictionary), length)
                    builder.add_item(torch.tensor([*words.tolist(), dictionary.eos()]))
                builder.finalize(f"{stem}.idx")


def command(data: Path, contestant: str, precision: str, device: str, sizes: Sizes) -> list[str]:
    """Return the training of a contestant."""
    flags = "--task translation --share-all-embeddings --optimizer adam --adam-betas (0.9,0.98) --lr 5e-4"
    flags += " --lr-scheduler inverse_sqrt --warmup-updates 4000 --criterion label_smoothed_cross_entropy"
    flags += " --label-smoothing 0.1 --dropout 0.1 --disable-validation --no-save --log-format json --seed 1"
    flags += f" --num-workers 2 --max-tokens {sizes.max_tokens} --max-update {sizes.updates}"
    flags += f" --log-interval {sizes.every} --{precision}" + (" --cpu" if device == "cpu" else "")
    for stack in ("encoder", "decoder"):
        dim, inner, heads = sizes.dims
        flags += f" --{stack}-layers {sizes.layers} --{stack}-embed-dim {dim} --{stack}-ffn-embed-dim {inner}"
        flags += f" --{stack}-attention-heads {heads}"
    return [program("fairseq-train"), str(data), *flags.split(), *CONTESTANTS[contestant]]


def words_a_second(log: Path) -> list[float]:
    """Return the words of targets that a training took a second, for each record but the first."""
    records = [r for r in Log(log).read_on(whole_lines=False).records if r.subset == TRAIN and "wps" in r.values]
    return [record.values["wps"] for record in records[WARM_UP:]]


def measure(stem: Path, precision: str, device: str, rounds: int, max_tokens: int) -> None:
    """Let the contestants train in turns, and write a table.

    Args:
        stem: of the table's files; the corpus and the logs are in ``work`` beside them.
        max_tokens: of a batch.

    Raises:
        UserError: a training failed, or logged nothing.
    """
    sizes = replace(CPU if device == "cpu" else GPU, max_tokens=max_tokens)
    data = stem.parent / "work" / "real-lengths"
    write_corpus(data, sizes)
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in CONTESTANTS:
            log = data.parent / f"{stem.name}-{name.replace(' ', '-')}-{number}.log"
            with log.open("w") as file:
                argv = command(data, name, precision, device, sizes)
                status = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
            if status:
                raise UserError(f"the training of {name} failed with status {status}; {log} says why")
            found[name] += words_a_second(log)
            if not found[name]:
                raise UserError(f"the training of {name} logged no words a second; see {log}")
            print(f"{name}: {statistics.median(found[name]):,.0f} words/s", flush=True)
    base = statistics.median(found["stock"])
    head = ["contestant", "target words/s", "least", "most", "of stock"]
    rows: list[list[Cell]] = [
        [name, round(statistics.median(v)), round(min(v)), round(max(v)), round(statistics.median(v) / base, 2)]
        for name, v in found.items()
    ]
    for suffix, text in ((".csv", csv_text(head, rows)), (".md", markdown_table(head, rows) + "\n")):
        with atomic_write(stem.with_name(stem.name + suffix)) as partial:
            partial.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure, as the piece of a session asks."""
    options = argparse.ArgumentParser(prog="real_lengths", description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="files of the table, without their suffixes")
    options.add_argument("--precision", choices=("bf16", "fp16"), required=True)
    options.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--max-tokens", type=int, required=True)
    args = options.parse_args()
    try:
        measure(args.out, args.precision, args.device, args.rounds, args.max_tokens)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
