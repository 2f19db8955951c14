"""A wiring in a notebook: a class is enough to build, wrap, rewire and train; registering is for publishing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_residuals import (
    Connection,
    EncoderDecoder,
    LanguageModel,
    Site,
    UserError,
    Variant,
    build_stack,
    register_norm,
    register_variant,
    rewire,
    wrap,
)
from fairseq_residuals.__main__ import main
from fairseq_residuals.wirings.core import norms, registry
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.config import option
from tests.test_rewire import NanoBlock

SIZES: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32}


class Halved(Connection):
    """Pre-LN whose branches start at half of their size."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()
        self.gain = nn.Parameter(torch.tensor(0.5))

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["x"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": s["x"] + self.gain * y}


class Scaled(Variant):
    connection = Halved

    @dataclass(frozen=True)
    class Config(Variant.Config):
        factor: float = option(1.0, "on the output", minimum=0.0, maximum=10.0)

    def close(self, s: Stream) -> Tensor:
        return self.config.factor * s["x"]  # type: ignore[no-any-return]


def test_a_connection_is_enough() -> None:
    torch.manual_seed(1)
    stack: Any = build_stack(Halved, **SIZES)
    torch.manual_seed(1)
    plain: Any = build_stack("pre_ln", **SIZES, options={"final_norm": False})
    x = torch.randn(5, 3, 16)
    for module in stack.modules():
        if isinstance(module, Halved):
            module.gain.data.fill_(1.0)
    torch.testing.assert_close(stack(x), plain(x))
    stack(x).square().mean().backward()
    assert all(p.grad is not None for p in stack.parameters())
    assert "Halved" in repr(stack)
    torch.testing.assert_close(pickle.loads(pickle.dumps(stack))(x), stack(x))


def test_options_of_a_class() -> None:
    x = torch.randn(5, 3, 16)
    outputs = []
    for factor in (1.0, 2.0):
        torch.manual_seed(1)
        outputs.append(build_stack(Scaled, **SIZES, options={"factor": factor, "norm_type": "rms"})(x))
    torch.testing.assert_close(outputs[1], 2 * outputs[0])
    with pytest.raises(UserError, match="wiring 'Scaled' has no option 'size'"):
        build_stack(Scaled, **SIZES, options={"size": 1})
    with pytest.raises(UserError, match="a wiring is a name, or a class that derives from Connection or Variant"):
        build_stack(nn.Linear, **SIZES)  # type: ignore[arg-type]


def test_whole_models_take_classes(tmp_path: Path) -> None:
    language_model = LanguageModel(Halved, vocab=20, **SIZES)
    pair = EncoderDecoder(Halved, vocab=20, **SIZES)
    words = torch.randint(4, 20, (2, 5))
    assert len(language_model.generate(words, max_new_tokens=3)) == len(pair.generate(words, max_new_tokens=3)) == 2
    for model, loss in ((language_model, language_model.loss(words)), (pair, pair.loss(words, words))):
        loss.backward()
        gains = [p for name, p in model.named_parameters() if name.endswith("gain")]
        assert gains and all(p.grad is not None for p in gains)
        with pytest.raises(UserError, match="load would not know Halved: give the name that register_variant"):
            model.save(tmp_path)


def test_wrap_and_rewire_take_classes() -> None:
    layers = [[nn.Linear(16, 16), nn.Linear(16, 16)]]
    assert wrap(Halved, layers, dim=16)(torch.randn(5, 3, 16)).shape == (5, 3, 16)
    model = nn.Module()
    model.h = nn.ModuleList([NanoBlock(), NanoBlock()])
    model.forward = lambda x: model.h[1](model.h[0](x))  # type: ignore[method-assign,index]
    x = torch.randn(2, 5, 16)
    before = model(x)
    rewire(model, Halved, batch=x, start="paper")
    assert not torch.allclose(model(x), before)
    model.get_parameter("h.0.wiring.self_attn_connection.gain").data.fill_(1.0)
    for name, p in model.named_parameters():
        if name.endswith("gain"):
            p.data.fill_(1.0)
    torch.testing.assert_close(model(x), before)


def test_a_cell_may_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))

    def cell(factor: float) -> type[Variant]:
        @register_variant("of_a_cell")
        class Cell(Variant):
            title, paper, year, verified = "Cell", "none", 2026, "none"
            connection = Halved

            @classmethod
            def equations(cls, o: Any) -> tuple[str, ...]:
                return (f"x = x + {factor} F(x)",)

        return Cell

    cell(1.0)
    again = cell(2.0)
    assert registry.VARIANTS["of_a_cell"] is again


