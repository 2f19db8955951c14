"""The newer designs that add little to Pre-LN or Post-LN: their equations, and what can be proved of them untrained."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest
from golden_files import golden_path
from tiny import build, stacks

from fairseq_residuals.lab.look.show_wiring import run as show
from fairseq_residuals.wirings.core.base import Site
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.variants.layer_scale import first_gain
from tests.golden_check.archive import read_sidecar
from tests.golden_check.fixtures import read_golden
from tests.golden_check.hosts import RECIPES
from tests.golden_check.parity import compare_golden

DIM = 16
SIMPLE = ("layernorm_scaling", "sandwich_ln", "peri_ln", "post_sublayer_norm", "mix_ln", "layer_scale", "keel")


@pytest.mark.parametrize(("alpha", "depth", "post"), [(0.25, 12, 3), (0.25, 24, 6), (0.25, 3, 0), (0.29, 100, 29)])
def test_how_many_layers_of_mix_ln_are_post_ln(alpha: float, depth: int, post: int) -> None:
    model = build("language_modeling", "mix_ln", "--residual-args", f"alpha={alpha}", layers=depth)
    kinds = [type(layer.ffn_connection).__name__ for layer in stacks(model)[0].children() if hasattr(layer, "fc1")]
    assert kinds == post * ["PostLNConnection"] + (depth - post) * ["PreLNConnection"]


def test_where_the_gains_of_layer_scale_start() -> None:
    """Touvron et al. 2021, section 2: 0.1 up to 18 layers, 1e-5 at 24, 1e-6 deeper."""
    assert [first_gain(depth) for depth in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]
    variant = Wiring.parse("layer_scale").parts[0]
    for layers in ((6, 36), (36, 6)):
        n, m = layers
        site = Site("encoder", n, DIM, 32, 2, n, m, True, kind="self", layer=0, index=0, n_sub=2)
        assert variant.build(site).connect(site).gain.tolist() == pytest.approx(DIM * [1e-6])
    given = Wiring.parse("layer_scale", "gain=0.5").parts[0]
    assert given.build(site).connect(site).gain.tolist() == DIM * [0.5]


def test_norms_of_queries_and_keys_are_those_of_olmo_2() -> None:
    """The recipe of the golden file has them in its surroundings; here they are the variant's own."""
    recipe, path = RECIPES["olmo2_postsub"], golden_path("olmo2_postsub")
    norms = {name: f"self_attn_connection.{name}_norm" for name in "qk"}
    own = replace(
        recipe,
        wiring="post_sublayer_norm(norm=rms,qk_norm=true)",
        authors=replace(
            recipe.authors,
            renames=(
                *(rename for rename in recipe.authors.renames if "_norm" not in rename[0]),
                *((rf"\.self_attn\.{name}_norm\.", f".{ours}.") for name, ours in norms.items()),
            ),
        ),
        query_key_norm="",
    )
    parity = compare_golden(read_golden(path, read_sidecar(path), own))
    assert parity.beyond() == {} and parity.not_compared == []
    assert sum("_connection." in name for name in parity.gradients) == 4


def test_norms_of_queries_and_keys_have_no_bias() -> None:
    model = build("translation", "post_sublayer_norm", "--residual-args", "qk_norm=true")
    of_norms = [name for name, _ in model.named_parameters() if ".q_norm." in name or ".k_norm." in name]
    assert of_norms and all(name.endswith(".weight") for name in of_norms)


def test_our_choices_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    others = (
        "dense_former",
        "attention_residuals",
        "hyper_connections",
        "mhc",
        "siamese_norm",
        "hybrid_norm",
    )
    for name in (*SIMPLE, *others):
        extension = VARIANTS[name].extension
        assert extension.endswith(".")
        show(Namespace(variant=name))
        assert extension in capsys.readouterr().out
    assert VARIANTS["pre_ln"].extension == ""
    show(Namespace(variant="pre_ln"))
    assert "Our choice" not in capsys.readouterr().out
