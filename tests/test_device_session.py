"""A session on a device: what is done once, what fits into the budget, what failed, and what the results say."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fairseq import options
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.experiments.device_session import __main__ as command
from fairseq_residuals.experiments.device_session import needs, real_lengths, session
from fairseq_residuals.experiments.device_session.agenda import IN_BLOCKS, Piece, pieces
from fairseq_residuals.experiments.device_session.real_lengths import CONTESTANTS, words_a_second, write_corpus
from fairseq_residuals.experiments.device_session.session import LONGEST, Session, check_budget

MACHINE = {"device": "A Device", "torch": "2.0"}


def counting(folder: Path, name: str, status: int = 0, minutes: float = 1) -> Piece:
    """A piece that adds a line to a file whenever it runs."""
    program = f"import sys; open({str(folder / name)!r}, 'a').write('ran\\n'); sys.exit({status})"
    return Piece(name, f"what {name} shows", minutes, [sys.executable, "-c", program])


def times(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines()) if (folder / name).exists() else 0


def result_of(out: Path, name: str) -> str:
    line = re.search(rf"^\| {name} .*$", (out / "README.md").read_text(), re.M)
    assert line is not None
    return line[0].split("|")[3].strip()


def test_what_is_finished_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, todo = tmp_path / "out", [counting(tmp_path, "good"), counting(tmp_path, "bad", status=3)]
    assert not Session(out, MACHINE, todo).run(budget=30)
    assert (result_of(out, "good"), result_of(out, "bad")) == ("passed", "failed, see its log")
    assert not Session(out, MACHINE, todo).run(budget=30)
    assert (times(tmp_path, "good"), times(tmp_path, "bad")) == (1, 1)
    assert not Session(out, MACHINE, todo).run(budget=30, again=True)
    assert (times(tmp_path, "good"), times(tmp_path, "bad")) == (1, 2)
    assert "status 3" not in (out / "README.md").read_text() and "sys.exit(3)" in (out / "logs/bad.log").read_text()


def test_a_piece_that_does_not_fit_is_left_out_and_the_results_say_so(tmp_path: Path) -> None:
    todo = [counting(tmp_path, "long", minutes=5), counting(tmp_path, "short", minutes=1)]
    assert Session(tmp_path / "out", MACHINE, todo).run(budget=2)
    assert (times(tmp_path, "long"), times(tmp_path, "short")) == (0, 1)
    assert result_of(tmp_path / "out", "long") == "not done"
    assert Session(tmp_path / "out", MACHINE, todo).run(budget=6)
    assert (times(tmp_path, "long"), times(tmp_path, "short")) == (1, 1)


def test_a_piece_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LONGEST", 1 / 60)
    slow = Piece("slow", "nothing", 0.1, [sys.executable, "-c", "import time; time.sleep(600)"])
    assert not Session(tmp_path, MACHINE, [slow]).run(budget=1)
    assert result_of(tmp_path, "slow").startswith("stopped after")


def test_a_piece_that_was_interrupted_is_done_by_the_next_call(tmp_path: Path) -> None:
    interrupts = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGINT); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        Session(tmp_path, MACHINE, [Piece("one", "nothing", 1, [sys.executable, "-c", interrupts])]).run(budget=30)
    assert result_of(tmp_path, "one") == "not done"
    assert Session(tmp_path, MACHINE, [counting(tmp_path, "one")]).run(budget=30)
    assert times(tmp_path, "one") == 1 and result_of(tmp_path, "one") == "passed"


@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_every_wiring_is_timed_and_no_piece_may_take_too_long(device: str, tmp_path: Path) -> None:
    todo = pieces(device, tmp_path, tmp_path / "data")
    assert len({piece.name for piece in todo}) == len(todo)
    assert all(piece.minutes < LONGEST for piece in todo)
    timed = {word.partition("+")[0] for piece in todo if "bench" in piece.command for word in piece.command}
    assert {*VARIANTS, IN_BLOCKS} <= timed


def after(flag: str, words: Sequence[str]) -> list[str]:
    """What stands behind a flag; in a line for bash as often as it does."""
    line = shlex.split(words[-1]) if words[0] == "bash" else list(words)
    return [value for name, value in pairwise(line) if name == flag]


def test_what_is_asked_of_a_gpu_is_measured(tmp_path: Path) -> None:
    """Transformer-big in several batches, search at 6 layers, real lengths in larger batches."""
    todo = {piece.name: piece.command for piece in pieces("cuda", tmp_path, tmp_path / "data")}
    assert after("--dims", todo["big"]) == ["big", "big"] and after("--layers", todo["big"]) == ["6", "6"]
    assert len(set(after("--tokens", todo["big"]))) == len(set(after("--markdown", todo["big"]))) == 2
    assert after("--layers", todo["search"]) == ["6"] and after("--tokens", todo["search"]) == ["64x32"]
    assert after("--precision", todo["search"]) == ["fp16"] and "ctranslate2" in todo["search"]
    tokens = {name: int(after("--max-tokens", words)[0]) for name, words in todo.items() if "real" in name}
    assert tokens["real-lengths-large"] > tokens["real-lengths-bf16"] == tokens["real-lengths-fp16"]


def test_what_is_missing_is_said_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name in ("pytest", "babel") else name)
    monkeypatch.setattr(sys, "argv", ["gpu.sh", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert command.main() == 1
    assert "this Python lacks babel, pytest; leave SETUP out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert needs.why_not(*needs.COMPARED) == "" and needs.why_not("babel") == "this Python lacks babel"


@pytest.mark.parametrize("minutes", (0.0, -1.0, float("nan")))
def test_a_budget_of_nothing_is_refused(minutes: float) -> None:
    with pytest.raises(UserError, match="has to be more than 0 minutes"):
        check_budget(minutes)


def test_a_corpus_of_many_lengths(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data", real_lengths.CPU)
    sides = [load_indexed_dataset(str(tmp_path / f"data/train.source-target.{side}")) for side in ("source", "target")]
    lengths = np.array([side.sizes - 1 for side in sides])  # without the end of a sentence
    assert lengths.shape == (2, real_lengths.CPU.pairs)
    assert lengths.min() >= 1 and lengths.max() <= real_lengths.LONGEST
    # four standard errors of the median of a log-normal, 1.25 sigma / sqrt(n) of its logarithm, and rounding down
    error = 4 * 1.25 * real_lengths.SIGMA / real_lengths.CPU.pairs**0.5
    assert np.log(np.median(lengths[0]) + 0.5) == pytest.approx(np.log(real_lengths.MEDIAN), abs=error)
    assert np.corrcoef(lengths)[0, 1] > 0.9
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    write_corpus(tmp_path / "data", real_lengths.CPU)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")} == before


@pytest.mark.parametrize("name", CONTESTANTS)
def test_fairseq_knows_the_flags_of_every_contestant(name: str, tmp_path: Path) -> None:
    argv = real_lengths.command(tmp_path, name, "bf16", "cpu", real_lengths.CPU)[1:]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    assert args.max_tokens == real_lengths.CPU.max_tokens and args.cpu
    assert getattr(args, "packed", None) == {"packed": "same", "packed full": "full"}.get(name)


def test_words_a_second_are_read_after_the_warm_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    records = [{"epoch": 1, "update": 0.1, "num_updates": str(n), "wps": f"{n}00"} for n in range(1, 5)]
    lines = [f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(record)}" for record in records]
    log.write_text("\n".join([*lines, '| INFO | train | {"epoch": 1, "train_wps": "7", "train_num_updates": "4"}', ""]))
    assert words_a_second(log) == [300.0, 400.0]