def test_a_command_imports_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(norms, "_FACTORIES", {})
    file = tmp_path / "of_a_file.py"
    file.write_text(
        "from torch import nn\nfrom fairseq_residuals import Variant, register_norm\n"
        "from tests.test_own_wiring import Halved\nregister_norm('squared', nn.RMSNorm)\n"
        "class Mine(Variant):\n    connection = Halved\n"
    )
    assert main(["show", "of_a_file", "--import", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "as the file has them" in shown and "or derf or squared" in shown
    assert main(["--import", str(tmp_path / "none.py"), "list"]) == 1
    assert "none.py fails: FileNotFoundError" in capsys.readouterr().err
    assert main(["--import", str(tmp_path), "list"]) == 1  # a folder, as --user-dir takes it
    assert "give one whose name ends in .py" in capsys.readouterr().err


class Centred(nn.Module):
    """x minus its mean, times a gain: no argument but the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True))


@pytest.fixture
def _no_further_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_FACTORIES", {})


@pytest.mark.usefixtures("_no_further_norms")
@pytest.mark.parametrize("way", ["argument", "option", "name"])
def test_a_norm_of_ones_own(way: str) -> None:
    if way == "name":
        register_norm("middle", Centred)
    kind: Any = "middle" if way == "name" else Centred
    given: dict[str, Any] = {"options": {"norm_type": kind}} if way == "option" else {"norm_type": kind}
    stack = build_stack("b2t", **SIZES, **given)
    assert {type(m) for m in stack.modules() if norms.is_norm(m)} == {Centred}
    x = torch.randn(5, 3, 16)
    plain = build_stack("b2t", **SIZES)
    plain.load_state_dict(stack.state_dict(), strict=False)
    # whose norms are x minus its mean, too, where they divide by nothing
    for module in plain.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = lambda x: x - x.mean(-1, keepdim=True)  # type: ignore[method-assign]
    torch.testing.assert_close(stack(x), plain(x))


@pytest.mark.usefixtures("_no_further_norms")
def test_a_norm_is_given_what_it_has_arguments_for() -> None:
    seen = []

    def make(width: int, eps: float = 0.5) -> nn.Module:
        seen.append((width, eps))
        return nn.RMSNorm(width, eps=eps)

    register_norm("made", make)
    build_stack("pre_ln", **SIZES, norm_type="made")
    build_stack("pre_ln", **SIZES, norm_type="made", norm_eps=0.25)
    assert set(seen) == {(16, 0.5), (16, 0.25)}
    with pytest.raises(UserError, match="valid: layer or rms or scalenorm or dyt or derf or made"):
        build_stack("pre_ln", **SIZES, norm_type="mad")
    with pytest.raises(UserError, match="'rms' cannot name a norm"):
        register_norm("rms", make)
    # one that was given and not passed on would be ignored
    with pytest.raises(UserError, match="norm_eps would do nothing: a norm of norm_type=Centred has no argument eps"):
        build_stack("pre_ln", **SIZES, norm_type=Centred, norm_eps=0.25)


@pytest.mark.usefixtures("_no_further_norms")
def test_two_norms_of_one_name_are_refused() -> None:
    """Where both were in one stack, the later was in the place of both, and a saved model was loaded with it."""
    one, other = (type("Norm", (base,), {"__module__": base.__name__}) for base in (nn.LayerNorm, nn.RMSNorm))
    again = type("Norm", (nn.RMSNorm,), {"__module__": "LayerNorm"})
    with pytest.raises(UserError, match="two norms are called Norm"):
        build_stack("post_ln:0-0,pre_ln:1-1", **SIZES, options={"post_ln.norm_type": one, "pre_ln.norm_type": other})
    stack = build_stack("pre_ln", **SIZES, norm_type=again)  # defined anew
    assert isinstance(stack.wiring.norm, nn.RMSNorm)


@pytest.mark.usefixtures("_no_further_norms")
def test_a_norm_of_ones_own_is_saved_by_name(tmp_path: Path) -> None:
    model = LanguageModel("pre_ln", vocab=20, **SIZES, norm_type=Centred).eval()
    model.save(tmp_path)
    words = torch.randint(1, 20, (2, 5))
    torch.testing.assert_close(LanguageModel.load(tmp_path).eval()(words), model(words))
    norms._FACTORIES.clear()
    with pytest.raises(UserError, match="'Centred' is not valid for option 'norm_type'"):
        LanguageModel.load(tmp_path)


@pytest.mark.usefixtures("_no_further_norms")
def test_following_the_page_adds_a_norm() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "EXTEND.md"
    section = page.read_text(encoding="utf-8").partition("## A norm\n")[2]
    exec(section.partition("```python\n")[2].partition("```")[0], {})
    stack = build_stack("b2t", **SIZES, norm_type="max")
    # the last norm of a layer divides by the largest magnitude
    largest = stack(torch.randn(5, 3, 16)).abs().amax(-1)
    torch.testing.assert_close(largest, torch.ones(5, 3))
