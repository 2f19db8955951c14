"""The authors' own numbers (tests/golden) are reproduced, and a difference would be seen and named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import (
    CLINIC,
    FOLDER,
    POSTLN,
    VERIFIED,
    Arrays,
    arrays_of,
    changed,
    golden_path,
    measure,
    tensors_of,
    unchanged,
    wrong,
)

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check import hosts
from tests.golden_check.__main__ import main
from tests.golden_check.archive import read_sidecar, variant_name
from tests.golden_check.fairseq_recipes import ENDINGS
from tests.golden_check.parity import compare_golden, read
from tests.golden_check.recipes import FAIRSEQ_RECIPES
from tests.golden_check.tolerances import FAIRSEQ

REALFORMER = golden_path("realformer_fairseq_reimpl")


def test_every_recipe_has_a_golden() -> None:
    """Under each of its names, with each of its endings."""
    names = {path: variant_name(path, read_sidecar(path)) for path in VERIFIED}
    assert hosts.RECIPES.keys() <= set(names.values())
    for recipe in FAIRSEQ_RECIPES:
        stems = [path.stem for path, name in names.items() if recipe.match(ENDINGS.sub("", name))]
        for name in recipe.names:
            assert any(name in stem for stem in stems), name
        for ending in recipe.endings:
            # recipes that share their endings need not each have all of them
            assert any(ending in path.stem for path in names), ending


def test_every_variant_that_says_so_has_a_golden() -> None:
    """A variant whose ``verified`` names gradients, and no other; its ``code`` is what one of its files was made by."""
    files: dict[str, list[Path]] = {}
    for path in VERIFIED:
        wiring = read(path).wiring
        names = {part.name for part in Wiring.parse(wiring).parts}
        # an option of another turns backout on, and AltUp is around another
        for name in names | {n for n in VARIANTS if f"{n}=true" in wiring or f"_{n}_" in path.stem}:
            files.setdefault(name, []).append(path)
    assert files.keys() == {name for name, variant in VARIANTS.items() if "gradients" in variant.verified}
    files["realformer"] += FOLDER.glob("realformer_google_*.npz")  # an encoder with a test of its own
    for name, variant in VARIANTS.items():
        made_by = [json.dumps(read_sidecar(path)) for path in files.get(name, [])]
        repository, _, commit = variant.code.partition("@")
        assert not variant.code or any(repository in x and commit.lstrip("v") in x for x in made_by), name


@pytest.mark.parametrize("path", VERIFIED, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """Everything in the file is compared, and agrees."""
    golden = read(path)
    parity = compare_golden(golden)
    assert parity.failures() == {}
    assert parity.not_compared == []
    shapes = {name: array.shape for name, array in arrays_of(path).items()}

    def names(prefix: str) -> set[str]:
        return {name.removeprefix(prefix) for name in shapes if name.startswith(prefix)}

    assert len(parity.activations) == len({name for name in names("out/") if not name.startswith("logits")}) > 0
    modes = {"training", "evaluation"} if "out/logits" in shapes else set()
    assert parity.logits.keys() == modes | ({"incremental"} if "out/logits_incremental" in shapes else set())
    assert parity.loss.keys() == names("loss/") - {"at_initialization"}
    assert len(parity.gradients) == len(golden.gradients) + len(golden.unused_gradients)
    compared = [*golden.gradients.values(), *golden.unused_gradients.values()]
    assert sum(x.numel() for x in compared) == sum(math.prod(shapes[f"grad/{name}"]) for name in names("grad/"))
    sums = [x.double().abs().sum().item() for x in tensors_of(path, "grad/").values()]
    assert math.isclose(sum(x.double().abs().sum().item() for x in compared), sum(sums), rel_tol=1e-9)
    sentences = [shapes[f"gen/{name}"][0] for name in names("gen/") if name.endswith("/tokens")]
    assert len(parity.scores) == sum(sentences)
    initial = bool(golden.initial)
    assert bool(parity.initial) == (initial and golden.recipe.initial_values)
    assert ("init/* not compared" in " ".join(parity.notes)) == (initial and not golden.recipe.initial_values)
    # rounding explains nothing where tolerances are wide
    assert parity.beyond() == {} or golden.recipe.tolerances is FAIRSEQ


# what a recomputation costs is a model: all that is wrong in a file is named at once
WRONG: list[tuple[Path, Callable[[Arrays], None], set[str]]] = [
    (POSTLN, wrong("out/enc_layer1", (0, 0, 0)), {"activations enc_layer1"}),
    (POSTLN, wrong("out/dec1_cross_attn", (0, 0, 0)), {"activations dec1_cross_attn"}),
    (POSTLN, wrong("out/logits", (0, 0, 0)), {"logits evaluation"}),
    (POSTLN, wrong("out/logits_training", (0, 0, 0)), {"logits training"}),
    (POSTLN, wrong("loss/train"), {"loss train"}),
    (POSTLN, wrong("loss/fairseq-0.9"), {"loss fairseq-0.9"}),
    (POSTLN, wrong("loss/nll"), {"loss nll"}),
    (POSTLN, wrong("grad/decoder.layers.1.fc1.bias", (3,)), {"gradients decoder.layers.1.fc1.bias"}),
    (POSTLN, wrong("gen/beam4/tokens", (1, 3, 0), by=1), {"scores beam4, sentence 1"}),
    (POSTLN, wrong("gen/beam4/scores", (2, 3)), {"scores beam4, sentence 2"}),
    (POSTLN, wrong("gen/greedy/positional_scores", (0, 0, 1)), {"scores greedy, sentence 0"}),
    (CLINIC, wrong("out/enc_layer1_in", (0, 0, 0)), {"activations enc_layer1_in"}),
    (CLINIC, wrong("out/logits", (0, 0, 0)), {"logits evaluation", "logits training"}),
    (CLINIC, wrong("out/logits_incremental", (0, 5, 0)), {"logits incremental"}),
    (
        CLINIC,
        wrong("grad/decoder.layers.0.encoder_attn.in_proj_weight", (20, 0)),
        {"gradients decoder.layers.0.encoder_attn.k_proj.weight"},
    ),
    (REALFORMER, wrong("out/enc_layer1_self_scores", (0, 1, 0, 3)), {"activations enc_layer1_self_scores"}),
    # what is not compared: padding, and the noise that is the gradient of a bias of keys
    (POSTLN, wrong("out/enc_layer0", (3, 7)), set()),
    (POSTLN, wrong("out/logits", (3, 7)), set()),
    (POSTLN, wrong("grad/encoder.layers.0.self_attn.k_proj.bias"), set()),
]


@pytest.mark.parametrize(
    ("path", "matters"),
    dict.fromkeys((path, bool(failing)) for path, _, failing in WRONG),
    ids=lambda value: value.stem if isinstance(value, Path) else "compared" if value else "not_compared",
)
def test_what_is_wrong_is_named(path: Path, matters: bool, tmp_path: Path) -> None:
    """That, and nothing else."""
    rows = [(change, failing) for where, change, failing in WRONG if where == path and bool(failing) == matters]

    def all_changes(arrays: Arrays) -> None:
        for change, _ in rows:
            change(arrays)

    named = set().union(*(failing for _, failing in rows))
    assert set(measure(changed(path, tmp_path, all_changes)).failures()) == named


def test_the_other_formula_of_label_smoothing_shows(tmp_path: Path) -> None:
    path = changed(POSTLN, tmp_path, unchanged, loss="fairseq-0.9")
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


# ``python -m tests.golden_check``: its table and its exit status


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, other = changed(POSTLN, tmp_path, wrong("out/logits", (0, 0, 0))), tmp_path / "subln_clibug_S.npz"
    assert main([str(CLINIC), str(golden_path("ode_rk2_gated_dlcl")), str(other)]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if line.startswith("|")][2:]
    assert [row[-2] for row in rows] == ["ok", "ok", "other kind"]
    assert rows[1][2] == "ode_rk2(inner_identity=true,mode=gated,dlcl=true)"
    assert f"{other} is not verified: it documents a bug" in printed
    assert main(["--per-layer", str(bad), str(tmp_path / "missing.npz")]) == 1
    printed = capsys.readouterr().out
    assert "| not read |" in printed
    assert "| FAIL " in printed and f"{bad.name}: activations enc_layer0 " in printed
    assert f"{bad.name}: logits evaluation 1.0e-03, beyond 1e-05" in printed.splitlines()


def test_weights_that_are_not_numbers_fail(tmp_path: Path) -> None:
    change = wrong("param/decoder.layers.1.fc1.bias", (3,), by=np.nan)
    failures = measure(changed(POSTLN, tmp_path, change)).failures()
    assert {"logits evaluation", "loss train", "scores greedy, sentence 0"} <= failures.keys()


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"out/enc_layer0_dual": np.zeros((4, 8, 16), np.float32)}
    path = changed(POSTLN, tmp_path, lambda arrays: arrays.update(more))
    assert measure(path).not_compared == ["enc_layer0_dual"]
    assert main([str(path)]) == 0
    assert f"{path.name}: enc_layer0_dual not compared" in capsys.readouterr().out
