"""The encoder-decoder of tnq177/transformers_without_tears: ScaleNorm and FixNorm, one table of words for everything.

Padding is word 0. The input is sqrt(C) times a normalized vector, plus one of the language and one of the position; the
logits of padding and of the start of a sentence, words 0 and 1, are -1e9.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.plugin.models.fixnorm import NormalizedProjection, normalize_embedded
from fairseq_residuals.wirings.core.layer import FAIRSEQ_NORMS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import PairHost
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.neutron import interleaved_sinusoids
from tests.golden_check.tolerances import SHIPPED

PADDING, NEVER = 0, [0, 1]
_NORMS = {"encoder": (FAIRSEQ_NORMS["self"], FAIRSEQ_NORMS["ffn"]), "decoder": tuple(FAIRSEQ_NORMS.values())}
_SCALE = re.compile(r"(encoder|decoder)\.scales\.(\d+)\.scale")
_ATTENTION = re.compile(r"(encoder|decoder)\.(cross_)?atts\.(\d+)\.(weights|biases)")


def _by_our_names(values: Values) -> Values:
    """Norms are numbered in the order of their use; the matrices of an attention are one."""
    norms = Counter(m[1] for m in map(_SCALE.fullmatch, values) if m)
    renamed: Values = {}
    for name, value in values.items():
        if m := _SCALE.fullmatch(name):
            layer, i = divmod(int(m[2]), len(_NORMS[m[1]]))
            on_top = int(m[2]) == norms[m[1]] - 1 and i == 0
            place = "wiring.norm" if on_top else f"{layer}.{_NORMS[m[1]][i]}"
            renamed[f"{m[1]}.{place}.weight"] = value.reshape(1)
        elif m := _ATTENTION.fullmatch(name):
            place = f"{m[1]}.{m[3]}.{'encoder' if m[2] else 'self'}_attn"
            kind = {"weights": "weight", "biases": "bias"}[m[4]]
            for part, rows in zip(("q", "k", "v", "out"), value.chunk(4), strict=True):
                renamed[f"{place}.{part}_proj.{kind}"] = rows
        else:
            renamed[name] = value
    return renamed


WITHOUT_TEARS = Authors(
    "tnq177/transformers_without_tears",
    _by_our_names,
    (
        (r"^word_embedding$", "embed_tokens.weight"),
        (r"^out_bias$", "output_projection.bias"),
        (r"\.ffs\.(\d+)\.in_proj\.", r".\1.fc1."),
        (r"\.ffs\.(\d+)\.out_proj\.", r".\1.fc2."),
    ),
)


class WithoutTears(PairHost):
    """Encoder and decoder around the wired stacks."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        words, dim = golden.parameters["embed_tokens.weight"].shape
        self.embed_tokens = nn.Embedding(words, dim)
        self.embed_tokens.register_forward_hook(normalize_embedded)
        self.lang_embedding = nn.Parameter(torch.zeros(2, dim))
        projection = nn.Linear(dim, words)
        projection.weight = self.embed_tokens.weight
        self.output_projection = NormalizedProjection(projection)

    def embed(self, tokens: Tensor, language: int) -> Tensor:
        """(B, T) -> (T, B, C)"""
        words = self.embed_tokens(tokens)
        positions = interleaved_sinusoids(words.size(-1))[: words.size(1)].to(words)
        return (words * words.size(-1) ** 0.5 + self.lang_embedding[language] + positions).transpose(0, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model on ``src_tokens`` (B, S) and ``prev_output_tokens`` (B, T)."""
        source, target = self.embed(inputs["src_tokens"], 0), self.embed(inputs["prev_output_tokens"], 1)
        memory, features = self.through(source, inputs["src_tokens"].eq(PADDING), target)
        logits = self.output_projection(features)
        never = torch.tensor(NEVER, device=logits.device)
        return {
            "encoder_out": memory,
            "decoder_features": features,
            "logits": logits.index_fill(-1, never, -1e9),
        }


without_tears = partial(HostRecipe, authors=WITHOUT_TEARS, model=WithoutTears, tolerances=SHIPPED)
RECIPES = {
    "scalenorm_fixnorm_preln": without_tears("pre_ln(norm=scalenorm,fixnorm=true)"),
    "scalenorm_fixnorm_postln": without_tears("post_ln(norm=scalenorm,fixnorm=true)"),
}
