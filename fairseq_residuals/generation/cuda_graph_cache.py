"""The cache of a search on a GPU: its memory stays where it is, so that the work for a word is a CUDA graph.

That is the decoder's layers, and where the search permits it the choice of the next word's candidates.

A word takes hundreds of small kernels, which take less time than Python takes to launch them. For every word the layers
do the same work: hypotheses attend to all places that there is room for, of which a mask leaves them their past, and
the place that is written is told by a number on the device. What sentences that have left would have said is
computed, and not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.core.attention import KeysValues
from fairseq_residuals.core.layer import Context
from fairseq_residuals.core.stack import Pass, Stack
from fairseq_residuals.generation.kv_cache import BeamCache
from fairseq_residuals.generation.word_choice import Candidates, WordChoice
from fairseq_residuals.performance import cuda_graphs

Outputs = tuple[Tensor, list[Tensor | None], Candidates | None]
"""Of the last layer (1, rows, C), the attention weights of each, and what is chosen of the output."""


_LATEST: dict[torch.device, Any] = {}
"""The graph that was recorded last on a device. Its memory is that of the next one: what belongs to no graph is not
used again."""


def _record(work: Callable[[], Outputs], device: torch.device) -> Any:
    latest = _LATEST.get(device)
    with cuda_graphs.explained(
        "the layers of this decoder cannot be recorded as a CUDA graph ({}): while a beam is searched on a GPU, a"
        " variant may not look at values of its tensors"
    ):
        graph = cuda_graphs.Graph(work, device, latest.graph.pool() if latest else cuda_graphs.new_pool())
    _LATEST[device] = graph
    return graph


class ReplayedBeamCache(BeamCache):
    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        super().__init__(sentences, beam, device)
        self.most = sentences
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.fed: Tensor | None = None
        self.fixed_mask: Tensor | None = None
        self.graph: Any = None
        self.choice: WordChoice | None = None
        """What the graph makes of the output of the layers, if anything; set before it is recorded."""
        self.chosen: Candidates | None = None
        """Of the sentences that have not left, for the newest word."""

    @property
    def ready(self) -> bool:
        """Whether there is one row for each hypothesis, as from the second word on."""
        return self.past.size(1) > 1

    def start_pass(self, stack: Stack) -> Pass:
        """Start a pass (:meth:`KVCache.start_pass`): from the second word on, all layers are replayed at once."""
        return ReplayedPass(stack, self) if self.ready else Pass(stack)

    def _leave(self, sentences: Tensor) -> None:
        for kept in self.words.values():
            kept[:, : len(sentences)] = kept[:, sentences]
        for kept in (x for memory in self.memories.values() for x in memory if x is not None):
            kept[: len(sentences)] = kept[sentences]

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        if not self.ready:
            return super().extend(attn, new)
        kept = self.words[attn]
        newest = torch.stack([self.group(new.keys), self.group(new.values)])
        kept.index_copy_(3, self.place, newest.unsqueeze(3))
        keys, values = kept.flatten(3, 4)
        assert self.fixed_mask is not None
        return KeysValues(keys, values, self.fixed_mask, None)

    def layers(self, x: Tensor, work: Callable[[Tensor], Outputs]) -> Outputs:
        """Return what ``work`` makes of the newest word, (1, rows, C); its results are overwritten by the next call."""
        position, rows = self.past.size(1) - 1, x.size(1)
        room = next(iter(self.words.values())).size(3)
        if position == room:
            self.words = {attn: torch.cat([kept, torch.zeros_like(kept)], 3) for attn, kept in self.words.items()}
            self.graph, room = None, 2 * room
        new = self.graph is None
        if new:
            self.fed = x.new_zeros(1, self.most * self.beam, x.size(2))
            self.fixed_mask = x.new_zeros(self.most, 1, self.beam, room * self.beam)
        assert self.fed is not None
        self.fed[:, :rows] = x
        self.place.fill_(position)
        self._mask(position)
        if new:
            run = partial(self._of_all_sentences, work, self.fed)
            with cuda_graphs.aside(x.device):
                run()
            self.graph = _record(run, x.device)
        self.graph.replay()
        out, weights, chosen = self.graph.result
        self.chosen = None if chosen is None else tuple(x[: self.sentences] for x in chosen)  # type: ignore[assignment]
        weights = [None if w is None else w.narrow(w.dim() - 3, 0, rows) for w in weights]
        return out[:, :rows], weights, self.chosen

    def _mask(self, position: int) -> None:
        """Return a mask that leaves to each hypothesis its own places up to ``position``."""
        assert self.fixed_mask is not None
        others = self.past[:, :, None] != torch.arange(self.beam, device=self.past.device)
        mask = self.fixed_mask.view(self.most * self.beam, -1)[: len(others)]
        mask.fill_(-torch.inf)
        mask[:, : (position + 1) * self.beam].masked_fill_(~others.flatten(1), 0)

    def _of_all_sentences(self, work: Callable[[Tensor], Outputs], fed: Tensor) -> Outputs:
        """Return the rows of all sentences, also of those that have left."""
        there, self.sentences = self.sentences, self.most
        try:
            return work(fed)
        finally:
            self.sentences = there


class ReplayedPass(Pass):
    """The first layer runs all of them, by the cache's graph; each then returns the output, and its own weights."""

    def __init__(self, stack: Stack, cache: ReplayedBeamCache) -> None:
        super().__init__(stack)
        self.cache = cache

    def run(self, i: int, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        if i == 0:
            self.outputs = self.cache.layers(x, partial(self._all, context))
        return self.outputs[0], self.outputs[1][i]

    def _all(self, context: Context, x: Tensor) -> Outputs:
        weights: list[Tensor | None] = []
        for i in range(len(self.stack)):
            asked = i == len(self.stack) - 1  # fairseq's search asks for the attention of the last layer
            x, attn = super().run(i, x, replace(context, need_attn=asked, need_head_weights=asked))
            weights.append(attn)
        return x, weights, None if self.cache.choice is None else self.cache.choice(x)
