"""What takes part in the benchmark: names, flags, and libraries that may be missing."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from bench_cases import TINY, here, train

from fairseq_residuals.lab.bench.entries import Case, cases, chosen, load, parse, parse_also
from fairseq_residuals.lab.bench.fairseq_models import Training, network, settings_of
from fairseq_residuals.lab.bench.rounds import Failed
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS


def test_a_variant_with_options() -> None:
    found = parse("pre_ln/final_norm=false")
    assert found.name == "pre_ln/final_norm=false" and found.arch == "transformer_pre_ln"
    assert settings_of(found, TINY).residual_args == parse_settings("final_norm=false")
    listed = settings_of(parse("post_ln:0-0,pre_ln:1-1"), TINY)
    assert listed.residual == "post_ln:0-0,pre_ln:1-1"


def parse_settings(options: str) -> str:
    return settings_of(replace(parse("pre_ln"), flags=("--residual-args", options)), TINY).residual_args


def test_also() -> None:
    found = parse_also("mine = stock MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=5 --dropout=0.3", parse)
    assert found.name == "mine" and found.network == parse("stock").network
    assert found.environment == {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "5"}
    assert settings_of(found, TINY).dropout == 0.3


def test_flags_for_all_come_last() -> None:
    args = Namespace(beside=["stock-lean"], variants=["b2t"], also=["x=b2t --dropout=0.3"], further=["--dropout=0.2"])
    assert [settings_of(c, TINY).dropout for c in chosen(args, parse)] == [0.2] * 3
    with pytest.raises(UserError, match="'b2t' is asked for twice"):
        chosen(Namespace(beside=["b2t"], variants=["b2t"], also=[], further=[]), parse)


def test_every_wiring_is_an_entry() -> None:
    for name in VARIANTS:
        if f"transformer_{name}" in ARCHITECTURES:
            assert settings_of(parse(name), TINY).arch == f"transformer_{name}"


@pytest.mark.parametrize("name", ["post_ln", "admin", "mhc"])  # one stream; what is measured first; several streams
def test_a_wiring_is_measured(name: str) -> None:
    trained = train(name)
    parameters = list(network(parse(name), TINY).model.parameters())
    assert trained["parameters"] == sum(p.numel() for p in parameters)
    assert trained["tokens"] == 3 * 5 and trained["peak_bytes"] > 50 * 2**20
    assert 0 < trained["forward"] + trained["backward"] + trained["optimizer"] <= trained["step"] * (1 + 1e-9)
    found = here("generate", {"entry": asdict(parse(name)), "case": asdict(TINY)}, 0)
    assert found["tokens"] == 3 * (5 + 1) and found["step"] > 0


def test_sizes_reach_the_model() -> None:
    case = replace(TINY, layers="3-2", dim=24, ffn_dim=40, heads=4, vocabulary=50)
    model = network(parse("b2t"), case).model
    assert (len(model.encoder.layers), len(model.decoder.layers)) == case.depths == (3, 2)
    layer = model.decoder.layers[1]
    assert (layer.fc1.in_features, layer.fc1.out_features, layer.self_attn.num_heads) == (24, 40, 4)
    assert model.encoder.embed_tokens.weight is model.decoder.output_projection.weight
    assert model.encoder.embed_tokens.weight.shape == (50, 24)


def test_every_combination_is_a_case() -> None:
    sizes = {"dims": ["base", "16x32x2"], "precision": ["fp32", "bf16"], "layers": ["1", "3-2"], "tokens": "4x6"}
    how = {"vocabulary": 40, "warmup": 1, "steps": 1, "repeats": 1, "beam": 1, "timeout": 1, "seed": 1}
    found = cases(Namespace(**sizes, **how, device="cpu"))
    assert len(set(found)) == len(found) == 8
    assert {(c.dim, c.ffn_dim, c.heads) for c in found} == {(512, 2048, 8), (16, 32, 2)}
    assert {c.depths for c in found} == {(1, 1), (3, 2)}
    assert {c.dimensions for c in found} == {"base", "16x32x2"} and {c.target_tokens for c in found} == {24}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_fairseqs(precision: str) -> None:
    training = Training(
        network(parse("pre_ln"), replace(TINY, precision=precision)), replace(TINY, precision=precision)
    )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {p.dtype for p in training.parameters} == {dtype}
    before = training.model.decoder.layers[0].fc1.weight.clone()
    training.backward(training.forward())
    training.update()
    assert not torch.equal(training.model.decoder.layers[0].fc1.weight, before)
    # Adam works on a copy in single precision
    assert {p.dtype for p in training.optimizer.fp32_optimizer.params} == {torch.float32}


def test_fp16_finds_its_loss_scale() -> None:
    case = replace(TINY, precision="fp16")
    scaled = [replace(parse("b2t"), flags=(*parse("b2t").flags, f"--fp16-init-scale={2**n}")) for n in (24, 60)]
    training = Training(network(scaled[0], case), case)
    training.backward(training.forward())
    with pytest.raises(OverflowError):
        training.update()
    assert train(scaled[0], case)["step"] > 0
    with pytest.raises(UserError, match="the gradients overflow in fp16"):
        train(scaled[1], case)


def test_a_library_that_is_missing() -> None:
    with pytest.raises(UserError, match=r"not installed \(pip install no-such-library\)"):
        load("no_such_library", "")


def test_a_library_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x_transformers").mkdir()
    (tmp_path / "x_transformers/__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "x_transformers", raising=False)  # where it is installed, and was imported
    with pytest.raises(UserError, match="cannot be imported here: RuntimeError: operator nms does not exist"):
        load("x_transformers", "")


def test_ctranslate2_generates_as_many_tokens() -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    told = {"case": vars(replace(TINY, beam=2))}
    found = {name: here("generate", {"entry": vars(parse(name)), **told}, 0) for name in ("ctranslate2", "stock-lean")}
    assert found["ctranslate2"]["tokens"] == found["stock-lean"]["tokens"] == 3 * (5 + 1)


def test_an_entry_that_does_not_train() -> None:
    with pytest.raises(Failed, match="ctranslate2 does not train"):
        here("train", {"entry": vars(parse("ctranslate2")), "case": vars(TINY)}, 0)


def test_a_case_says_what_it_is() -> None:
    assert str(replace(TINY, layers="2-1")) == "2-1 layers, 16x32x2, fp32"
    assert Case(**vars(TINY)) == TINY and TINY.depths == (2, 2)


def test_hypotheses_beyond_the_positions_are_refused() -> None:
    with pytest.raises(Failed, match="has 1024 positions"):
        here("generate", {"entry": asdict(parse("b2t")), "case": asdict(replace(TINY, tokens=1024))}, 0)
