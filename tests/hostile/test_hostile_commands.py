"""No command runs, computes or believes what is in a hostile file.

Each command is sent ``HOSTILE_SAMPLE`` files, drawn by chance, the same each time; 0: all, which takes more than
an hour.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from hostile_files import cases
from limits import limit
from pickle_cases import Case
from running import PLUGIN, Run, argv_of, execute, succeed
from tiny_jobs import TRANSLATION
from yaml_configs import config

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


WORDS = ("a", "b", "c", "d")
SPLITS = ("train", "valid", "test")


def prepare(folder: Path) -> None:
    """Write ``pair`` (translation), ``text`` (language modelling), ``speech``, ``run.yaml`` (fairseq-hydra-train)."""
    folder.mkdir()
    for split in SPLITS:
        for language in ("s", "t"):
            (folder / f"{split}.{language}").write_text("a b\nc d a\nb\nd d c b\n")
    prefixes = [text for split in SPLITS for text in (f"--{split}pref", str(folder / split))]
    succeed("fairseq-preprocess", *prefixes, "-s", "s", "-t", "t", "--destdir", str(folder / "pair"))
    prefixes = [text for split in SPLITS for text in (f"--{split}pref", str(folder / f"{split}.s"))]
    succeed("fairseq-preprocess", *prefixes, "--only-source", "--destdir", str(folder / "text"))
    (folder / "segments.xml").write_text('<seg id="1"> a b </seg>\n<seg id="2"> c </seg>\n')
    _write_speech(folder / "speech")
    (folder / "run.yaml").write_text(yaml.safe_dump(configuration(folder / "pair")))


def _write_speech(folder: Path) -> None:
    folder.mkdir()
    rows = []
    for number, word in enumerate(WORDS):
        np.save(folder / f"{number}.npy", np.random.default_rng(number).normal(size=(12, 80)).astype(np.float32))
        rows.append(f"{number}\t{folder / f'{number}.npy'}\t12\t{word}\tx\n")
    for split in SPLITS:
        (folder / f"{split}.tsv").write_text("id\taudio\tn_frames\ttgt_text\tspeaker\n" + "".join(rows))
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    (folder / "config.yaml").write_text("vocab_filename: dict.txt\ninput_feat_per_channel: 80\ninput_channels: 1\n")


def configuration(data: Path) -> dict[str, dict[str, object]]:
    """A tiny training for fairseq-hydra-train."""
    settings = config(TRANSLATION, data, Path("save"))
    settings["model"]["share_all_embeddings"] = False
    return settings


SAMPLE = int(os.environ.get("HOSTILE_SAMPLE", "2"))
KEPT = r"^hydra/|^out/(\.lock$|downloads/\.?SHA256SUMS(\.lock)?$|work/)"
"""What hydra and ``prepare`` keep of each run, whatever comes of it: logs, locks and steps that are whole."""


def drawn(reader: str, command: Command) -> list[Case]:
    """Return files that the command reads, other ones for each command."""
    files = [case for case in cases() if case.reader == reader]
    return sorted(files, key=lambda case: zlib.crc32(f"{case.name} {command.name}".encode()))[: SAMPLE or None]


def fault(case: Case, command: Command, ended: Run, left: list[str]) -> str:
    """Say what is wrong with how the command ended; empty if nothing is."""
    lines = [line for line in ended.err.splitlines() if re.match(r"[a-z-]+( [a-z-]+)?: error: ", line)]
    if ended.status <= 0:
        return f"status {ended.status}"
    if command.sentence and "Traceback" in ended.out + ended.err:
        return f"traceback: {ended.err.strip().splitlines()[-1][:300]}"
    if command.sentence and len(lines) != 1:
        return f"{len(lines)} sentences: {ended.err[-500:]}"
    if command.sentence and not re.search(command.sentence.format(case.sentence), lines[0]):
        return f"says {lines[0][:300]}"
    return f"left {', '.join(left)}" if left else ""


def files_in(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not re.search(KEPT, name)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "inputs"
    prepare(folder)
    return folder


@pytest.mark.parametrize(
    ("reader", "command"),
    [
        pytest.param(reader, command, id=f"{reader}-{command.name}")
        for reader, commands in COMMANDS.items()
        for command in commands
    ],
)
def test_each_command_refuses_what_it_is_given(reader: str, command: Command, inputs: Path, tmp_path: Path) -> None:
    faults = []
    for number, case in enumerate(drawn(reader, command)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / f"file.{case.reader}"
        file.write_bytes(case.contents)
        argv = command.argv(file, inputs)
        before = files_in(folder)
        ended = execute(argv_of(*argv), cwd=folder, stdin=command.stdin, limit=limit)
        faults.append((case.name, fault(case, command, ended, sorted(files_in(folder) - before))))
    assert faults and [(name, wrong) for name, wrong in faults if wrong] == []
