"""The best words of each row, without sorting the whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128


def top_words(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``scores.topk(k)``, for (rows, vocabulary): values and words, (rows, k), best first.

    The k best are among the k chunks of the row whose best are best, and the rest of the row that makes no chunk.
    """
    rows, words = scores.shape
    chunks = words // CHUNK
    if chunks <= k:
        return scores.topk(k)
    best = scores[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK)).amax(-1).topk(k).indices
    within = torch.arange(CHUNK, device=scores.device)
    rest = torch.arange(chunks * CHUNK, words, device=scores.device)
    found = torch.cat([(best[:, :, None] * CHUNK + within).flatten(1), rest.expand(rows, -1)], 1)
    values, where = scores.gather(1, found).topk(k)
    return values, found.gather(1, where)
