"""Each command that reads a file of a stranger's, with the command line that makes it read one."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from running import PLUGIN

from fairseq_residuals.lab.data.corpora.translation import IWSLT14_TESTS

LANGUAGES = ("--task", "translation", "-s", "s", "-t", "t")
SIZES = [
    f"--{stack}-{name}={value}"
    for stack in ("encoder", "decoder")
    for name, value in {"layers": 1, "embed-dim": 8, "ffn-embed-dim": 8, "attention-heads": 1}.items()
]
TRAINING = ["--optimizer", "adam", "--lr", "0.001", "--max-update", "1", "--criterion", "cross_entropy"]
TRAINING += ["--cpu", "--save-dir", "save", "--num-workers", "0"]
ANALYSES = ("gradients", "similarity", "change", "weights")


class Command(NamedTuple):
    name: str
    argv: Callable[[Path, Path], list[str]]
    """Of the file, in the folder that the command runs in, and of that of `test_hostile_commands.prepare`."""
    sentence: str = "{}"
    """A pattern for what this command says; ``{}``: what the reader says; empty: fairseq or Python refuses the file."""
    stdin: str = ""


def _fairseq(name: str, data: str, *flags: str, stdin: str = "") -> Command:
    def argv(file: Path, folder: Path) -> list[str]:
        return [name, str(folder / data), "--user-dir", PLUGIN, "--path", str(file), "--cpu", *flags]

    return Command(name, argv, stdin=stdin)


def _training(name: str, flag: str) -> Command:
    def argv(file: Path, folder: Path) -> list[str]:
        return [*training(folder), flag, str(file)]

    return Command(name, argv)


def training(folder: Path) -> list[str]:
    """The command line that trains a tiny model on the data of :func:`test_hostile_commands.prepare`."""
    flags = ["fairseq-train", str(folder / "pair"), "--user-dir", PLUGIN, *LANGUAGES, "--batch-size", "4"]
    return [*flags, "--arch", "transformer_b2t_6l", *SIZES, *TRAINING]


def _hydra(file: Path, folder: Path) -> list[str]:
    argv = ["fairseq-hydra-train", "--config-dir", str(folder), "--config-name", "run", "hydra.run.dir=hydra"]
    return [*argv, f"checkpoint.restore_file={file}"]


def _analysis(name: str) -> Command:
    return Command(name, lambda file, folder: ["fairseq-residuals", name, "--checkpoint", str(file)])


def _speech_training(data: Path) -> list[str]:
    flags = ["fairseq-train", str(data), "--user-dir", PLUGIN, "--task", "speech_to_text", "--max-tokens", "4000"]
    flags += ["--arch", "s2t_transformer_b2t_xs", *SIZES, "--conv-channels=8", *TRAINING]
    return flags


ALONE = ("--workers", "1")


def _speech_encoder(file: Path, folder: Path) -> list[str]:
    return [*_speech_training(folder / "speech"), "--load-pretrained-encoder-from", str(file)]


def _from_mirror(file: Path, folder: Path) -> list[str]:
    """The file in the place of an archive of which no digest is known."""
    mirror = file.with_name("mirror")
    mirror.mkdir()
    shutil.move(file, mirror / "iwslt14-de-en.tgz")
    return ["fairseq-residuals", "prepare", "iwslt14_de_en", "out", "--mirror", str(mirror), *ALONE]


def _segments(file: Path, folder: Path) -> list[str]:
    """The file in the place of a test set, in an archive whose other files are good."""
    mirror = file.with_name("mirror")
    mirror.mkdir()
    with tarfile.open(mirror / "iwslt14-de-en.tgz", "w:gz") as archive:
        for test in IWSLT14_TESTS:
            for language in ("de", "en"):
                hostile = (test, language) == ("TED.dev2010", "de")
                text = file if hostile else folder / "segments.xml"
                archive.add(text, f"de-en/IWSLT14.{test}.de-en.{language}.xml")
        for language in ("de", "en"):
            archive.add(folder / "train.s", f"de-en/train.tags.de-en.{language}")
    file.unlink()
    return ["fairseq-residuals", "prepare", "iwslt14_de_en", "out", "--mirror", str(mirror), *ALONE]


def _prepared(file: Path, folder: Path) -> list[str]:
    """The file in the place of what an earlier preparation said of itself."""
    out = file.with_name("out")
    out.mkdir()
    shutil.move(file, out / "prepared.json")
    return ["fairseq-residuals", "prepare", "iwslt14_de_en", str(out), *ALONE]


def _speech_data(name: str) -> Callable[[Path, Path], list[str]]:
    def argv(file: Path, folder: Path) -> list[str]:
        data = file.with_name("speech")
        shutil.copytree(folder / "speech", data)
        shutil.move(file, data / name)
        return _speech_training(data)

    return argv


CHECKPOINTS = (
    _fairseq("fairseq-generate", "pair", *LANGUAGES),
    _fairseq("fairseq-interactive", "pair", *LANGUAGES, stdin="a b\n"),
    _fairseq("fairseq-validate", "pair", *LANGUAGES, "--batch-size", "4"),
    _fairseq("fairseq-eval-lm", "text"),
    _training("fairseq-train", "--restore-file"),
    _training("fairseq-train --finetune-from-model", "--finetune-from-model"),
    Command("fairseq-train --load-pretrained-encoder-from", _speech_encoder),
    Command("fairseq-hydra-train", _hydra),
    Command("average", lambda file, folder: ["fairseq-residuals", "average", "--inputs", str(file), "--output", "out"]),
    Command("import", lambda file, folder: ["fairseq-residuals", "import", "--from", "fairseq", str(file), "out"]),
    Command("export", lambda file, folder: ["fairseq-residuals", "export", "--to", "fairseq", str(file), "out"]),
    Command("diagnose", lambda file, folder: ["fairseq-residuals", "diagnose", str(file)], "has no record of"),
    Command("linearize", lambda file, f: ["fairseq-residuals", "linearize", "--data", str(f / "pair"), str(file)]),
    *map(_analysis, ANALYSES),
    Command("curves", lambda file, folder: ["fairseq-residuals", "curves", str(file)], "{}|has no record of"),
)
COMMANDS: dict[str, tuple[Command, ...]] = {
    "checkpoint": CHECKPOINTS,
    "safetensors": tuple(command for command in CHECKPOINTS if command.name in ("average", "import", "export")),
    "log": tuple(command for command in CHECKPOINTS if command.name in ("diagnose", "curves")),
    "archive": (Command("prepare", _from_mirror, "{}|lacks de-en/train"),),
    "whole": (Command("prepare", _from_mirror, "{}|lacks de-en/train"),),
    "json": (Command("prepare", _prepared, "{}|it is no JSON object; remove it"),),
    "yaml": (
        Command("table", lambda file, folder: ["fairseq-residuals", "table", "--published", str(file), "x/y"]),
        Command("fairseq-train, config.yaml", _speech_data("config.yaml"), "."),
    ),
    "sgm": (Command("prepare", _segments),),
    "tsv": (Command("fairseq-train, valid.tsv", _speech_data("valid.tsv"), ""),),
}
"""By what reads the file."""
