"""No command runs, computes or believes what is in a hostile file.

Each command is sent ``HOSTILE_SAMPLE`` files, drawn by chance, the same each time; 0: all, which takes more than
an hour.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_lines import COMMANDS, Command
from hostile_files import cases
from limits import limit
from pickle_cases import Case
from running import Run, argv_of, execute, succeed
from tiny_jobs import TRANSLATION
from yaml_configs import config

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
KEPT = r"^hydra/|^out/(\.lock$|downloads/(SHA256SUMS|\.lock)$|work/)"
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
