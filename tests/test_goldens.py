"""The authors' own numbers (tests/golden) are reproduced, and a difference would be seen and named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import FLAT, FOLDER, SLASHED, Arrays, changed, label, measure, wrong
from stock_golden import write_golden

from fairseq_residuals.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.cli.__main__ import main
from fairseq_residuals.verification.parity import TOLERANCES, compare
from fairseq_residuals.verification.rebuild import read, rebuild

REALFORMER, LSTM = FOLDER / "realformer_fairseq_reimpl_S.npz", FOLDER / "dwlstm_reimpl_gate2add_S.npz"
GOLDENS = sorted(FOLDER.glob("*.npz"))


def test_the_goldens_are_there() -> None:
    assert len(GOLDENS) == 50


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    golden, recipe = read(path)
    parity = compare(golden, rebuild(golden, recipe))
    assert parity.failures() == {}
    assert parity.not_compared == []
    with np.load(path) as file:
        shapes = {name: file[name].shape for name in file.files}
    activations = [name for name in shapes if re.match(r"(out|sub)/|(enc|dec)_layer_|encoder_out", name)]
    assert len(parity.activations) == len(activations) - ("out/logits" in shapes)
    assert len(parity.gradients) == len(golden.gradients)
    translated = sum(gradient.numel() for gradient in golden.gradients.values())
    assert translated == sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("grad/"))
    modes = {"training", "evaluation"} if golden.logits else set()
    assert set(parity.logits) == modes | ({"incremental"} if "logits_incremental" in shapes else set())
    losses = {"loss/train_own": 5, "nll_loss": 2, "prev_output_tokens": 1, "in/loss_weight": 0}
    assert len(parity.loss) == next(n for name, n in losses.items() if name in shapes)
    beams = {"gen/greedy/0/0/tokens": 8, "gen/beam4/0/0/tokens": 4, "gen/tokens": 4}
    assert len(parity.scores) == next((n for name, n in beams.items() if name in shapes), 0)


@pytest.mark.parametrize("name", ["postln_S", "clinic_deepnet_S"])
def test_rounding_explains_no_other_eps_of_a_norm(name: str) -> None:
    golden, recipe = read(FOLDER / f"{name}.npz")
    model = rebuild(golden, recipe)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    assert "activations encoder_out" in compare(golden, model).failures()


def test_rounding_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(FOLDER / "clinic_deepnet_S.npz")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "gradients encoder.embed_tokens.weight" in line]
    assert re.search(r"weight [\d.]+e-04, beyond 3e-05, within the [\d.]+e-03 of rounding$", line)


@pytest.mark.parametrize("fork", [False, True], ids=("fairseq-0.12", "fork"))
@pytest.mark.parametrize("name", ["postln", "preln", "postln_lm", "preln_lm"])
def test_other_sizes(name: str, fork: bool, tmp_path: Path) -> None:
    path = write_golden(tmp_path, name, decoder_only=name.endswith("_lm"), fork=fork)
    parity = measure(path)
    assert parity.failures() == {}
    assert {"dec_layer0", "decoder_features"} <= set(parity.activations)
    assert ("enc_layer2" in parity.activations) == (not name.endswith("_lm"))
    assert "decoder.output_projection.weight" in parity.gradients
    assert len(parity.scores) == 6


@pytest.mark.parametrize(
    ("path", "change", "failing"),
    [
        (SLASHED, wrong("out/enc_embed", (0, 0, 0)), {"activations enc_embed"}),
        (SLASHED, wrong("out/enc_layer1", (0, 0, 0)), {"activations enc_layer1"}),
        (SLASHED, wrong("out/encoder_out", (0, 0, 0)), {"activations encoder_out"}),
        (SLASHED, wrong("out/dec_layer0", (0, 0, 0)), {"activations dec_layer0"}),
        (SLASHED, wrong("sub/dec1_cross_attn", (0, 0, 0)), {"activations dec1_cross_attn"}),
        (SLASHED, wrong("out/decoder_features", (0, 0, 0)), {"activations decoder_features"}),
        (SLASHED, wrong("out/logits", (0, 0, 0)), {"logits evaluation"}),
        (SLASHED, wrong("train/logits", (0, 0, 0)), {"logits training"}),
        (SLASHED, wrong("loss/train_own"), {"loss train"}),
        (SLASHED, wrong("loss/eval_ls_fairseq09"), {"loss fairseq-0.9"}),
        (SLASHED, wrong("loss/eval_ls_fairseq012"), {"loss fairseq-0.12"}),
        (SLASHED, wrong("loss/eval_nll"), {"loss nll"}),
        (SLASHED, wrong("grad/decoder.layers.1.fc1.bias", (3,)), {"gradients decoder.layers.1.fc1.bias"}),
        (SLASHED, wrong("gen/beam4/1/3/tokens", (0,), by=1), {"scores beam4, sentence 1"}),
        (SLASHED, wrong("gen/beam4/2/3/score"), {"scores beam4, sentence 2"}),
        (SLASHED, wrong("gen/greedy/0/0/positional_scores", (1,)), {"scores greedy, sentence 0"}),
        (FLAT, wrong("enc_layer_1_in", (0, 0, 0)), {"activations enc_layer1_in"}),
        (FLAT, wrong("dec_layer_1", (0, 0, 0)), {"activations dec_layer1"}),
        (FLAT, wrong("logits", (0, 0, 0)), {"logits evaluation", "logits training"}),
        (FLAT, wrong("logits_incremental", (0, 5, 0)), {"logits incremental"}),
        (FLAT, wrong("loss"), {"loss train"}),
        (FLAT, wrong("nll_loss"), {"loss nll"}),
        (
            FLAT,
            wrong("grad/decoder.layers.0.encoder_attn.in_proj_weight", (20, 0)),
            {"gradients decoder.layers.0.encoder_attn.k_proj.weight"},
        ),
        (FLAT, wrong("gen/tokens", (0, 3, 0), by=1), {"scores beam, sentence 0"}),
        (FLAT, wrong("gen/scores", (2, 1)), {"scores beam, sentence 2"}),
        (FOLDER / "residual_S.npz", wrong("out/dec_layer0_dual", (0, 0, 0)), {"activations dec_layer0_dual"}),
        (FOLDER / "residual_S.npz", wrong("out/enc_embed_dual", (0, 0, 0)), {"activations enc_embed_dual"}),
        (REALFORMER, wrong("enc_layer_1_selfscores", (0, 1, 0, 3)), {"activations enc_layer1_self_scores"}),
        (REALFORMER, wrong("dec_layer_0_crossscores", (1, 0, 2, 6)), {"activations dec_layer0_cross_scores"}),
        (LSTM, wrong("dec_layer_1_cell", (0, 0, 0)), {"activations dec_layer1_cell"}),
        (LSTM, wrong("logits", (0, 0, 0)), {"logits evaluation", "logits training"}),
        (LSTM, wrong("grad/dec.cls.bias", (0,)), {"gradients decoder.output_projection.bias"}),
        (LSTM, wrong("grad/enc.wemb.weight", (1, 0)), {"gradients encoder.embed_tokens.weight"}),
        (
            LSTM,
            wrong("grad/enc.gate.0.w.2.weight", (5, 1)),
            {"gradients encoder.layers.0.self_attn_connection.unit.gates.linear.weight"},
        ),
        (
            LSTM,
            wrong("grad/dec.ca.1.kv_adaptor.weight", (17, 3)),
            {"gradients decoder.layers.1.encoder_attn.v_proj.weight"},
        ),
        (FOLDER / "subln_enc_S.npz", wrong("out/encoder_out", (0, 0, 0)), {"activations encoder_out"}),
        (
            FOLDER / "subln_enc_S.npz",
            wrong("grad/layers.1.ffn.ffn_layernorm.weight", (0,)),
            {"gradients encoder.layers.1.ffn_layernorm.weight"},
        ),
        # what is not compared: padding, and the noise that is the gradient of a bias of keys
        (SLASHED, wrong("out/enc_layer0", (3, 7)), set()),
        (SLASHED, wrong("out/logits", (3, 7)), set()),
        (SLASHED, wrong("grad/encoder.layers.0.self_attn.k_proj.bias"), set()),
    ],
    ids=label,
)
def test_what_is_wrong_is_named(
    path: Path, change: Callable[[Arrays], None], failing: set[str], tmp_path: Path
) -> None:
    assert set(measure(changed(path, tmp_path, change)).failures()) == failing


def test_a_weight_off_by_a_thousandth_shows_everywhere() -> None:
    golden, recipe = read(FOLDER / "b2t_S.npz")
    golden.parameters["encoder.layers.0.fc2.bias"][2] += 1e-3
    kinds = {name.split()[0] for name in compare(golden, rebuild(golden, recipe)).failures()}
    assert kinds == set(TOLERANCES)


def test_the_wiring_of_another_variant_shows(tmp_path: Path) -> None:
    path = changed(FOLDER / "b2t_S.npz", tmp_path, lambda arrays: None, variant="postln")
    failures = measure(path).failures()
    assert failures["activations enc_layer0"] > 1e-2
    assert failures["logits evaluation"] > 1e-2


def test_the_other_formula_of_label_smoothing_shows(tmp_path: Path) -> None:
    path = changed(SLASHED, tmp_path, lambda arrays: None, loss_formula="fairseq-0.9: (1-eps)*nll + eps/V*smooth")
    kinds = {name.split()[0] for name in measure(path).failures()}
    assert kinds == {"loss", "gradients"}


def test_dead_copies_and_buffers_are_left_out() -> None:
    one = torch.ones(6, 2)
    values = {
        "encoder.version": one,
        "decoder.embed_positions._float_tensor": one,
        "encoder.layers.0.in_proj_weight": one,
        "encoder.layers.0.fc1_bias": one,
        "encoder.layers.0.self_attn.in_proj_weight": torch.arange(6.0),
        "decoder.layers.1.layer_norms.1.weight": one,
    }
    found = translate(values, AUTHORS["fairseq"])
    assert {name: value.tolist() for name, value in found.items() if "_proj" in name} == {
        "encoder.layers.0.self_attn.q_proj.weight": [0, 1],
        "encoder.layers.0.self_attn.k_proj.weight": [2, 3],
        "encoder.layers.0.self_attn.v_proj.weight": [4, 5],
    }
    # without cross-attention the second norm of a decoder layer is its last
    assert set(found) - {name for name in found if "_proj" in name} == {"decoder.layers.1.final_layer_norm.weight"}
