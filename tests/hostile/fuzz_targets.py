"""What reads each kind of input, as the commands do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import forked
import torch
from fairseq.data import Dictionary
from fairseq.data.audio.data_cfg import S2TDataConfig
from forked import PLUGIN
from pickle_cases import zipped

from fairseq_residuals.lab.compare.cells import read_results
from fairseq_residuals.lab.data import bpe
from fairseq_residuals.lab.data.archives import unpack
from fairseq_residuals.lab.data.corpora.librispeech import read_texts
from fairseq_residuals.lab.data.parallel_text import sentences
from fairseq_residuals.lab.look.curves import groups
from fairseq_residuals.lab.look.diagnose import rows
from fairseq_residuals.lab.look.training_log import read_log
from fairseq_residuals.lab.look.verdicts import diagnose
from fairseq_residuals.lab.recipes.tables import load_published, read_records, render
from fairseq_residuals.lab.scoring.perplexity import perplexity_of_eval_lm, perplexity_of_validate
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.plugin.scoring.text import read_generation, read_lines
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.documents import read_record
from modern_fairseq.loading.checkpoints import load_fairseq

Target = Callable[[Path], object]
"""Is given the path of the file."""
SHAPE = StackShape("decoder", 6, 8, 16, 2, 6, 6, cross=True)


def wiring(path: Path) -> None:
    """The values of --residual and --residual-args, a line each."""
    name, _, options = path.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")
    chosen = Wiring.parse(name, options)
    assert Wiring.parse(chosen.name, chosen.args).args == chosen.args
    with torch.device("meta"):
        chosen.build(SHAPE)


def log(path: Path) -> None:
    found = diagnose(read_log(path))
    found.text()
    rows(read_log(path), found)
    for group in groups([f"label={path}"]):
        group.points("loss", "valid")
        group.best("loss", "valid")


def perplexity(path: Path) -> None:
    text = "\n".join(read_lines(path))
    perplexity_of_validate(text) if "valid" in text else perplexity_of_eval_lm(text, words=100)


def generation(path: Path) -> None:
    generated = read_generation(path)
    score("sacrebleu", generated.hypotheses, generated.targets or read_lines(path))


def pickled(path: Path) -> None:
    """The instructions in an archive whose checksums are right."""
    path.write_bytes(zipped(path.read_bytes(), {"data/0": bytes(64)}))
    load_fairseq(path, map_location="cpu")


def published(path: Path) -> None:
    for chosen in load_published(path).values():
        render(chosen, ())


def dictionary(path: Path) -> None:
    Dictionary.load(str(path))


def merges(path: Path) -> None:
    bpe._encoder.cache_clear()  # it remembers the files of other inputs, which had this name
    bpe.Encode(path)("kan ing")


def speech_config(path: Path) -> None:
    S2TDataConfig(path).get_feature_transforms("train", True)


READERS: dict[str, Target] = {
    "wiring": wiring,
    "log": log,
    "perplexity": perplexity,
    "generation": generation,
    "pickle": pickled,
    "legacy": lambda path: load_fairseq(path, map_location="cpu"),
    "archive": lambda path: unpack(path, path.with_name("unpacked"), ("wanted.txt", "*")),
    "record": lambda path: read_record(path, "key"),
    "published": published,
    "reproduced": read_records,
    "runs": lambda path: [result.points for result in read_results(path)],
    "dictionary": dictionary,
    "sgm": lambda path: list(sentences(path, "sgm")),
    "table of words": read_texts,
    "speech config": speech_config,
    "merges": merges,
}
"""By kind of input: what a command calls. What it raises is what a user would see as a sentence, or a fault."""


def command(path: Path, inputs: Path) -> list[str]:
    """An argument a line."""
    return ["fairseq-residuals", *_lines(path)]


def fairseq_command(path: Path, inputs: Path) -> list[str]:
    """The same, with the program; PAIR is a data folder."""
    name, *arguments = (line.replace("PAIR", str(inputs / "pair")) for line in _lines(path))
    known = name if name in forked.FAIRSEQ else "fairseq-train"
    return [known, *arguments, "--user-dir", PLUGIN, "--task", "translation", "--save-dir", "save"]


def run_yaml(path: Path, inputs: Path) -> list[str]:
    """A configuration for fairseq-hydra-train."""
    (path.with_name("conf")).mkdir()
    path.rename(path.with_name("conf") / "run.yaml")
    where = (f"+task.data={inputs / 'pair'}", f"+common.user_dir={PLUGIN}", "hydra.run.dir=hydra")
    return ["fairseq-hydra-train", "--config-dir", str(path.with_name("conf")), "--config-name", "run", *where]


def _lines(path: Path) -> list[str]:
    """No argument of a process has a zero byte."""
    return path.read_bytes().replace(b"\0", b"").decode(errors="surrogateescape").split("\n")


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "command": command,
    "fairseq command": fairseq_command,
    "run.yaml": run_yaml,
}
"""By kind of input: the command line that it makes."""
