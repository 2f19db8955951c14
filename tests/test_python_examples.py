"""Examples of docs/PYTHON.md (the first one smaller) and PYTORCH_AND_HUGGING_FACE.md, and the notebook, as written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_rewire import KEPT

DOCUMENT = Path(__file__).parents[1] / "docs" / "PYTHON.md"
OF_MODELS = DOCUMENT.with_name("PYTORCH_AND_HUGGING_FACE.md")


def example(name: str, document: Path = DOCUMENT) -> str:
    """The code below a mark in a document."""
    code = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", document.read_text(), re.DOTALL)
    assert code is not None
    return code[1]


def run(code: str) -> dict[str, Any]:
    """Run it, and return its names."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec"), names)
    return names


def test_language_model() -> None:
    sizes = "STEPS, CONTEXT, BATCH, DEPTH, DIM = "
    code = example("language model")
    assert code.count(sizes) == 1
    small = run(re.sub(f"{sizes}.*", f"{sizes}100, 48, 16, 2, 32", code))
    losses = torch.tensor(small["losses"])
    # better than what the frequency of each byte alone gives
    frequencies = small["manual"].bincount().float() / len(small["manual"])
    unigram = -(frequencies * frequencies.clamp(min=1e-9).log()).sum()
    assert losses[0] > 5 and losses[-10:].mean() < unigram
    # what is written step by step, from a cache, is what the model says of the whole
    model, prompt = small["model"], small["prompt"]
    (written,) = model.generate(prompt, max_new_tokens=5)
    text = torch.cat([prompt, torch.tensor([written])], 1)
    assert model(text)[0, prompt.size(1) - 1 : -1].argmax(-1).tolist() == written


def test_one_layer(capsys: pytest.CaptureFixture[str]) -> None:
    # as after training, norms are not where they start
    moved = "[nn.init.normal_(p) for b in model for n in (b.norm1, b.norm2) for p in n.parameters()]\n"
    code, line = example("one layer"), "before = model(x)"
    assert code.count(line) == 1
    names = run(code.replace(line, moved + line))
    assert capsys.readouterr().out == "tensor(True) tensor(True)\n"
    assert [type(m).__name__ for m in names["model"]] == ["Block"] * 5 + ["WrappedStack"]


def test_analyses(capsys: pytest.CaptureFixture[str]) -> None:
    run(example("analyses"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["post_ln", "b2t", "pre_ln"]
    ratio = {line.partition(":")[0]: float(line.split("layer 18 ")[1].split(";")[0]) for line in lines}
    assert ratio["post_ln"] < ratio["b2t"] < ratio["pre_ln"]


def test_optimizer() -> None:
    names = run(example("optimizer"))
    # CompleteP at four times the base depth: eps in the layers / 4, the rate as it is
    rates = {(g["lr"], g["weight_decay"], g["eps"]): len(g["params"]) for g in names["adamw"].param_groups}
    assert rates == {(3e-3, 0.1, 1e-8 / 4): 8 * 16, (3e-3, 0.1, 1e-8): 2}
    stack, muon, rest = names["stack"], names["muon"], names["rest"]
    own, others = ({p for g in o.param_groups for p in g["params"]} for o in (muon, rest))
    matrices = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")
    assert own == {p for name, p in stack.named_parameters() if name.endswith(matrices)}
    assert own | others == set(stack.parameters()) and not own & others
    before = [p.clone() for p in stack.parameters()]
    stack(torch.randn(5, 3, 32)).square().mean().backward()
    muon.step()
    rest.step()
    assert not any(torch.equal(p, was) for p, was in zip(stack.parameters(), before, strict=True) if p.grad.any())


def test_none_of_it_needs_fairseq() -> None:
    code = example("one layer") + example("analyses") + "\nimport sys; print('fairseq' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", ["rewire", "blocks"])
def test_rewire(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run(example(name, OF_MODELS))
    printed = set(capsys.readouterr().out.split())
    assert printed == {"True"}


def test_optimizer_of_a_model() -> None:
    names = run(example("optimizer", OF_MODELS))
    # the groups have rates, so that one given beside them would do nothing
    assert not re.search(r"(Muon|AdamW)\(.*\blr=", example("optimizer", OF_MODELS))
    model = names["model"]
    words = torch.randint(100, (2, 7))
    model(input_ids=words, labels=words).loss.backward()
    before = [p.clone() for p in model.parameters()]
    names["muon"].step()
    names["adamw"].step()
    moved = [not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True) if p.grad.any()]
    assert all(moved) and len(moved) > 20


def test_wrap() -> None:
    names = run(example("wrap", OF_MODELS))
    assert names["y"].shape == (2, 7, 32)
    assert names["stack"][0].self_attn_connection.norm is names["layers"][0].norm1


def test_the_list_of_wirings_and_the_length_of_the_page() -> None:
    listed = OF_MODELS.read_text().partition("these start as the model that was:")[2].partition("`re_zero` and")[0]
    assert re.findall(r"`(\w+)`", listed) == sorted(KEPT)
    assert len(OF_MODELS.read_text().split()) <= 1100


OF_THE_NOTEBOOK = """
import sys
assert "fairseq" not in sys.modules and "modern_fairseq.compat" not in sys.modules
assert changes["pre_ln"][-1] < 0.5 * changes["pre_ln"][0] and changes["pre_ln"][-1] < changes["post_ln"][-1], changes
last = {wiring: sum(values[-10:]) / 10 for wiring, values in losses.items()}
assert last["post_ln"] > 1.5 and last["pre_ln"] < 0.5 and last["b2t"] < 0.5, last
"""


def test_the_notebook_shows_what_it_says() -> None:
    """It runs as it stands, without fairseq."""
    cells = json.loads(DOCUMENT.with_name("teach.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    start = "import matplotlib\nmatplotlib.use('Agg')\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + code + OF_THE_NOTEBOOK], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
