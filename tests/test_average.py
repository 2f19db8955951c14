"""``fairseq-residuals average`` against what fairseq's average_checkpoints script is defined to do."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.wirings.core.errors import UserError


def write(path: Path, model: dict[str, Any], number: int = 0) -> Path:
    """A checkpoint as fairseq-train writes them, less the optimizer."""
    cfg = {"model": Namespace(arch="transformer_b2t_6l"), "task": {"_name": "translation"}}
    extra_state = {"epoch": number, "train_iterator": {"epoch": number}}
    torch.save({"args": None, "cfg": cfg, "model": model, "extra_state": extra_state}, path)
    return path


def average(*inputs: Path, output: Path, flags: tuple[object, ...] = ()) -> dict[str, Any]:
    arguments = ["--inputs", *map(str, inputs), "--output", str(output), *map(str, flags)]
    assert main(["average", *arguments]) == 0
    return torch.load(output, weights_only=False)


def refused(capsys: pytest.CaptureFixture[str], output: Path, *arguments: object) -> str:
    """The one sentence with which a command is refused that must write nothing."""
    before = sorted(output.parent.iterdir())
    assert main(["average", *map(str, arguments), "--output", str(output)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("fairseq-residuals average: error: ")
    assert captured.err.count("\n") == 1
    assert sorted(output.parent.iterdir()) == before
    return captured.err


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 5), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**20), tied=st.booleans())
def test_mean(tmp_path_factory: pytest.TempPathFactory, n: int, dtype: torch.dtype, seed: int, tied: bool) -> None:
    folder = tmp_path_factory.mktemp("mean")
    generator = torch.Generator().manual_seed(seed)
    models, files = [], []
    for i in range(n):
        one = (100 * torch.randn(3, 4, generator=generator)).to(dtype)
        other = one if tied else (100 * torch.randn(2, generator=generator)).to(dtype)
        models.append({"decoder.embed": one, "decoder.output": other})
        files.append(write(folder / f"part{i}.pt", models[-1], number=i))
    result = average(*files, output=folder / "average.pt")
    assert list(result["model"]) == ["decoder.embed", "decoder.output"]
    for name, value in result["model"].items():
        parts = np.stack([model[name].double().numpy() for model in models])
        if not dtype.is_floating_point:
            assert value.dtype == torch.int64
            np.testing.assert_array_equal(value.numpy(), parts.sum(0) // n)
        else:
            # half precision would be wrong in the third digit
            assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            np.testing.assert_allclose(value.double().numpy(), parts.mean(0), rtol=0, atol=1e-4)
    assert result["extra_state"] == {"epoch": 0, "train_iterator": {"epoch": 0}}
    assert result["cfg"]["model"] == Namespace(arch="transformer_b2t_6l")


@pytest.fixture
def training_run(tmp_path: Path) -> Path:
    """Checkpoints of epochs 1 to 12 and of updates 500 to 6000, whose one weight is their number."""
    folder = tmp_path / "run"
    folder.mkdir()
    for epoch in range(1, 13):
        write(folder / f"checkpoint{epoch}.pt", {"w": torch.tensor([float(epoch)])}, epoch)
        write(folder / f"checkpoint_{epoch}_{500 * epoch}.pt", {"w": torch.tensor([500.0 * epoch])}, epoch)
    others = (
        "checkpoint_last.pt",
        "checkpoint_best.pt",
        "checkpoint.best_loss_3.10.pt",
        "checkpoint99.pt.tmp",
    )
    for name in others:
        write(folder / name, {"w": torch.tensor([1e6])})
    return folder


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        (("--num-epoch-checkpoints", 3), ["checkpoint12.pt", "checkpoint11.pt", "checkpoint10.pt"]),
        (("--num-epoch-checkpoints", 1), ["checkpoint12.pt"]),
        (
            ("--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 10),
            ["checkpoint10.pt", "checkpoint9.pt"],
        ),
        (("--num-update-checkpoints", 2), ["checkpoint_12_6000.pt", "checkpoint_11_5500.pt"]),
        (
            ("--num-update-checkpoints", 2, "--checkpoint-upper-bound", 1499),
            ["checkpoint_2_1000.pt", "checkpoint_1_500.pt"],
        ),
        (
            ("--num-update-checkpoints", 3, "--checkpoint-upper-bound", 1500),
            ["checkpoint_3_1500.pt", "checkpoint_2_1000.pt", "checkpoint_1_500.pt"],
        ),
    ],
)
def test_last_of_a_training_run(
    training_run: Path, flags: tuple[object, ...], taken: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = training_run / "checkpoint_average.pt"
    result = average(training_run, output=output, flags=flags)
    weights = [torch.load(training_run / name, weights_only=False)["model"]["w"].item() for name in taken]
    assert result["model"]["w"].item() == pytest.approx(np.mean(weights))
    latest = torch.load(training_run / taken[0], weights_only=False)
    assert result["extra_state"] == latest["extra_state"]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"averaging {len(taken)} checkpoints:",
        *(str(training_run / name) for name in taken),
        f"wrote {output}",
    ]


def test_flags_that_do_not_fit(training_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = training_run / "average.pt"
    for flags, found in (
        (("--num-epoch-checkpoints", 13), "holds 12 epoch checkpoints, 13 are needed"),
        (("--num-update-checkpoints", 13), "holds 12 update checkpoints, 13 are needed"),
        (
            ("--num-update-checkpoints", 2, "--checkpoint-upper-bound", 999),
            "holds 1 update checkpoints up to update 999, 2 are needed",
        ),
        (("--num-epoch-checkpoints", 0), "must be at least 1, not 0"),
    ):
        assert found in refused(capsys, output, "--inputs", training_run, *flags)
    one, two = training_run / "checkpoint1.pt", training_run / "checkpoint2.pt"
    n = ("--num-epoch-checkpoints", 1)
    assert "needs --inputs to be one folder" in refused(capsys, output, "--inputs", one, two, *n)
    assert "is not a folder" in refused(capsys, output, "--inputs", one, *n)
    assert "is a folder: add --num-epoch" in refused(capsys, output, "--inputs", training_run)
    bound = ("--checkpoint-upper-bound", 3)
    assert "--checkpoint-upper-bound needs" in refused(capsys, output, "--inputs", one, *bound)
    assert "is one of the checkpoints" in refused(capsys, one, "--inputs", two, one)
    last = training_run / "checkpoint12.pt"
    assert "is one of the checkpoints" in refused(capsys, last, "--inputs", training_run, *n)
    with pytest.raises(SystemExit) as exit_:
        main(["average", "--inputs", "x", "--output", "y", *map(str, n), "--num-update-checkpoints", "1"])
    assert exit_.value.code == 2


def test_output_that_cannot_be_written(training_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ("--inputs", training_run / "checkpoint1.pt")
    assert main(["average", *map(str, inputs), "--output", str(training_run / "no" / "a.pt")]) == 1
    assert f"there is no folder {training_run / 'no'}" in capsys.readouterr().err
    (training_run / "folder").mkdir()
    assert "is a folder" in refused(capsys, training_run / "folder", *inputs)


def test_checkpoints_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = torch.ones(2), torch.ones(3)
    good = write(tmp_path / "good.pt", {"a": one, "b": two})
    more = write(tmp_path / "more.pt", {"a": one, "b": two, "c": one})
    other = write(tmp_path / "other.pt", {"a": one, "b": one})
    whole = write(tmp_path / "whole.pt", {"a": one, "b": two.long()})
    wave = write(tmp_path / "wave.pt", {"a": one, "b": two.cfloat()})
    output = tmp_path / "average.pt"
    assert f"{more} has c, {good} does not" in refused(capsys, output, "--inputs", good, more)
    assert f"{more} has c, {good} does not" in refused(capsys, output, "--inputs", more, good)
    assert "b is torch.float32 (3,) in the one, torch.float32 (2,)" in refused(capsys, output, "--inputs", good, other)
    assert "b is torch.int64 (3,) in the one, torch.float32 (3,)" in refused(capsys, output, "--inputs", whole, good)
    assert "b is torch.int64 (3,) in the one, torch.complex64 (3,)" in refused(capsys, output, "--inputs", whole, wave)
    assert f"there is no checkpoint {tmp_path / 'none.pt'}" in refused(
        capsys, output, "--inputs", good, tmp_path / "none.pt"
    )


def test_a_link_stays_one_and_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.pt", {"a": torch.ones(2)})
    (tmp_path / "link.pt").symlink_to(tmp_path / "target.pt")
    average(one, output=tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink() and (tmp_path / "target.pt").is_file()
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in refused(capsys, tmp_path / "pipe", "--inputs", one)


def test_an_old_output_is_replaced_only_by_a_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(tmp_path / "good.pt", {"a": torch.ones(2)})
    output = write(tmp_path / "average.pt", {"a": torch.zeros(2)})
    before = output.read_bytes()
    write_all = torch.save

    def disk_full(value: Any, file: IO[bytes]) -> None:
        write_all(value, file)
        file.truncate(100)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    assert "No space left on device" in refused(capsys, output, "--overwrite", "--inputs", good)
    assert output.read_bytes() == before
    monkeypatch.undo()
    assert average(good, output=output, flags=("--overwrite",))["model"]["a"].tolist() == [1, 1]


def test_the_same_checkpoint_gives_the_same_bytes_under_any_name(tmp_path: Path) -> None:
    for name in ("a.pt", "another name.pt"):
        save({"model": {"weight": torch.arange(9.0)}}, tmp_path / name)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "another name.pt").read_bytes()


def test_a_folder_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    """As of a Python caller: the command looks for the folder before it reads anything."""
    path = tmp_path / "missing" / "average.pt"
    with pytest.raises(UserError) as caught:
        save({"model": {"weight": torch.zeros(2)}}, path)
    assert str(caught.value) == f"cannot write {path}: No such file or directory"


def test_what_would_be_averaged_wrongly_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        write(tmp_path / name, {"a": torch.full((2,), value)}) for name, value in (("1.pt", 1.0), ("2.pt", 3.0))
    )
    (tmp_path / "again.pt").symlink_to(one)
    output = tmp_path / "average.pt"
    assert "again.pt is given twice" in refused(capsys, output, "--inputs", one, two, tmp_path / "again.pt")
    bad = write(tmp_path / "bad.pt", {"a": torch.tensor([1.0, torch.nan])})
    for inputs in ((bad,), (one, bad)):
        assert "bad.pt: a is not finite" in refused(capsys, output, "--inputs", *inputs)
    assert average(one, two, output=output)["model"]["a"].tolist() == [2, 2]
    assert "is there already; --overwrite replaces it" in refused(capsys, output, "--inputs", one)
    assert main(["average", "--inputs", str(one), "--output", str(output), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("key", "other", "said"),
    [
        ("encoder_attention_heads", 4, "encoder_attention_heads is 2 in the one, 4 in the other"),
        ("activation_fn", "gelu", "activation_fn is relu in the one, gelu in the other"),
        # B2T's parameters are Post-LN's
        ("residual", "post_ln", r"wired by b2t\(norm_type=layer,.*, the other by post_ln\(norm_type=layer,"),
    ],
)
def test_parameters_that_compute_something_else(
    key: str, other: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"arch": "x", "residual": "b2t", "encoder_attention_heads": 2, "activation_fn": "relu"}
    for name, changed in (("one.pt", {}), ("two.pt", {key: other})):
        torch.save({"args": Namespace(**settings | changed), "model": {"w": torch.zeros(2)}}, tmp_path / name)
    files = (tmp_path / "one.pt", tmp_path / "two.pt")
    assert re.search(said, refused(capsys, tmp_path / "out.pt", "--inputs", *files))
