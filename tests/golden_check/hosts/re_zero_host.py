"""ReZero's own layers: PyTorch's attention with joint projections, and no norm anywhere (majumderb/rezero)."""

from __future__ import annotations

from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.hosts.host import PairHost
from tests.golden_check.hosts.host_recipe import HostRecipe

REZERO = Authors(
    "majumderb/rezero",
    renames=(
        (r"^emb\.", "embed_tokens."),
        (r"^head\.", "output_projection."),
        (r"\.resweight$", ".self_attn_connection.gain"),
        (r"\.multihead_attn\.", ".encoder_attn."),
        (r"\.linear([12])\.", r".fc\1."),
    ),
)


class Pair(PairHost):
    """An encoder and a decoder without embeddings and head."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model.

        Args:
            inputs: ``src_vectors`` (B, S, C), ``tgt_vectors`` (B, T, C), ``src_padding`` (B, S).

        Returns:
            encoder_out and decoder_features.
        """
        source, target = (inputs[f"{side}_vectors"].transpose(0, 1) for side in ("src", "tgt"))
        memory, features = self.through(source, inputs["src_padding"].bool(), target)
        return {"encoder_out": memory, "decoder_features": features}


RECIPES = {
    "rezero": HostRecipe("re_zero", REZERO),
    "rezero_encdec": HostRecipe("re_zero", REZERO, model=Pair),
}
