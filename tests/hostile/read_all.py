"""Reads each file of the corpus by what reads such a file here, in a process that may take one more gigabyte of
memory and of disk.

Prints a line of JSON for each: name, seconds of the processor (others may use the machine too), what came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile_files import cases
from limits import limit_memory

from fairseq_residuals.lab.data.archives import unpack
from fairseq_residuals.lab.data.parallel_text import sentences
from fairseq_residuals.lab.look.training_log import read_log
from fairseq_residuals.lab.recipes.tables.published import load_published
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.loading.checkpoints import load_fairseq

READERS: dict[str, Callable[[Path], Any]] = {
    "checkpoint": lambda path: load_fairseq(path, map_location="cpu"),
    "safetensors": read_checkpoint,
    "log": read_log,
    "archive": lambda path: unpack(path, Path("unpacked"), ("wanted.txt",)),
    "whole": lambda path: unpack(path, Path("unpacked"), ("*",)),
    "json": lambda path: read_record(path),
    "yaml": load_published,
    "sgm": lambda path: list(sentences(path, "sgm")),
}


def outcome(reader: str, path: Path) -> str:
    try:
        READERS[reader](path)
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree("unpacked", ignore_errors=True)
    return "read"


def main(folder: Path) -> None:
    os.chdir(folder)
    for warm in ("checkpoint", "archive"):  # imports are not part of reading
        (folder / "warm").write_bytes(b"")
        outcome(warm, folder / "warm")
    for zipped in (True, False):  # some are made only when a pickle has been opened
        sound = {"model": {"w": torch.zeros(1)}, "args": argparse.Namespace(arch="transformer")}
        torch.save(sound, folder / "warm", _use_new_zipfile_serialization=zipped)
        assert outcome("checkpoint", folder / "warm") == "read"
    limit_memory()
    for number, case in enumerate(case for case in cases() if case.reader in READERS):
        path = folder / f"{number}.{case.reader}"
        path.write_bytes(case.contents)
        begin = time.process_time()
        result = outcome(case.reader, path)
        seconds = time.process_time() - begin
        print(json.dumps([case.name, seconds, result]), flush=True)
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
