"""ReZero's own layers: PyTorch's attention with joint projections, and no norm anywhere (majumderb/rezero)."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_residuals.checkpoints.importing.parameter_names import Authors
from fairseq_residuals.core.base import Stream
from fairseq_residuals.core.layer import Context
from fairseq_residuals.verification.hosts.description import NewerGolden, Recipe
from fairseq_residuals.verification.hosts.host import build_stack, future_mask, recorded

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


def time_first(s: Stream) -> dict[str, Tensor]:
    """The stream as it is, (T, B, C)."""
    return {"": s["x"]}


class Pair(nn.Module):
    """An encoder and a decoder without embeddings and head."""

    def __init__(self, golden: NewerGolden) -> None:
        super().__init__()
        enc_depth, dec_depth = golden.depth("encoder"), golden.depth("decoder")
        self.encoder = build_stack(golden, "encoder", "encoder", enc_depth=enc_depth, dec_depth=dec_depth)
        self.decoder = build_stack(golden, "decoder", "decoder", enc_depth=enc_depth, dec_depth=dec_depth)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Everything that a golden file holds, under its names.

        Args:
            inputs: ``src`` (S, B, C), ``tgt`` and ``loss_weight`` (T, B, C), ``src_key_padding_mask`` (B, S).
        """
        padding = inputs["src_key_padding_mask"].bool()
        with recorded(self.encoder, time_first, "enc_layer") as below:
            memory, _ = self.encoder(inputs["src"], Context(padding_mask=padding))
        x = inputs["tgt"]
        with recorded(self.decoder, time_first, "dec_layer") as above:
            masks = Context(memory=memory, memory_padding_mask=padding, self_attn_mask=future_mask(x))
            x, _ = self.decoder(x, masks)
        return below | above | {"loss": (x * inputs["loss_weight"]).sum()}


RECIPES = {
    "rezero": Recipe("re_zero", REZERO, layer_outputs=time_first),
    "rezero_encdec": Recipe("re_zero", REZERO, build=Pair),
}
