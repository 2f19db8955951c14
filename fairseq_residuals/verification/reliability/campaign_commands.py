"""The commands of the campaign, on a few sentences and with models of a few thousand parameters."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.data.corpora.gigaword import ORG_DATA
from fairseq_residuals.data.synthetic.published_layouts import StandIn, text
from fairseq_residuals.experiments.job import PLUGIN
from fairseq_residuals.verification.reliability import zygote
from modern_fairseq.atomic_write import SUFFIX
from modern_fairseq.loading.checkpoints import load_fairseq
from modern_fairseq.loading.tensor_digest import digest

WORDS = ("ka", "lo", "mi", "nu", "pe", "ra", "si", "to")
SENTENCES = {"train": 40, "dev": 4, "test": 4}
UPDATES, SAVED_EVERY = 6, 2
SMALL = {"embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 1}
ROW = "6L-6L/Post-LN"
OUT = "out"
"""The folder, under that of a trial, in which a command writes."""

Result = dict[str, str]
"""A digest of each file that counts."""


@dataclass(frozen=True)
class Base:
    """What trials read and never change."""

    folder: Path

    @property
    def mirror(self) -> Path:
        return self.folder / "mirror"

    @property
    def prepared(self) -> Path:
        return self.folder / "data" / "gigaword" / "org_data"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def stock(self) -> Path:
        return self.folder / "stock.pt"


@dataclass(frozen=True)
class Command:
    """A command line, and what is compared of what it leaves."""

    name: str
    argv: Callable[[Base, Path], list[str]]
    """From the base and the folder of a trial."""
    result: Callable[[Path], Result]
    """From the folder in which it writes."""
    resumes: bool = False
    """Whether it goes on from a checkpoint that it has written."""

    def leftovers(self, folder: Path) -> list[str]:
        """Return the names of temporary files and folders under ``folder``."""
        return sorted(
            path.name for path in (folder / OUT).rglob("*") if path.name.endswith((SUFFIX, ".partial", ".part"))
        )


def _train(base: Base, folder: Path) -> list[str]:
    sizes = [f"--{side}-{key.replace('_', '-')}={n}" for side in ("encoder", "decoder") for key, n in SMALL.items()]
    lengths = ["--max-update", str(UPDATES), "--save-interval-updates", str(SAVED_EVERY), "--keep-interval-updates=2"]
    return [
        *("fairseq-train", str(base.prepared / "data-bin"), "--user-dir", str(PLUGIN), "--task", "translation"),
        *("--source-lang", "src", "--target-lang", "tgt", "--arch", "transformer_post_ln", *sizes),
        *("--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam", "--lr", "0.01"),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4", "--batch-size", "8", "--num-workers", "0"),
        *("--cpu", "--seed", "3", "--no-epoch-checkpoints", "--save-dir", str(folder / OUT), *lengths),
    ]


def _prepare(base: Base, folder: Path) -> list[str]:
    flags = ["--variant", "org_data", "--mirror", str(base.mirror), "--workers", "1"]
    return ["fairseq-residuals", "prepare", "gigaword", str(folder / OUT), *flags]


def _average(base: Base, folder: Path) -> list[str]:
    flags = ["--inputs", str(base.run), "--num-update-checkpoints", "2", "--output", str(folder / OUT / "average.pt")]
    return ["fairseq-residuals", "average", *flags]


def _export(base: Base, folder: Path) -> list[str]:
    checkpoint, out = str(base.run / "checkpoint_last.pt"), str(folder / OUT / "stock.pt")
    return ["fairseq-residuals", "export", "--to", "fairseq", checkpoint, out]


def _import(base: Base, folder: Path) -> list[str]:
    return ["fairseq-residuals", "import", "--from", "fairseq", str(base.stock), str(folder / OUT / "ours.pt")]


def _reproduce(base: Base, folder: Path) -> list[str]:
    out = folder / OUT
    sizes = [f"model.{side}_{key}={n}" for side in ("encoder", "decoder") for key, n in SMALL.items()]
    fast = [
        "dataset.max_tokens=200",
        "dataset.num_workers=0",
        "optimization.update_freq=[1]",
        "recipe.average={last:2,unit:update}",
    ]
    fast += [f"checkpoint.save_interval_updates={SAVED_EVERY}", "lr_scheduler.warmup_updates=2"]
    return [
        *("fairseq-residuals", "reproduce", "b2t/table3", "--rows", ROW, "--gpus", "0", "--seeds", "5"),
        *("--data", str(base.folder / "data"), "--out", str(out / "runs"), "--results", str(out / "results.csv")),
        *("--max-update", str(UPDATES), "--override", *sizes, *fast),
    ]


def _bytes(folder: Path, names: str = "*") -> Result:
    files = sorted(path for path in folder.rglob(names) if path.is_file() and path.name != ".lock")
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "downloads" not in path.parts and not path.name.endswith(".log")
    }


def _checkpoints(folder: Path) -> Result:
    """All of each checkpoint but the times that it took, and how often the run was resumed."""
    result = {}
    for path in sorted(folder.rglob("*.pt")):
        state = load_fairseq(path)
        extra = state.get("extra_state", {})
        rest = [state["optimizer_history"][-1], {key: extra.get(key) for key in ("train_iterator", "val_loss", "best")}]
        del state["extra_state"]
        result[path.name] = f"{digest(state)} {hashlib.sha256(repr(rest).encode()).hexdigest()}"
    return result


def _row(folder: Path) -> Result:
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        scores = [(row["column"], row["metric"], row["value"]) for row in csv.DictReader(file)]
    return {"scores": json.dumps(scores), **_checkpoints(folder / "runs")}


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command("train", _train, _checkpoints, resumes=True),
        Command("prepare", _prepare, _bytes),
        Command("average", _average, _bytes),
        Command("export", _export, _bytes),
        Command("import", _import, _bytes),
        Command("reproduce", _reproduce, _row),
    )
}


def make_base(base: Base) -> None:
    """Prepare, train and export what the trials begin with, unless it is there.

    Raises:
        RuntimeError: one of the commands failed.
    """
    done = base.folder / "complete"
    if done.exists():
        return
    shutil.rmtree(base.folder, ignore_errors=True)
    lines = {"valid" if split == "dev" else split: count for split, count in SENTENCES.items()}
    StandIn({ORG_DATA.name: dict(_corpus())}, {"lines": lines, "merges": 10}).write(base.mirror)
    for name, made in (("prepare", base.prepared), ("train", base.run), ("export", base.stock)):
        folder = base.folder / f"by_{name}"
        (folder / OUT).mkdir(parents=True)
        ended = zygote.run(COMMANDS[name].argv(base, folder), folder / "log")
        if ended.status != 0:
            raise RuntimeError(f"{name} failed where nothing was in its way:\n{ended.output}")
        made.parent.mkdir(parents=True, exist_ok=True)
        (folder / OUT / made.name if made.suffix else folder / OUT).rename(made)
    done.touch()


def _corpus() -> Iterator[tuple[str, bytes]]:
    for split, count in SENTENCES.items():
        draw = random.Random(split)
        lines = [draw.choices(WORDS, k=draw.randint(3, 7)) for _ in range(count)]
        yield f"org_data/{split}.src.txt", text(" ".join(line) for line in lines)
        yield f"org_data/{split}.tgt.txt", text(" ".join(word * 2 for word in line) for line in lines)
