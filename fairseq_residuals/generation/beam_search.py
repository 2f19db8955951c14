"""fairseq's beam search for one model of this plugin: the same hypotheses, with less work between two words.

What the search does at each word follows ``fairseq/sequence_generator.py`` of fairseq 0.12.2 line by line, and its
methods finalise hypotheses and force prefixes. What differs is how much is moved: see :mod:`.kv_cache`,
:mod:`.packed_linear` and :mod:`..ops.topk`; and the encoder's output is neither repeated per hypothesis nor reordered.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_residuals.core.stack import Stack
from fairseq_residuals.generation.kv_cache import BeamCache
from fairseq_residuals.generation.word_choice import WordChoice, best_candidates
from fairseq_residuals.models.fairseq_stack import KV_CACHE
from fairseq_residuals.utils.optional import import_with_performance
from fairseq_residuals.utils.torch_private import has_hooks, packs_matrices

packed_linear = import_with_performance("fairseq_residuals.generation.packed_linear")
cuda_graph_cache = import_with_performance("fairseq_residuals.generation.cuda_graph_cache")

Hypotheses = list[list[dict[str, Tensor]]]


def searchable(models: list[Any]) -> bool:
    """Return whether this is one model whose decoder is a wired stack."""
    decoder = getattr(models[0], "decoder", None) if len(models) == 1 else None
    return isinstance(getattr(decoder, "layers", None), Stack)


WIDEST_BEAM = 24
"""A hypothesis' word is compared with those of all hypotheses of its sentence, which from here on takes longer than to
reorder what was kept (docs/PERFORMANCE.md)."""


class FasterSequenceGenerator(SequenceGenerator):
    """Beam search with fewer operations; what it does not cover is fairseq's search.

    That is: ensembles, other models, other searches than plain beam search (sampling, diverse, constrained, of the
    source's length), wide beams, a language model beside the model, and dropout in inference, whose random numbers are
    one for every hypothesis.
    """

    packed: AbstractContextManager[Any] | None = None

    def _covers(self, constraints: Tensor | None) -> bool:
        return (
            searchable(list(self.model.models))
            and type(self.search) is BeamSearch
            and self.beam_size <= WIDEST_BEAM
            and self.lm_model is None
            and constraints is None
            and not self.match_source_len
            and not any(getattr(m, "apply_during_inference", False) for m in self.model.modules())
        )

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> Hypotheses:
        if not self._covers(constraints):
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        inputs = sample["net_input"]
        with self._packing(inputs["src_tokens"].device):
            return self._search(inputs, prefix_tokens, self.eos if bos_token is None else bos_token)

    def _packing(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which matrices are packed.

        They stay packed where fairseq has declared the model's training over: an optimizer may change weights without
        a trace.
        """
        if device.type != "cpu" or packed_linear is None or not packs_matrices():
            return nullcontext()
        if not self.model.single_model._is_generation_fast:
            return packed_linear.PackedLinears()  # type: ignore[no-any-return]
        if self.packed is None:
            self.packed = packed_linear.PackedLinears()
        return self.packed

    def _cache(self, device: torch.device) -> type[BeamCache]:
        """Return the kind whose layers are replayed where launching kernels takes longer than they do."""
        if device.type != "cuda" or cuda_graph_cache is None or has_hooks(self.model.single_model.decoder):
            return BeamCache
        return cuda_graph_cache.ReplayedBeamCache  # type: ignore[no-any-return]

    def _search(self, inputs: dict[str, Any], prefix: Tensor | None, first_word: int) -> Hypotheses:
        model, beam = self.model.single_model, self.beam_size
        sentences, source_length = inputs["src_tokens"].size()[:2]
        device = inputs["src_tokens"].device
        longest = min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)
        assert self.min_len <= longest, "min_len cannot be larger than max_len, please adjust these!"

        memory = model.encoder.forward_torchscript(inputs) if self.model.has_encoder() else None
        cache = self._cache(device)(sentences, beam, device)
        rows = sentences * beam
        scores = torch.zeros(rows, longest + 1, device=device)
        tokens = torch.full((rows, longest + 2), self.pad, device=device)
        tokens[:, 0] = first_word
        attention: Tensor | None = None
        ignored = torch.zeros(sentences, beam, dtype=torch.bool, device=device)
        finalized: Hypotheses = [[] for _ in range(sentences)]
        finished = [False] * sentences

        choice: WordChoice | None = None
        for step in range(longest + 1):
            if step == 1:
                choice = self._choice(cache, scores)
            if choice is not None and (prefix is None or step >= prefix.size(1)):
                choice.prepare(scores[:, step - 1], step, longest)
                attended = self._decode(tokens[:, : step + 1], memory, cache, features_only=True)[1]
                found, words, hypotheses = cache.chosen  # type: ignore[attr-defined]
            else:
                lprobs, attended = self._next_words(tokens[:, : step + 1], memory, cache)
                lprobs, tokens, scores = self._restrict(step, longest, lprobs, tokens, scores, prefix)
                first = lprobs[::beam] if step == 0 else lprobs
                found, words, hypotheses = best_candidates(first, None if step == 0 else scores[:, step - 1], beam)
            if attended is not None:
                if attention is None:
                    attention = attended.new_zeros(rows, attended.size(1), 1)
                attention = torch.cat([attention, attended[:, :, None]], 2)
            first_rows = torch.arange(len(found), device=device)[:, None] * beam

            # a hypothesis ends only if its end is among the best of as many candidates as the beam is wide
            ends = words.eq(self.eos) & found.ne(-torch.inf)
            ends[:, :beam][ignored] = False
            ended, leaving = ends[:, :beam], []
            if ended.any():
                ended_rows = (hypotheses + first_rows)[:, :beam][ended]
                leaving = self.finalize_hypos(
                    step, ended_rows, found[:, :beam][ended], tokens, scores, finalized, finished, beam, attention,
                    None, longest,
                )  # fmt: skip
            if all(finished):
                break
            assert step < longest

            staying = None
            if leaving:
                stay = torch.ones(len(found), dtype=torch.bool, device=device)
                stay[leaving] = False
                staying = stay.nonzero().squeeze(1)
                found, words, hypotheses, ends, ignored = (
                    x[staying] for x in (found, words, hypotheses, ends, ignored)
                )
                tokens, scores = _of(staying, beam, tokens), _of(staying, beam, scores)
                attention = None if attention is None else _of(staying, beam, attention)
                prefix = None if prefix is None else prefix[staying]
                first_rows = first_rows[: len(staying)]

            # the best candidates that do not end go on; where there are too few, others are dragged along, ignored
            ends[:, :beam] |= ignored
            size = 2 * beam
            order = ends * size + torch.arange(words.size(1), device=device)
            order, going_on = order.topk(beam, dim=1, largest=False)
            ignored = order.ge(size)
            assert (~ignored).any(dim=1).all()

            parents = (hypotheses + first_rows).gather(1, going_on).flatten()
            tokens, scores = tokens[parents], scores[parents]
            tokens[:, step + 1] = words.gather(1, going_on).flatten()
            scores[:, step] = found.gather(1, going_on).flatten()
            attention = None if attention is None else attention[parents]
            cache.advance(parents, staying)

        for hypotheses_of_one in finalized:
            hypotheses_of_one.sort(key=lambda hypothesis: -hypothesis["score"].item())
        return finalized

    def _next_words(self, tokens: Tensor, memory: Any, cache: BeamCache) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities (rows, vocabulary), and what the last word attended to.

        The attention is (rows, S), or None where the decoder does not say.
        """
        first = tokens.size(1) == 1
        if first:
            # all hypotheses of a sentence are still the same
            tokens = tokens[:: self.beam_size]
        logits, attended = self._decode(tokens, memory, cache)
        if self.temperature != 1:
            logits = logits / self.temperature
        lprobs = self.model.single_model.get_normalized_probs((logits, None), log_probs=True, sample=None)[:, -1]
        if first:
            lprobs = lprobs.repeat_interleave(self.beam_size, 0)
            attended = None if attended is None else attended.repeat_interleave(self.beam_size, 0)
        return lprobs, attended

    def _decode(
        self, tokens: Tensor, memory: Any, cache: BeamCache, features_only: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the decoder's output for the last word (rows, 1, ...), and what it attended to (rows, S) or None."""
        out, extra = self.model.single_model.decoder(
            tokens, encoder_out=memory, features_only=features_only, incremental_state={KV_CACHE: cache}
        )
        attended = extra["attn"][0] if extra and extra["attn"] else None
        return out, None if attended is None else attended[:, -1].float()

    def _choice(self, cache: BeamCache, scores: Tensor) -> WordChoice | None:
        """Return what the graph of a word chooses its candidates by; None where there is none, or it cannot.

        It cannot where a word may be forbidden to some hypotheses alone, or its probability takes several steps.
        """
        replayed = cuda_graph_cache is not None and isinstance(cache, cuda_graph_cache.ReplayedBeamCache)
        adaptive = getattr(self.model.single_model.decoder, "adaptive_softmax", None) is not None
        if not replayed or adaptive or self.repeat_ngram_blocker is not None:
            return None
        choice = WordChoice(self, cache.most * self.beam_size, scores)  # type: ignore[attr-defined]
        cache.choice = choice  # type: ignore[attr-defined]
        return choice

    def _restrict(
        self, step: int, longest: int, lprobs: Tensor, tokens: Tensor, scores: Tensor, prefix: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of the words that may come next, tokens, and scores; all may be changed in place."""
        lprobs[:, self.pad] = -torch.inf
        lprobs[:, self.unk] -= self.unk_penalty
        if step >= longest:
            lprobs[:, : self.eos] = -torch.inf
            lprobs[:, self.eos + 1 :] = -torch.inf
        if prefix is not None and step < prefix.size(1) and step < longest:
            lprobs, tokens, scores = self._prefix_tokens(step, lprobs, scores, tokens, prefix, self.beam_size)
        else:
            if step < self.min_len:
                lprobs[:, self.eos] = -torch.inf
            if self.token_indices_to_suppress is not None:
                lprobs[:, self.token_indices_to_suppress] = -torch.inf
        scores = scores.type_as(lprobs)
        if self.repeat_ngram_blocker is not None:
            lprobs = self.repeat_ngram_blocker(tokens, lprobs, len(tokens) // self.beam_size, self.beam_size, step)
        return lprobs, tokens, scores


def _of(sentences: Tensor, beam: int, x: Tensor) -> Tensor:
    """Return the rows of some sentences."""
    return x.unflatten(0, (-1, beam))[sentences].flatten(0, 1)
