"""The golden files of the newer designs (tests/golden/newer) are reproduced, and a difference would be seen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import FOLDER, Arrays, changed, drop, label, wrong
from newer_golden_writer import DEPTH, DESIGNS, write_newer_golden

from fairseq_residuals.cli.__main__ import main
from fairseq_residuals.cli.verify import compare_file
from fairseq_residuals.core.base import Stream
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.verification.golden_file import read_sidecar, variant_name
from fairseq_residuals.verification.golden_recipes import find_recipe
from fairseq_residuals.verification.hosts import RECIPES
from fairseq_residuals.verification.hosts.compare import compare
from fairseq_residuals.verification.hosts.description import read
from fairseq_residuals.verification.parity import Parity

NEWER = FOLDER / "newer"
OTHER_KIND = "mhc_lucidrains"


def path_of(name: str) -> Path:
    return NEWER / f"{name}_S.npz"


def measure(path: Path) -> Parity:
    return compare_file(path)[1]


def measure_as(name: str, **other: Any) -> Parity:
    """With a recipe that differs from the right one."""
    path = path_of(name)
    return compare(path, read_sidecar(path), replace(RECIPES[name], **other))[1]


def put(name: str) -> Callable[[Arrays], None]:
    """Three zeros under ``name``."""
    return lambda arrays: arrays.update({name: np.zeros(3, np.float32)})


def unchanged(arrays: Arrays) -> None:
    pass


def test_the_goldens_are_there() -> None:
    assert {path.stem for path in NEWER.glob("*.npz")} == {f"{name}_S" for name in [*RECIPES, OTHER_KIND]}
    assert len(RECIPES) == 23


def test_every_variant_with_published_code_has_a_golden() -> None:
    older = {find_recipe(variant_name(path, read_sidecar(path))).variant for path in FOLDER.glob("*.npz")}
    goldens = [read(path_of(name), read_sidecar(path_of(name)), recipe) for name, recipe in RECIPES.items()]
    newer = {part.name for golden in goldens for part in Wiring.parse(golden.wiring).parts}
    # Peri-LN is Sandwich-LN but for the norm of the embeddings
    assert older | newer == VARIANTS.keys() - {"transparent_attention", "keel", "peri_ln"}


@pytest.mark.parametrize("name", RECIPES)
def test_golden(name: str) -> None:
    parity = measure(path_of(name))
    assert parity.beyond() == {}
    with np.load(path_of(name)) as file:
        shapes = {key: file[key].shape for key in file.files}
    found = {kind: [key for key in shapes if key.startswith(kind)] for kind in ("out/", "sub/", "grad/", "init/")}
    initial = RECIPES[name].initial_values
    assert parity.not_compared == []
    assert ("init/* not compared" in " ".join(parity.notes)) == (not initial)
    assert len(parity.activations | parity.logits | parity.loss) == len(found["out/"] + found["sub/"])
    assert bool(parity.initial) == (initial and bool(found["init/"]))
    assert parity.loss.keys() == {"loss"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_number_of_the_gradients_is_compared(name: str) -> None:
    golden = read(path_of(name), read_sidecar(path_of(name)), RECIPES[name])
    compared = [*golden.gradients.values(), *golden.unused_gradients.values()]
    with np.load(path_of(name)) as file:
        assert sum(x.numel() for x in compared) == sum(file[k].size for k in file.files if k.startswith("grad/"))
        sums = sum(float(np.abs(file[k].astype(np.float64)).sum()) for k in file.files if k.startswith("grad/"))
    assert math.isclose(sum(x.double().abs().sum().item() for x in compared), sums, rel_tol=1e-9)


@pytest.mark.parametrize("name", DESIGNS)
def test_other_sizes(name: str, tmp_path: Path) -> None:
    parity = measure(write_newer_golden(tmp_path, name))
    assert parity.failures() == {}
    assert parity.not_compared == []
    assert len(parity.activations) >= DEPTH + 1


def test_which_designs_come_in_other_sizes() -> None:
    assert RECIPES.keys() - DESIGNS.keys() == {"hc_lucidrains", "rezero_encdec"}


@pytest.mark.parametrize(
    ("name", "change", "failing"),
    [
        ("preln_rms", wrong("out/embed", (0, 0, 0)), {"activations embed"}),
        ("preln_rms", wrong("out/layer1", (1, 5, 15), 5e-5), {"activations layer1"}),
        ("preln_rms", wrong("out/final_norm", (1, 5, 15), 5e-5), {"activations final_norm"}),
        ("preln_rms", wrong("out/logits", (0, 0, 0), 5e-5), {"logits logits"}),
        ("preln_rms", wrong("out/loss", (), 1e-3), {"loss loss"}),
        ("lns", wrong("grad/model.layers.1.mlp.up_proj.weight", (31, 15), 0.1), {"gradients layers.1.fc1.up.weight"}),
        ("rezero", wrong("out/layer0", (5, 1, 0)), {"activations layer0"}),
        ("rezero", wrong("init/layers.1.resweight"), {"initial layers.1.self_attn_connection.gain"}),
        (
            "rezero",
            wrong("grad/layers.0.self_attn.in_proj_weight", (20, 3), 0.1),
            {"gradients layers.0.self_attn.k_proj.weight"},
        ),
        ("rezero_encdec", wrong("out/enc_layer1", (5, 1, 0)), {"activations enc_layer1"}),
        ("rezero_encdec", wrong("out/dec_layer0", (4, 1, 0)), {"activations dec_layer0"}),
        ("dyt_preln", wrong("grad/layers.0.attn.k.bias", (3,), 0.1), {"gradients layers.0.self_attn.k_proj.bias"}),
        ("dyt_preln", wrong("grad/norm.alpha", (0,), 0.1), {"gradients layer_norm.alpha"}),
        ("attnres_block", wrong("sub/in2", (0, 0, 0)), {"activations sub/in2"}),
        (
            "attnres_full",
            wrong("grad/layers.0.attn_res.norm.weight", (0,)),
            {"gradients layers.0.attn_res.norm.weight"},
        ),
        ("siamesenorm_deit", wrong("out/layer1.y", (0, 0, 0)), {"activations layer1.y"}),
        ("siamesenorm_hybrid_pre", wrong("out/layer0.1", (0, 0, 0)), {"activations layer0.1"}),
        ("hc_alg2", wrong("out/layer0", (1, 5, 1, 0)), {"activations layer0"}),
        ("hc_lucidrains", wrong("out/layer0", (3, 5, 0)), {"activations layer0"}),
    ],
    ids=label,
)
def test_what_is_wrong_is_named(name: str, change: Callable[[Arrays], None], failing: set[str], tmp_path: Path) -> None:
    assert set(measure(changed(path_of(name), tmp_path, change)).failures()) == failing


WITH_NORMS = sorted(RECIPES.keys() - {"rezero", "rezero_encdec", "dyt_preln"})


@pytest.mark.parametrize("name", WITH_NORMS)
def test_another_eps_of_the_norms_shows(name: str) -> None:
    of_rms = "rms" in str(compare_file(path_of(name))[0])
    usual = RECIPES[name].eps or (1e-6 if of_rms else 1e-5)
    assert measure_as(name, eps=10 * usual).failures()


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
    ],
    ids=lambda value: value if isinstance(value, str) else str(*value.values()),
)
def test_another_model_shows(name: str, other: dict[str, Any]) -> None:
    assert measure_as(name, **other).failures()


def swap_two(s: Stream) -> Stream:
    return s | {"x": s["y"], "y": s["x"]}


def reverse(s: Stream) -> Stream:
    keys = [key for key in s if re.fullmatch(r"x\d*", key)]
    return s | dict(zip(keys, [s[key] for key in reversed(keys)], strict=True))


@pytest.mark.parametrize(
    ("name", "swap"),
    [
        ("siamesenorm_deit", swap_two),
        ("siamesenorm_hybrid_pre", swap_two),
        ("hc_alg2", reverse),
        ("hc_lucidrains", reverse),
        ("mhc_hf_dsv4", reverse),
    ],
)
def test_swapped_streams_show(name: str, swap: Callable[[Stream], Stream]) -> None:
    def swapped(s: Stream) -> dict[str, Any]:
        return RECIPES[name].layer_outputs(swap(s))

    failures = measure_as(name, layer_outputs=swapped).failures()
    assert failures and all(failing.startswith("activations layer") for failing in failures)


def test_the_number_of_post_ln_layers_is_the_sidecars(tmp_path: Path) -> None:
    path = changed(path_of("mixln"), tmp_path, unchanged, env={"POST_NUM": "2"})
    assert measure(path).failures()["activations layer1"] > 1e-2


@pytest.mark.parametrize(
    ("name", "change", "sidecar", "message"),
    [
        ("lns", drop("out/loss"), {}, "lacks out/loss"),
        ("lns", drop("out/embed"), {}, "lacks out/embed"),
        ("lns", drop("out/layer1"), {}, "lacks the output layer1"),
        ("lns", drop("out/layer0", "out/layer1"), {}, "lacks the output layer0"),
        ("siamesenorm_deit", drop("out/layer1.y"), {}, "lacks the output layer1.y"),
        ("attnres_full", drop("sub/in3"), {}, "lacks the output sub/in3"),
        ("lns", drop("param/model.embed_tokens.weight"), {}, "lacks param/embed_tokens.weight"),
        ("lns", drop("param/model.layers.1.mlp.down_proj.weight"), {}, "lacks param/layers.1.fc2.weight"),
        ("lns", drop("param/model.norm.weight"), {}, "lacks param/layer_norm.weight"),
        ("lns", drop("grad/model.norm.weight"), {}, "lacks the gradient of layer_norm.weight"),
        ("lns", put("param/extra"), {}, "unlike its model, param/extra"),
        ("lns", put("grad/extra"), {}, "unlike its model, the gradient of extra"),
        ("rezero", put("init/extra"), {}, "unlike its model, init/extra"),
        ("lns", put("out/layer0"), {}, "another shape of the output layer0, (3,)"),
        ("lns", put("param/model.norm.weight"), {}, "another shape of layer_norm.weight, (3,)"),
        ("lns", unchanged, {"config_values": {}}, "lacks config_values.h"),
        ("lns", unchanged, {"config_values": {"h": "two"}}, "config_values.h must be a positive whole number"),
        ("mixln", unchanged, {"env": {}}, "lacks env.POST_NUM"),
    ],
    ids=label,
)
def test_what_cannot_be_compared_is_one_sentence(
    name: str, change: Callable[[Arrays], None], sidecar: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        measure(changed(path_of(name), tmp_path, change, **sidecar))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, extra = path_of(OTHER_KIND), changed(path_of("lns"), tmp_path, put("more"))
    assert main(["verify", str(FOLDER / "postln_S.npz"), str(extra), str(path_of("mhc_hf_dsv4")), str(other)]) == 0
    captured = capsys.readouterr()
    rows = [line.split("|") for line in captured.out.splitlines() if line.startswith("|")]
    assert [row[-2].strip() for row in rows[2:]] == ["ok", "ok", "ok", "other kind"]
    assert captured.out.count("tolerance 1e-06, 1e-06") == captured.out.count("tolerance 2e-05 unless") == 1
    assert f"{extra.name}: more not compared" in captured.out
    assert "mhc_hf_dsv4_S.npz: tolerance 5e-05: " in captured.out
    assert f"{other} is not verified: it is a third party's reading" in captured.out
    assert captured.err == ""
