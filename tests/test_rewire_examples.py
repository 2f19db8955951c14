"""The examples of docs/PYTORCH_AND_HUGGING_FACE.md, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from test_python_examples import example, run

from tests.test_rewire import KEPT

DOCUMENT = Path(__file__).parents[1] / "docs" / "PYTORCH_AND_HUGGING_FACE.md"


@pytest.mark.parametrize("name", ["rewire", "blocks"])
def test_rewire(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run(example(name, DOCUMENT))
    printed = set(capsys.readouterr().out.split())
    assert printed == {"True"}


def test_optimizer() -> None:
    names = run(example("optimizer", DOCUMENT))
    # the groups have rates, so that one given beside them would do nothing
    assert not re.search(r"(Muon|AdamW)\(.*\blr=", example("optimizer", DOCUMENT))
    model = names["model"]
    words = torch.randint(100, (2, 7))
    model(input_ids=words, labels=words).loss.backward()
    before = [p.clone() for p in model.parameters()]
    names["muon"].step()
    names["adamw"].step()
    moved = [not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True) if p.grad.any()]
    assert all(moved) and len(moved) > 20


def test_wrap() -> None:
    names = run(example("wrap", DOCUMENT))
    assert names["y"].shape == (2, 7, 32)
    assert names["stack"][0].self_attn_connection.norm is names["layers"][0].norm1


def test_the_list_of_wirings() -> None:
    listed = DOCUMENT.read_text().partition("these start as the model that was:")[2].partition("`re_zero` and")[0]
    assert re.findall(r"`(\w+)`", listed) == sorted(KEPT)


def test_the_length() -> None:
    assert len(DOCUMENT.read_text().split()) <= 1100
