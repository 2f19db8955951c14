"""The authors' own numbers (tests/golden) are reproduced, and a difference would be seen and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import FLAT, FOLDER, SLASHED, Arrays, changed, label, measure, wrong
from stock_golden import write_golden

from fairseq_residuals.checkpoints.golden_names import modernise
from fairseq_residuals.checkpoints.parity import TOLERANCES, compare
from fairseq_residuals.checkpoints.rebuild import read, rebuild

GOLDENS = sorted(FOLDER.glob("*.npz"))


def test_the_goldens_are_there() -> None:
    names = {path.stem for path in GOLDENS}
    assert {
        "postln_S",
        "preln_S",
        "b2t_S",
        "postln_lm_S",
        "preln_lm_S",
        "b2t_lm_S",
        "clinic_preln_S",
    } <= names
    assert len(GOLDENS) == 14


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    parity = measure(path)
    assert parity.failures() == {}
    with np.load(path) as file:
        names = set(file.files)
    gradients = {name.removeprefix("grad/") for name in names if name.startswith("grad/")}
    activations = {
        name.removeprefix("out/").removeprefix("sub/").replace("_layer_", "_layer")
        for name in names
        if name.startswith(("out/", "sub/", "enc_layer_", "dec_layer_")) or name == "encoder_out"
    }
    assert set(parity.activations) == activations - {"logits"}
    joint = sum("in_proj_" in name for name in gradients)
    assert len(parity.gradients) == len(gradients) + 2 * joint
    assert set(parity.loss) >= {"train", "nll"}
    assert len(parity.scores) == 8 if "gen/greedy/0/0/tokens" in names else 4


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
        (SLASHED, wrong("out/logits", (0, 0, 0)), {"logits evaluation", "logits training"}),
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
        (FLAT, wrong("loss"), {"loss train"}),
        (FLAT, wrong("nll_loss"), {"loss nll"}),
        (
            FLAT,
            wrong("grad/decoder.layers.0.encoder_attn.in_proj_weight", (20, 0)),
            {"gradients decoder.layers.0.encoder_attn.k_proj.weight"},
        ),
        (FLAT, wrong("gen/tokens", (0, 3, 0), by=1), {"scores beam, sentence 0"}),
        (FLAT, wrong("gen/scores", (2, 1)), {"scores beam, sentence 2"}),
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
    found = modernise(values)
    assert {name: value.tolist() for name, value in found.items() if "_proj" in name} == {
        "encoder.layers.0.self_attn.q_proj.weight": [0, 1],
        "encoder.layers.0.self_attn.k_proj.weight": [2, 3],
        "encoder.layers.0.self_attn.v_proj.weight": [4, 5],
    }
    # without cross-attention the second norm of a decoder layer is its last
    assert set(found) - {name for name in found if "_proj" in name} == {"decoder.layers.1.final_layer_norm.weight"}
