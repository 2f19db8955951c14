"""Analyses of models of Python files and of the library, where fairseq cannot be imported."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look import subjects
from fairseq_residuals.lab.look.change import change
from fairseq_residuals.lab.look.gradients import parameter_gradients
from fairseq_residuals.lab.look.similarity import similarity
from fairseq_residuals.lab.look.subjects import of_python_file

MODEL = """
import torch
from torch import nn
from fairseq_residuals import TokenEmbedding, build_stack

torch.manual_seed(1)
embed = TokenEmbedding(50, 16)
stack = build_stack("b2t", depth=4, dim=16, heads=2, ffn_dim=32, task="language_model", dropout=0.5)
model, tokens = nn.ModuleList([embed, stack]), torch.randint(4, 50, (3, 8))

def loss():
    logits = stack(embed(tokens)) @ embed.embed_tokens.weight.T
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.T.flatten())
"""
WITHOUT = """
import importlib.util, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli", "hydra", "omegaconf"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "fairseq" else find_spec(name, package)
sys.meta_path.insert(0, Blocked())
from fairseq_residuals.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


def bare(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *arguments, "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "MODERN_FAIRSEQ": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where fairseq cannot be found, in this process."""
    monkeypatch.setattr(subjects, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("command", "rows"),
    [("gradients", 4), ("gradients --parts --at decoder:1,4", 14), ("gradients --parts", 7), ("similarity", 16)],
)
def test_a_python_file_is_analysed(command: str, rows: int, file: Path, tmp_path: Path) -> None:
    if command.endswith("--parts"):
        file.write_text(MODEL.replace("language_model", "encoder"))
    if command == "similarity":
        done = bare(command, "--python", str(file), folder=tmp_path)
        assert done.returncode == 0, done.stderr
    else:
        assert main([*command.split(), "--python", str(file), "--out", str(tmp_path)]) == 0
    name = command.split()[0]
    found = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
    assert len(found) == rows and {row["model"] for row in found} == {"mine"}
    assert (tmp_path / f"{name}.png").exists()


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_wirings_are_analysed(task: str, tmp_path: Path, without: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "list_variants", lambda: ["pre_ln"])
    sizes = ["--layers", "3", "--dim", "16", "--heads", "2", "--ffn-dim", "32", "--vocabulary", "50", "--task", task]
    wirings = ["--variants", "all", "hyper_connections/n=2"]
    assert main(["gradients", *wirings, *sizes, "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "gradients.csv").read_text().splitlines()))
    stacks = ("encoder", "decoder") if task == "translation" else ("decoder",)
    places = [(wiring, stack) for wiring in ("pre_ln", "hyper_connections") for stack in stacks for _ in range(3)]
    assert [(row["wiring"], row["stack"]) for row in rows] == places
    assert all(float(row["gradient_norm"]) > 0 for row in rows)


def test_the_numbers_are_those_of_the_files_model(file: Path, tmp_path: Path) -> None:
    assert main(["gradients", "--python", str(file), "--out", str(tmp_path)]) == 0
    subject = of_python_file(file)
    file.write_text(f"{file.read_text()}\nmodel[1].layerdrop = 1.0\n")
    training = of_python_file(file, training=True)
    # a skipped layer would leave the numbers of those above to wrong ones
    assert len(similarity(training)["decoder"]) == 4 and len(change(training)["decoder"]) == 3
    assert all(parameter_gradients(training)["decoder"]) and training.model[1].layerdrop == 1.0
    assert not subject.model.training and training.model.training
    subject.loss().backward()
    layer = subject.model[1][2]
    norm = torch.cat([p.grad.flatten() for p in layer.parameters()]).norm().item()
    row = list(csv.DictReader((tmp_path / "gradients.csv").read_text().splitlines()))[2]
    assert float(row["gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    assert (row["model"], row["wiring"], row["stack"], row["layer"]) == ("mine", "b2t", "decoder", "3")


def test_a_file_imports_what_lies_beside_it(tmp_path: Path) -> None:
    """And not what lies beside another one."""
    for depth in (1, 2):
        (tmp_path / str(depth)).mkdir()
        (tmp_path / str(depth) / "beside.py").write_text(f"depth = {depth}")
        (tmp_path / str(depth) / "mine.py").write_text("from beside import *" + MODEL.replace("depth=4", "depth=depth"))
    assert [len(of_python_file(tmp_path / depth / "mine.py").model[1]) for depth in "12"] == [1, 2]


def test_explain(file: Path, tmp_path: Path) -> None:
    sizes = ["--layers", "3-1", "--dim", "16", "--heads", "2", "--ffn-dim", "32"]
    done = bare("explain", str(file), "resi_dual/alpha=2", *sizes, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "explain.csv").read_text().splitlines()))
    drawn = [f"{file}, decoder", "resi_dual/alpha=2, encoder", "resi_dual/alpha=2, decoder"]
    assert list(dict.fromkeys(row["stack"] for row in rows)) == drawn
    assert "passes 0 norms and 0 sub-layers" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gradients", "--checkpoint", "b2t.pt"], "fairseq is not installed"),
        (["gradients", "--variants", "b2t", "--residual-args", "x=1"], "--residual-args is no flag of this command"),
        (["gradients", "--vocabulary", "4"], "--vocabulary must be at least 5"),
        (["gradients", "--task", "speech_to_text"], "--task speech_to_text has models of fairseq alone"),
        (["gradients", "--python", "none.py"], "there is no file none.py"),
        (["change", "--python", "a.py", "--ffn-dim", "8"], "--ffn-dim has no meaning for --python"),
        (["change", "--python", "a.py", "--dropout", "0.1"], "--dropout has no meaning for --python"),
        (["change", "--python", "a.py", "--sentences", "3"], "--sentences has no meaning for --python"),
        (["change", "--python", "a.py", "--seed", "2"], "--seed has no meaning for --python"),
        (["explain", "b3t"], "unknown wiring 'b3t'"),
        (["explain", "resi_dual/alpha=2,alpha=3"], "twice"),
        (["explain", "b2t", "--layers", "1-2-3"], "--layers must be a number such as 18"),
        (["explain", "b2t", "--task", "speech_to_text"], "--task speech_to_text has models of fairseq alone"),
    ],
)
def test_mistakes(
    arguments: list[str], sentence: str, tmp_path: Path, without: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err.splitlines()[-1]


WRAPPED = """
from fairseq_residuals import wrap
from torch import nn
model, loss = wrap("b2t", [(nn.Identity(), nn.Identity())], dim=8, heads=1, ffn_dim=8), lambda: 0
"""


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("change --python", "x = 1", "must define `model`"),
        ("change --python", MODEL.replace("def loss", "def loose"), "and `loss`"),
        ("explain", WRAPPED, "explain draws stacks of build_stack"),
    ],
)
def test_a_file_that_will_not_do(command: str, text: str, sentence: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "little.py").write_text(text)
    assert main([*command.split(), str(tmp_path / "little.py"), "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
