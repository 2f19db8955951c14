"""Which recipe a golden file is rebuilt by, and which files are none that could be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, Authors
from tests.golden_check import hosts
from tests.golden_check.fairseq_recipes import ENDINGS, FairseqRecipe
from tests.golden_check.fixtures import Golden
from tests.golden_check.neutron import NeutronRecipe
from tests.golden_check.rebuild import GoldenRecipe
from tests.golden_check.tolerances import SHIPPED, Tolerances

ODE_TRANSFORMER = Authors(
    "libeineu/ODE-Transformer",
    # its history is DLCL's
    AUTHORS["dlcl"].convert,
    (
        (r"\.history\.weight$", ".layers.wiring.history.weight"),
        (r"\.history\.layer_norms\.", ".layers.wiring.history.norms."),
        (r"\.gate_linear\.", ".layers.wiring.gate."),
        (r"\.alpha$", ".layers.wiring.alpha"),
    ),
)
_SHARED = ("decoder.embed_tokens.weight", "decoder.output_projection.weight")


class ODERecipe(FairseqRecipe):
    """How to build models of this fork."""

    @property
    def tolerances(self) -> Tolerances:
        return SHIPPED

    def authors_of(self, description: dict[str, Any]) -> Authors:
        return ODE_TRANSFORMER

    def adapt(self, golden: Golden) -> Golden:
        """Name the table for all its uses; leave out what the file has of a gate, which starts at random."""
        table = golden.parameters["encoder.embed_tokens.weight"]
        initial = {name: value for name, value in golden.initial.items() if ".gate." not in name}
        return replace(golden, parameters=golden.parameters | dict.fromkeys(_SHARED, table), initial=initial)


_DLCL = {
    "_fix1": "weights=fixed_one",
    "_fixavg": "weights=fixed_average",
    "_noln": "norm=false",
    "_softmax": "softmax=true",
    "_vector": "weight_type=vector",
}
_PRE_LN_ENCODER = ("--residual", "pre_ln", "--decoder-residual", "normformer", "--decoder-residual-args", "cross=false")

FAIRSEQ_RECIPES = (
    FairseqRecipe(("postln", "clinic_postln", "tfixuprepo_postln"), "post_ln"),
    FairseqRecipe(("preln", "clinic_preln", "tfixuprepo_preln", "dlclrepo_prenorm_baseline"), "pre_ln"),
    FairseqRecipe(("preln_fsmain",), "pre_ln", flags=("--activation-fn", "gelu")),
    FairseqRecipe(("b2t",), "b2t"),
    FairseqRecipe(("b2t_noln",), "b2t_no_ln"),
    FairseqRecipe(("residual",), "resi_dual", endings={"_s005": "scale=0.05"}),
    FairseqRecipe(("deepnet", "clinic_deepnet"), "deepnet"),
    FairseqRecipe(("subln",), "sub_ln"),
    FairseqRecipe(("normformer_encdec",), "normformer", flags=_PRE_LN_ENCODER),
    FairseqRecipe(
        ("normformer",), "normformer", flags=("--activation-fn", "gelu"), endings={"_resids": "scale_resids=true"}
    ),
    FairseqRecipe(("dlcl_pre", "simple_dlcl_pre"), "dlcl_pre", endings=_DLCL),
    FairseqRecipe(("dlcl_post", "simple_dlcl_post"), "dlcl_post", endings=_DLCL),
    FairseqRecipe(("admin",), "admin"),
    FairseqRecipe(("tfixup",), "t_fixup"),
    FairseqRecipe(("realformer_fairseq_reimpl",), "realformer"),
    FairseqRecipe(("realformer_preln_fairseq_reimpl",), "realformer", "norm=pre"),
    ODERecipe(
        ("ode_rk2",),
        "ode_rk2",
        "inner_identity=true",
        endings={"_gated": "mode=gated", "_alpha": "mode=alpha", "_dlcl": "dlcl=true"},
    ),
    ODERecipe(("ode_rk4",), "ode_rk4", "inner_identity=true"),
    NeutronRecipe(
        ("dwlstm_reimpl",),
        "depthwise_lstm",
        endings={
            "_gate1add": "hidden=1",
            "_gate2add": "",
            "_gate2concat": "merge=concat",
            "_none2add": "share=none",
        },
    ),
)

OTHER_KINDS = {
    r"^subln_clibug(_|$)": "it documents a bug of torchscale's command line (--subln alone leaves the decoder Post-LN)"
    " and is not Sub-LN",
    r"_initweights$": "it is an initialisation with nothing computed from it, which tests/verification/test_init.py"
    " compares with",
    r"^admin_profile_": "it belongs to a profile of Admin, which tests/verification/test_admin_profile.py compares"
    " with",
    r"^mhc_lucidrains(_|$)": "it is a third party's reading of mHC and not the paper's: its norm is of each"
    " stream alone, its router's matrix one for all streams, and its Sinkhorn steps end with the columns",
    r"^realformer_google_": "it is an encoder of Google's BERT with names of its own, which"
    " tests/verification/test_realformer.py compares with",
}
"""By the name of the file: why ``python -m tests.golden_check`` does not take it."""


class OtherKind(Exception):
    """A file beside the goldens that is none in the sense of ``python -m tests.golden_check``."""


def find_recipe(name: str) -> GoldenRecipe:
    """Return the recipe for what a golden file calls its variant."""
    base = ENDINGS.sub("", name)
    return hosts.RECIPES.get(name) or next(filter(None, (recipe.match(base) for recipe in FAIRSEQ_RECIPES)))


def refuse_other_kinds(path: Path) -> None:
    """Refuse files that are beside the golden files for other purposes.

    Raises:
        OtherKind: by its name, ``path`` is something else than a golden file that could be verified.
    """
    for pattern, reason in OTHER_KINDS.items():
        if re.search(pattern, path.stem):
            raise OtherKind(f"{path} is not verified: {reason}")
