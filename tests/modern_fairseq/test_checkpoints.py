"""Checkpoints load by an allow-list; what is damaged, foreign or does not fit is named."""

import argparse
import collections
import fractions
import importlib

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging.meters import AverageMeter
from omegaconf import OmegaConf

from fairseq_residuals_errors import UserError
from modern_fairseq.loading import checkpoints

TYPES = (torch.float32, torch.bool, torch.uint8, torch.int16, torch.complex64)


def everything():
    """As fairseq's own checkpoints; test_safe_loading.py has all that they may hold."""
    return {
        "args": argparse.Namespace(arch="transformer", lr=[0.1], layers=None),
        "cfg": OmegaConf.create({"model": {"layers": 6, "name": "${task}"}, "task": "x", "lr": [0.1, None, True]}),
        "model": {str(dtype): torch.ones(1, 4, dtype=dtype).expand(3, 4) for dtype in TYPES},
        "extra_state": {"meters": collections.OrderedDict(loss=AverageMeter()), "best": None},
    }


def test_a_file_is_named(tmp_path):
    """Also one that is open; tests/hostile has the refusals of others."""
    with pytest.raises(UserError, match=f"there is no checkpoint {tmp_path}"):
        checkpoints.load(tmp_path / "x.pt")
    (tmp_path / "checkpoint.pt").write_bytes(b"half")
    with open(tmp_path / "checkpoint.pt", "rb") as file, pytest.raises(UserError, match="damaged") as caught:
        checkpoints.load(file)
    assert str(tmp_path / "checkpoint.pt") in str(caught.value)


@pytest.mark.parametrize("content", [{"weight": torch.zeros(2)}, [1, 2], {"model": {}}])
def test_another_programs_file_is_no_fairseq_checkpoint(tmp_path, content):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(UserError, match="not a fairseq checkpoint"):
        checkpoints.load_fairseq(tmp_path / "x.pt")


def test_fairseq_itself_loads_this_way(tmp_path):
    state = {
        **everything(),
        "optimizer_history": [{"criterion_name": "x", "optimizer_name": "y", "num_updates": 3}],
    }
    state["optimizer_history"][0]["lr_scheduler_state"] = {}
    state["extra_state"]["train_iterator"] = {"epoch": 1}
    state["args"] = None
    path = str(tmp_path / "checkpoint.pt")
    checkpoint_utils.torch_persistent_save(state, path)
    loaded = checkpoint_utils.load_checkpoint_to_cpu(path)
    assert loaded["cfg"].model.layers == 6 and loaded["extra_state"]["meters"] == {"loss": None}
    assert all(
        buffer.dtype == dtype and buffer.all() for dtype, buffer in zip(TYPES, loaded["model"].values(), strict=True)
    )
    checkpoint_utils.torch_persistent_save({**state, "task_state": fractions.Fraction(1)}, path)
    with pytest.raises(UserError, match=r"fractions\.Fraction"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


@pytest.mark.parametrize(
    "name",
    [
        "fairseq.models.text_to_speech.vocoder",
        "fairseq.models.speech_to_text.xm_transformer",
        "fairseq.data.codedataset",
        "fairseq.modules.quantization.pq.em",
    ],
)
def test_whatever_else_reads_files_of_torch_does_so_safely(name, tmp_path):
    torch.save({"f0_mean": torch.ones(1)}, tmp_path / "good.pt")
    torch.save(fractions.Fraction(1), tmp_path / "bad.pt")
    load = importlib.import_module(name).torch.load
    assert load(tmp_path / "good.pt")["f0_mean"].item() == 1
    with pytest.raises(UserError, match=r"fractions\.Fraction"):
        load(tmp_path / "bad.pt")


@pytest.mark.parametrize(
    "entry",
    [
        {"model": [torch.ones(1)]},
        {"model": {1: torch.ones(1)}},
        {"model": {"w": 1.0}},
        {"args": ["transformer"]},
        {"cfg": "transformer"},
        {"extra_state": [1]},
        {"optimizer_history": {}},
        {"optimizer_history": [1]},
        {"task_state": 1},
    ],
    ids=str,
)
def test_entries_of_another_type_are_refused(entry, tmp_path):
    torch.save({"model": {}, "args": None, "cfg": {}} | entry, tmp_path / "x.pt")
    with pytest.raises(UserError, match=rf"x\.pt is damaged: its .*{next(iter(entry))[:4]}"):
        checkpoints.load_fairseq(tmp_path / "x.pt")
