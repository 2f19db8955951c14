"""What takes part in the benchmark: names, flags, and libraries that may be missing."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from bench_cases import TINY, train

from fairseq_residuals.lab.bench.entries import cases, chosen, parse_also
from fairseq_residuals.lab.bench.fairseq_models import Training, network, parse, settings_of
from fairseq_residuals.lab.bench.library import load
from fairseq_residuals.wirings.core.errors import UserError


def test_also() -> None:
    found = parse_also("mine = stock MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=5 --dropout=0.3", parse)
    assert str(found) == "mine" and found.network == parse("stock").network
    assert found.environment == {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "5"}
    assert settings_of(found, TINY).dropout == 0.3
    for flag in ("--bf16", "--fp16", "--amp", "--update-freq=8", "--packed=full", "--log-residual-stats=10"):
        with pytest.raises(UserError, match=r"x: --(precision alone|update-freq|packed|log-residual-stats)"):
            settings_of(parse_also(f"x=b2t {flag}", parse), TINY)


def test_flags_for_all_come_last() -> None:
    args = Namespace(
        beside=["stock-lean"], variants=["b2t"], also=["x=b2t --dropout=0.3"], further=["--dropout=0.2"], imported=[]
    )
    assert [settings_of(c, TINY).dropout for c in chosen(args, parse)] == [0.2] * 3


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
    sizes = replace(TINY, precision=precision)
    training = Training(network(parse("pre_ln"), sizes), sizes)
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
        load("no_such_library")
