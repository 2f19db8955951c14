"""fairseq's beam search for one model of this plugin: the same hypotheses, with less work between two words.

What the search does at each word follows ``fairseq/sequence_generator.py`` of fairseq 0.12.2 line by line, and its
methods finalise hypotheses and force prefixes. What differs is how much is moved: see :mod:`.kv_cache`,
:mod:`.packed_linear` and :mod:`.beams`; the encoder's output is neither repeated per hypothesis nor reordered; and
on a GPU all but finalising is a CUDA graph, see :mod:`.word_graph`.
"""

from __future__ import annotations

import functools
import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.nn.functional import pad

from fairseq_residuals.plugin.search.beams import Beams, WordChoice, best_candidates, log_probs
from fairseq_residuals.plugin.search.kv_cache import BeamCache, FixedBeamCache, decode
from fairseq_residuals.plugin.search.packed_linear import PackedLinears
from fairseq_residuals.plugin.search.word_graph import WordGraph
from fairseq_residuals.plugin.torch_private import packs_matrices
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.speed.allocator import keep_freed_memory
from fairseq_residuals.wirings.utils.torch_private import has_hooks

Hypotheses = list[list[dict[str, Tensor]]]


def searchable(models: list[Any]) -> bool:
    """Return whether this is one model whose decoder is a wired stack."""
    decoder = getattr(models[0], "decoder", None) if len(models) == 1 else None
    return isinstance(getattr(decoder, "layers", None), Stack)


