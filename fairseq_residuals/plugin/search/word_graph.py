"""The work for a word of a beam search as one CUDA graph.

A word takes hundreds of small kernels, which take less time than Python takes to launch them. All of it is of one shape
in memory that stays: hypotheses go on by their words, the cache is reordered, words are embedded, the decoder's layers
run, and where the search permits it the next words are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.search.beams import Beams, WordChoice
from fairseq_residuals.plugin.search.kv_cache import FixedBeamCache, decode
from fairseq_residuals.plugin.speed import cuda_graphs

_LATEST: dict[torch.device, Any] = {}
"""The graph that was recorded last on a device. Its memory is that of the next one: what belongs to no graph is not
used again."""


def _record(work: Callable[[], Tensor], device: torch.device) -> Any:
    latest = _LATEST.get(device)
    with cuda_graphs.explained(
        "the layers of this decoder cannot be recorded as a CUDA graph ({}): while a beam is searched on a GPU, a"
        " wiring may not look at values of its tensors"
    ):
        graph = cuda_graphs.Graph(work, device, latest.graph.pool() if latest else cuda_graphs.new_pool())
    _LATEST[device] = graph
    return graph


class WordGraph:
    """The words of one search after its first, each a replay."""

    def __init__(
        self, decoder: Any, beams: Beams, cache: FixedBeamCache, memory: Any, choice: WordChoice | None, eos: int
    ) -> None:
        """Prepare for the second word.

        Args:
            memory: the encoder's output, or None.
            choice: what chooses the candidates; None: that is done outside for all words.
        """
        self.decoder, self.beams, self.cache = decoder, beams, cache
        self.memory, self.choice, self.eos = memory, choice, eos
        self.graph: Any = None
        self.chooses = False
        cache.begin(beams.place)
        self.forwards: dict[nn.Module, Callable[..., Tensor]] = {}
        """Forwards in place of those of modules that would look at what they are given, or count it."""
        if decoder.embed_positions is not None:
            sentence = torch.full((1, beams.scores.size(1)), decoder.padding_idx + 1, device=beams.place.device)
            table = decoder.embed_positions(sentence)[0]
            self.forwards[decoder.embed_positions] = lambda *_, **__: table.index_select(0, beams.place)[None]
        self.fed: Tensor | None = None
        # fairseq's other embeddings sort words by their values
        if not isinstance(decoder.embed_tokens, nn.Embedding):
            self.fed = fed = self._embedded()
            self.forwards[decoder.embed_tokens] = lambda _: fed

    def _embedded(self) -> Tensor:
        return self.decoder.embed_tokens(self._words())  # type: ignore[no-any-return]

    def _words(self) -> Tensor:
        return self.beams.chosen().words.reshape(-1, 1)

    def run(self, step: int, forced: bool) -> Tensor:
        """Let all hypotheses go on by the words that were chosen, decode these, and choose the next where that is done.

        Args:
            step: the position of the words.
            forced: whether the next ones are given to some sentences, and so are chosen outside.

        Returns:
            What the output projection is fed (rows, 1, C), of sentences that have not left. The next call overwrites
            it.
        """
        chooses = self.choice is not None and not forced
        if self.cache.make_room(step) or chooses != self.chooses:
            self.graph, self.chooses = None, chooses
        if self.choice is not None:
            self.choice.prepare(step)
        if self.fed is not None:
            self.fed.copy_(self._embedded())
        if self.graph is None:
            device = self.beams.place.device
            with self._unchanged(), cuda_graphs.aside(device):
                self._work()
            with self._unchanged():
                self.graph = _record(self._work, device)
        self.graph.replay()
        features: Tensor = self.graph.result
        return features[: self.cache.sentences * self.beams.beam]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Undo what is done to the hypotheses within this context: they go on once, when all is recorded."""
        memory = [*self.beams.memory(), self.cache.past]
        before = [x.clone() for x in memory]
        yield
        for x, value in zip(memory, before, strict=True):
            x.copy_(value)

    def _work(self) -> Tensor:
        """Do the work for a word, of all sentences that there have been."""
        there, self.cache.sentences = self.cache.sentences, self.cache.most
        try:
            parents = self.beams.parents()
            self.beams.go_on()
            self.cache.advance(parents)
            with _with_forwards(self.forwards), cuda_graphs.AnyPadding():
                features = decode(self.decoder, self._words(), self.memory, self.cache)
            if self.chooses:
                assert self.choice is not None
                candidates = self.choice(features, self.beams.chosen().scores.flatten())
                self.beams.choose(candidates, self.eos)
        finally:
            self.cache.sentences = there
        return features


@contextmanager
def _with_forwards(forwards: dict[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Give modules other forwards within this context."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward  # type: ignore[method-assign]
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del module.forward
            else:
                module.forward = own  # type: ignore[method-assign]
