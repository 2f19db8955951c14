"""Language models of today's blocks, for fairseq to train: rotary positions, SwiGLU, RMSNorm, no biases.

They are :class:`.LanguageModel` of the library; fairseq's own blocks have none of these.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor

from fairseq_residuals.wirings.blocks.models import LanguageModel

MODEL = "transformer_lm_today"


@register_model(MODEL)
class TodayLanguageModel(BaseFairseqModel):
    """A language model of the library, as fairseq's task and criterion call it."""

    supported_targets = frozenset({"future"})

    def __init__(self, model: LanguageModel, longest: int) -> None:
        super().__init__()
        self.model, self.longest = model, longest

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> TodayLanguageModel:
        """Build it in the sizes of fairseq's flags; the FFN's three matrices have about as many numbers as two had."""
        model = LanguageModel(
            args.residual,
            options=dict(option.split("=", 1) for option in (args.residual_args or "").split(",") if option),
            vocab=len(task.target_dictionary),
            padding=task.target_dictionary.pad(),
            depth=args.decoder_layers,
            dim=args.decoder_embed_dim,
            heads=args.decoder_attention_heads,
            ffn_dim=8 * round(args.decoder_ffn_embed_dim / 12),
            dropout=args.dropout,
            rotary=True,
            ffn="swiglu",
            norm_type="rms",
            bias=False,
        )
        return cls(model, task.args.tokens_per_sample)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits, (B, T) -> (B, T, words), and nothing else."""
        return self.model(src_tokens), {}

    def get_normalized_probs(
        self, net_output: tuple[Tensor, dict[str, Tensor]], log_probs: bool, sample: Any = None
    ) -> Tensor:
        """Return probabilities of tokens, or their logarithms, in single precision."""
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def max_positions(self) -> int:
        """Return the longest sequence, which is the task's."""
        return self.longest


@register_model_architecture(MODEL, MODEL)
def _defaults(args: Namespace) -> None:
    args.residual_args = getattr(args, "residual_args", None)