WIDEST_BEAM = 24
"""A hypothesis' word is compared with those of all hypotheses of its sentence, which from here on takes longer than to
reorder what was kept (results/bench/README.md)."""


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
        if device.type != "cpu" or not packs_matrices():
            return nullcontext()
        if not self.model.single_model._is_generation_fast:
            return PackedLinears()
        if self.packed is None:
            self.packed = PackedLinears()
        return self.packed

    def _cache(self, device: torch.device) -> type[BeamCache]:
        """Return the kind whose words are CUDA graphs where launching kernels takes longer than they do."""
        if device.type != "cuda" or has_hooks(self.model.single_model.decoder):
            return BeamCache
        return FixedBeamCache

    def _search(self, inputs: dict[str, Any], prefix: Tensor | None, first_word: int) -> Hypotheses:
        model, beam = self.model.single_model, self.beam_size
        sentences, source_length = inputs["src_tokens"].size()[:2]
        device = inputs["src_tokens"].device
        longest = min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)
        assert self.min_len <= longest, "min_len cannot be larger than max_len, please adjust these!"

        memory = model.encoder.forward_torchscript(inputs) if self.model.has_encoder() else None
        cache = self._cache(device)(sentences, beam, device)
        beams = Beams(sentences, beam, longest, first_word, self.pad, device)
        finalized: Hypotheses = [[] for _ in range(sentences)]
        finished = [False] * sentences

        replayed: Any = None
        for step in range(longest + 1):
            if step == 1 and isinstance(cache, FixedBeamCache):
                choice = self._choice(longest, device)
                replayed = WordGraph(model.decoder, beams, cache, memory, choice, self.eos)
            forced = prefix is not None and step < prefix.size(1)
            features = self._decode(step, memory, beams, cache) if replayed is None else replayed.run(step, forced)
            if replayed is None or not replayed.chooses:
                lprobs = self._restrict(step, longest, log_probs(self, features), beams, prefix)
                first, before = (lprobs[::beam], None) if step == 0 else (lprobs, beams.scores[: len(lprobs), step - 1])
                beams.choose(best_candidates(first, before, beam), self.eos)

            # the one look at the device of most words
            ended, ignored = beams.chosen().flags[: cache.sentences].cpu().unbind(1)
            leaving: list[int] = []
            if ended.any():
                attention = cache.attended(step + 1)
                # fairseq counts words from 1 there
                attention = None if attention is None else pad(attention, (1, 0))
                leaving = self.finalize_hypos(
                    step, *beams.ended(cache.sentences), beams.tokens, beams.scores, finalized, finished, beam,
                    attention, None, longest,
                )  # fmt: skip
            if all(finished):
                break
            assert step < longest
            if leaving:
                staying = torch.tensor([i for i in range(cache.sentences) if i not in leaving])
                ignored, staying = ignored[staying], staying.to(device)
                cache.leave(staying)
                beams.leave(functools.partial(cache.keep, sentences=staying))
                prefix = None if prefix is None else prefix[staying]
            assert (~ignored).any(dim=1).all()

        for hypotheses_of_one in finalized:
            hypotheses_of_one.sort(key=lambda hypothesis: -hypothesis["score"].item())
        return finalized

    def _decode(self, step: int, memory: Any, beams: Beams, cache: BeamCache) -> Tensor:
        """Let the hypotheses go on, and decode their words.

        Returns:
            What the output projection is fed (rows, 1, C), of the first word one row for each sentence.
        """
        if step > 0:
            parents = beams.parents()
            beams.go_on()
            cache.advance(parents)
        every = self.beam_size if step == 0 else 1
        return decode(self.model.single_model.decoder, beams.tokens[::every, : step + 1], memory, cache)

    def _choice(self, longest: int, device: torch.device) -> WordChoice | None:
        """Return what the graph of a word chooses its candidates by; None where it cannot.

        It cannot where a word may be forbidden to some hypotheses alone, or its probability takes several steps.
        """
        adaptive = getattr(self.model.single_model.decoder, "adaptive_softmax", None) is not None
        return None if adaptive or self.repeat_ngram_blocker is not None else WordChoice(self, longest, device)

    def _restrict(self, step: int, longest: int, lprobs: Tensor, beams: Beams, prefix: Tensor | None) -> Tensor:
        """Return log-probabilities of the words that may come next; all may be changed in place."""
        if step == 0:
            # one row for each sentence, as all of its hypotheses are still the same
            lprobs = lprobs.repeat_interleave(self.beam_size, 0)
            beams.scores = beams.scores.type_as(lprobs)
        tokens, scores = beams.tokens[: len(lprobs)], beams.scores[: len(lprobs)]
        lprobs[:, self.pad] = -torch.inf
        lprobs[:, self.unk] -= self.unk_penalty
        if step >= longest:
            lprobs[:, : self.eos] = -torch.inf
            lprobs[:, self.eos + 1 :] = -torch.inf
        if prefix is not None and step < prefix.size(1) and step < longest:
            # tokens and scores are changed in place
            lprobs = self._prefix_tokens(step, lprobs, scores, tokens, prefix, self.beam_size)[0]
        else:
            if step < self.min_len:
                lprobs[:, self.eos] = -torch.inf
            if self.token_indices_to_suppress is not None:
                lprobs[:, self.token_indices_to_suppress] = -torch.inf
        if self.repeat_ngram_blocker is not None:
            lprobs = self.repeat_ngram_blocker(tokens, lprobs, len(tokens) // self.beam_size, self.beam_size, step)
        return lprobs


def search_faster(module: types.ModuleType) -> None:
    """Build a :class:`FasterSequenceGenerator` for one model of this plugin.

    Another class that is asked for, or alignments, are left to fairseq. fairseq-generate, fairseq-interactive,
    ``from_pretrained`` and ``--eval-bleu`` call the method that is patched, which knows two classes alone
    (tasks/fairseq_task.py:464-469). Can stay as long as a task cannot be told from outside which class to build.
    """
    original = module.FairseqTask.build_generator

    @functools.wraps(original)
    def build_generator(self: Any, models: Any, args: Any, seq_gen_cls: Any = None, *rest: Any, **kwargs: Any) -> Any:
        each = list(getattr(models, "models", models))
        if seq_gen_cls is None and not getattr(args, "print_alignment", False) and searchable(each):
            seq_gen_cls = FasterSequenceGenerator
            if getattr(each[0], "keep_freed_memory", False) and next(each[0].parameters()).device.type == "cpu":
                keep_freed_memory()
        return original(self, models, args, seq_gen_cls, *rest, **kwargs)

    module.FairseqTask.build_generator = build_generator


def search_in_bf16(module: types.ModuleType) -> None:
    """Let ``--bf16`` put a model of this plugin into that precision in fairseq-generate, -interactive and -eval-lm.

    fairseq takes the flag and ignores it (fairseq_cli/generate.py:132 knows ``--fp16`` alone). With ``from_pretrained``
    the flag is that of the training, and the model stays as it is. Can go when fairseq > 0.12.2 heeds the flag.
    """
    original = module.BaseFairseqModel.prepare_for_inference_

    @functools.wraps(original)
    def prepare_for_inference_(self: Any, cfg: Any) -> None:
        original(self, cfg)
        if cfg.common.bf16 and not cfg.common.fp16 and cfg.common_eval.path and searchable([self]):
            self.bfloat16()

    module.BaseFairseqModel.prepare_for_inference_ = prepare_for_inference_
