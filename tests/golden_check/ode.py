"""Golden files of ODE Transformer, a fork of fairseq 0.6: one table of words for encoder, decoder and output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, Authors
from tests.golden_check.fairseq_recipes import FairseqRecipe
from tests.golden_check.fixtures import Golden
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
