"""ReZero's own layers: PyTorch's attention with joint projections, and no norm anywhere (majumderb/rezero)."""

from __future__ import annotations

from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.wirings.core.layer import Context
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import HostModel, build_stack, future_mask
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


class Pair(HostModel):
    """An encoder and a decoder without embeddings and head."""

    def __init__(self, golden: Golden) -> None:
        super().__init__()
        enc_depth, dec_depth = golden.depth("encoder"), golden.depth("decoder")
        self.encoder = build_stack(golden, "encoder", "encoder", enc_depth=enc_depth, dec_depth=dec_depth)
        self.decoder = build_stack(golden, "decoder", "decoder", enc_depth=enc_depth, dec_depth=dec_depth)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model.

        Args:
            inputs: ``src_vectors`` (B, S, C), ``tgt_vectors`` (B, T, C), ``src_padding`` (B, S).

        Returns:
            encoder_out and decoder_features.
        """
        padding = inputs["src_padding"].bool()
        memory, _ = self.encoder(inputs["src_vectors"].transpose(0, 1), Context(padding_mask=padding))
        x = inputs["tgt_vectors"].transpose(0, 1)
        masks = Context(memory=memory, memory_padding_mask=padding, self_attn_mask=future_mask(x))
        x, _ = self.decoder(x, masks)
        return {"encoder_out": memory.transpose(0, 1), "decoder_features": x.transpose(0, 1)}


RECIPES = {
    "rezero": HostRecipe("re_zero", REZERO),
    "rezero_encdec": HostRecipe("re_zero", REZERO, model=Pair),
}
