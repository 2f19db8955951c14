"""Golden files whose models are not fairseq's: with something wrong in the file or the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_files import Arrays, changed, golden_path, label, measure, unchanged, wrong

from tests.golden_check.archive import read_sidecar
from tests.golden_check.fixtures import read_golden
from tests.golden_check.hosts import RECIPES
from tests.golden_check.parity import Parity, compare_golden, read
from tests.golden_check.tolerances import SHIPPED


def measure_as(name: str, **other: Any) -> Parity:
    """With a recipe that differs from the right one."""
    path = golden_path(name)
    return compare_golden(read_golden(path, read_sidecar(path), replace(RECIPES[name], **other)))


@pytest.mark.parametrize(
    ("name", "change", "failing"),
    [
        ("preln_rms", wrong("out/dec_layer1", (1, 5, 15), 5e-5), {"activations dec_layer1"}),
        ("preln_rms", wrong("loss/train", (), 1e-3), {"loss train"}),
        ("lns", wrong("grad/model.layers.1.mlp.up_proj.weight", (31, 15), 0.1), {"gradients layers.1.fc1.weight"}),
        ("rezero", wrong("init/layers.1.resweight"), {"initial layers.1.self_attn_connection.gain"}),
        ("dyt_preln", wrong("grad/layers.0.attn.k.bias", (3,), 0.1), {"gradients layers.0.self_attn.k_proj.bias"}),
        ("hc_alg2", wrong("out/dec_layer0", (1, 5, 1, 0)), {"activations dec_layer0"}),
    ],
    ids=label,
)
def test_what_is_wrong_is_named(name: str, change: Callable[[Arrays], None], failing: set[str], tmp_path: Path) -> None:
    assert set(measure(changed(golden_path(name), tmp_path, change)).failures()) == failing


# eps of ScaleNorm bounds a length that no input comes near; the norms of xt_gated_multi_residual and nGPT are functions
WITHOUT_EPS = {
    *("derf_preln", "dyt_preln", "ngpt", "rezero", "rezero_encdec", "xt_gated_multi_residual"),
    *("scalenorm_fixnorm_preln", "scalenorm_fixnorm_postln"),
}
WITH_NORMS = sorted(RECIPES.keys() - WITHOUT_EPS)


# what it shows is the same of each: a sixth of them
@pytest.mark.parametrize("name", WITH_NORMS[::6])
def test_another_eps_of_the_norms_shows(name: str) -> None:
    of_rms = "rms" in str(read(golden_path(name)).wiring)
    usual = RECIPES[name].eps or (1e-6 if of_rms else 1e-5)
    # files of released models have tolerances that are part of the largest magnitude, and some of them a tiny eps
    factor = 10_000 if RECIPES[name].tolerances is SHIPPED else 10
    assert measure_as(name, eps=factor * usual).failures()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("preln_rms", {"rotary": "interleaved"}),
        ("preln_rms", {"rotary": ""}),
        ("denseformer", {"rotary": "half"}),
        ("preln_rms", {"causal": False}),
        ("lns", {"wiring": "pre_ln(norm=rms)"}),
        ("preln_rms", {"wiring": "layernorm_scaling(norm=rms)"}),
        ("olmo2_postsub", {"wiring": "pre_ln(norm=rms)"}),
        ("mixln", {"wiring": "mix_ln(norm=rms,alpha=1)"}),
        ("resformer", {"wiring": "pre_ln(norm=rms,value_residual=constant)"}),
        ("siamesenorm_deit", {"wiring": "siamese_norm(scale=paper)"}),
        ("hybridnorm", {"wiring": "hybrid_norm(norm=rms,value_residual=identity)"}),
        ("attnres_full", {"wiring": "attention_residuals(block=2)"}),
        ("attnres_block", {"wiring": "attention_residuals"}),
        ("layerscale", {"wiring": "layer_scale(gain=0.1)"}),
        # Kimi K3's configuration counts layers
        ("kimi_k3_block_attnres", {"wiring": "attention_residuals(norm=rms,norm_eps=1e-5,block=2)"}),
        ("mhar", {"wiring": "attention_residuals(norm=rms,heads=1)"}),
        ("mhar", {"wiring": "attention_residuals(norm=rms,heads=4,scale=true)"}),
        ("mhar_block", {"wiring": "attention_residuals(norm=rms,heads=4,block=2)"}),
        ("neomme_x0_read", {"wiring": "x0_read(norm=rms)"}),
        ("esmc_residual_scaling", {"wiring": "residual_multiplier(multiplier=2.12)"}),
    ],
    ids=lambda value: value if isinstance(value, str) else str(*value.values()),
)
def test_another_model_shows(name: str, other: dict[str, Any]) -> None:
    assert measure_as(name, **other).failures()


def test_a_mixing_matrix_that_is_not_transposed_shows() -> None:
    authors = replace(RECIPES["glm5_mhc_mean_close"].authors, convert=dict)
    assert measure_as("glm5_mhc_mean_close", authors=authors).failures()["logits evaluation"] > 1e-3


@pytest.mark.parametrize(("steps", "shows"), [(5, True), (19, True), (20, False)])
def test_fewer_steps_of_sinkhorn_show(steps: int, shows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the paper's steps, without the eps of the released code, which moves the logits by less."""
    monkeypatch.setattr("fairseq_residuals.wirings.ops.hyper_mix.STEPS", steps)
    assert ("logits evaluation" in measure_as("glm5_mhc_mean_close", surroundings=()).failures()) == shows


def test_the_number_of_post_ln_layers_is_the_sidecars(tmp_path: Path) -> None:
    path = changed(golden_path("mixln"), tmp_path, unchanged, provenance={"env": {"POST_NUM": "2"}})
    assert measure(path).failures()["activations dec_layer1"] > 1e-2
