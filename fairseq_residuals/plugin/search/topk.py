"""Find the largest entries of each row without sorting the row.

    values, indices = scores.topk(k)                        scores (R, V), values and indices (R, k), largest first

PyTorch's topk looks at every entry several times. The fast form takes the maximum of each chunk of a row first: the k
largest entries are in the k chunks with the largest maxima, or in the rest of the row that fills no chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128


def reference(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Search the whole rows."""
    values, indices = scores.topk(k)
    return values, indices


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row and their indices, (R, V) -> 2 times (R, k), largest first.

    Which of several equal entries is found is left open, as by :func:`torch.topk`.
    """
    rows, width = scores.shape
    chunks = width // CHUNK
    if chunks <= k:
        return reference(scores, k)
    best_chunks = scores[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK)).amax(-1).topk(k).indices
    within = torch.arange(CHUNK, device=scores.device)
    rest = torch.arange(chunks * CHUNK, width, device=scores.device)
    candidates = torch.cat([(best_chunks[:, :, None] * CHUNK + within).flatten(1), rest.expand(rows, -1)], 1)
    values, places = scores.gather(1, candidates).topk(k)
    return values, candidates.gather(1, places)
