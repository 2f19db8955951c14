"""What the faster beam search leaves to fairseq's, and flags of fairseq's that it honours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq import search
from fairseq.modules import FairseqDropout
from fairseq.sequence_generator import SequenceGenerator
from test_generation import assert_same, both, model_of, net_input, searched  # noqa: F401
from tiny import build_stock, make_dictionary, perturb

from fairseq_residuals.plugin.search.beam_search import WIDEST_BEAM, FasterSequenceGenerator


def test_what_is_left_to_fairseq(searched: list[int]) -> None:  # noqa: F811
    ours, other = model_of("translation", "pre_ln"), model_of("translation", "post_ln")
    words = make_dictionary()
    inputs = net_input("translation")
    lists: dict[str, Any] = {
        "an ensemble": ([ours, other], {}),
        "fairseq's own model": ([perturb(build_stock("translation", normalize_before=True), scale=0.3)], {}),
        "groups": ([ours], {"search_strategy": search.DiverseBeamSearch(words, 2, 0.5)}),
        "the source's length": (
            [ours],
            {"match_source_len": True, "search_strategy": search.LengthConstrainedBeamSearch(words, 1, 0, 1, 0)},
        ),
        "a language model": ([ours], {"lm_model": model_of("language_modeling", "pre_ln"), "lm_weight": 0.3}),
    }
    for models, settings in lists.values():
        assert_same(*both(models, inputs, **settings))
    torch.manual_seed(1)
    sampling = FasterSequenceGenerator([ours], words, beam_size=4, max_len_b=12, search_strategy=search.Sampling(words))
    assert sampling.generate([ours], {"net_input": inputs})
    assert not searched


@pytest.mark.parametrize("beam", (WIDEST_BEAM, WIDEST_BEAM + 1))
def test_wide_beams(beam: int, searched: list[int]) -> None:  # noqa: F811
    assert_same(*both([model_of("translation", "post_ln")], net_input("translation"), beam_size=beam))
    assert bool(searched) is (beam == WIDEST_BEAM)


def test_dropout_in_inference(searched: list[int]) -> None:  # noqa: F811
    model, inputs = model_of("translation", "pre_ln", "--dropout", "0.3"), net_input("translation")
    for module in model.modules():
        if isinstance(module, FairseqDropout):
            module.apply_during_inference = True
    found = []
    for kind in (SequenceGenerator, FasterSequenceGenerator, FasterSequenceGenerator):
        torch.manual_seed(len(found) // 2)
        found.append(
            kind([model], make_dictionary(), beam_size=4, max_len_b=12).generate([model], {"net_input": inputs})
        )
    assert_same(*found[:2])
    assert found[0][0][0]["score"] != found[2][0][0]["score"]
    assert not searched


@pytest.mark.parametrize("task", ("translation", "speech"))
def test_in_bf16(task: str) -> None:
    """Sound stays in single precision in what fairseq hands to the searches that are left to it."""
    model, words = model_of(task, "pre_ln").bfloat16(), make_dictionary()
    for strategy in (search.Sampling(words), search.DiverseBeamSearch(words, 2, 0.5)):
        generator = FasterSequenceGenerator([model], words, beam_size=4, max_len_b=12, search_strategy=strategy)
        assert generator.generate([model], {"net_input": net_input(task)})


@pytest.mark.parametrize("size", (1, 2, 3))
def test_no_ngram_comes_twice(size: int) -> None:
    """Where no prefix has it twice."""
    model, inputs = model_of("translation", "b2t"), net_input("translation")
    for allowed in (0, size):
        settings = {"max_len_b": 40, "min_len": 30, "no_repeat_ngram_size": allowed}
        for found in both([model], inputs, **settings):
            repeated = []
            for tokens in (h["tokens"].tolist() for one in found for h in one):
                ngrams = list(zip(*(tokens[i:] for i in range(size)), strict=False))
                repeated.append(len(set(ngrams)) < len(ngrams))
            assert any(repeated) is (allowed == 0)
    prefix = torch.full((len(inputs["src_tokens"]), 4), 5)
    expected, found = both([model], inputs, prefix, no_repeat_ngram_size=size)
    assert_same(expected, found)
    assert all(h["tokens"][:4].eq(5).all() for one in found for h in one)
