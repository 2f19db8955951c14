"""LayerNorm Scaling and LayerScale fold exactly into fairseq's Pre-LN; nothing else of the newer designs does."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_export import logits_of_both, refusal

from fairseq_residuals.plugin.checkpoints.exporting.stock_form import FAIRSEQ_HAS
from fairseq_residuals.wirings.variants.layer_scale import LayerScaleConnection
from fairseq_residuals.wirings.variants.layernorm_scaling import LayerNormScalingConnection

CASES = [
    ("translation", "layernorm_scaling", ("--share-all-embeddings",)),
    ("translation", "layernorm_scaling", ("--decoder-residual", "layer_scale")),
    ("translation", "layer_scale", ("--decoder-residual", "deepnet")),
    ("language_modeling", "layernorm_scaling", ("--no-decoder-final-norm",)),
    ("language_modeling", "layer_scale", ("--residual-args", "gain=2")),
    ("speech", "layernorm_scaling", ()),
    ("speech", "layer_scale", ()),
]


@pytest.mark.parametrize(("task", "variant", "flags"), CASES, ids=[" ".join((t, v, *f)) for t, v, f in CASES])
def test_the_stock_model_computes_the_same(task: str, variant: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    logits_of_both(tmp_path, task, variant, *flags, layers=3)


def test_a_factor_that_is_not_the_models_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerScaleConnection, "gains", lambda self: (1.0, 1.001 * self.gain))
    assert "its logits differ by" in refusal(tmp_path, "translation", "layer_scale")
    monkeypatch.setattr(LayerNormScalingConnection, "read", lambda self, s: (self.norm(s["x"]), s))
    assert "its logits differ by" in refusal(tmp_path, "translation", "layernorm_scaling")


@pytest.mark.parametrize("variant", ["sandwich_ln", "peri_ln", "post_sublayer_norm", "mix_ln", "re_zero", "keel"])
def test_the_others_are_refused(variant: str, tmp_path: Path) -> None:
    assert f"its encoder is wired by {variant} (" in refusal(tmp_path, "translation", variant)


@pytest.mark.parametrize("variant", ["post_ln", "pre_ln", "layernorm_scaling"])
@pytest.mark.parametrize("choice", ["norm_type=rms", "norm_type=dyt", "value_residual=constant"])
def test_what_fairseq_has_no_choice_of_is_refused(variant: str, choice: str, tmp_path: Path) -> None:
    option = choice.partition("=")[0]
    said = refusal(tmp_path, "translation", variant, "--residual-args", choice)
    assert f"its encoder has {choice}, and fairseq's own model has {option}={FAIRSEQ_HAS[option]}" in said
