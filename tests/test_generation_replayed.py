"""A search whose layers are replayed finds fairseq's hypotheses; tests/test_on_gpu.py has the graphs themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reruns import Rerun, RerunWithoutLooks, instead_of_graphs
from test_generation import (
    PREFIXES,
    SETTINGS,
    WIRINGS,
    assert_same,
    both,
    model_of,
    net_input,
    registered,
)
from tiny import EOS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_residuals.plugin.search import kv_cache
from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator
from fairseq_residuals.plugin.search.kv_cache import FixedBeamCache
from fairseq_residuals.plugin.search.word_graph import WordGraph


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of words of every replay; there is little room for words, so that more has to be made."""
    seen: list[int] = []
    original = WordGraph.run

    def run(self: Any, step: int, forced: bool) -> Any:
        seen.append(step)
        return original(self, step, forced)

    instead_of_graphs(monkeypatch, RerunWithoutLooks)
    monkeypatch.setattr(kv_cache, "GROWTH", 4)
    monkeypatch.setattr(FasterSequenceGenerator, "_cache", lambda self, device: FixedBeamCache)
    monkeypatch.setattr(WordGraph, "run", run)
    return seen


@pytest.mark.parametrize(("task", "variant"), registered())
def test_a_wiring_of_each_shape(task: str, variant: str, runs: list[int]) -> None:
    inputs = net_input(task)
    prefix = inputs["src_tokens"][:, 1:3] if task == "language_modeling" else None
    # no sentence may end before the cache has grown twice
    assert_same(*both([model_of(task, variant)], inputs, prefix, min_len=10))
    assert max(runs) > 8


@pytest.mark.parametrize("name", WIRINGS)
def test_other_wirings(name: str, runs: list[int]) -> None:
    variant, flags = WIRINGS[name]
    assert_same(*both([model_of("translation", variant, *flags)], net_input("translation")))
    assert runs


@pytest.mark.parametrize("settings", ({}, {"min_len": 5, "unk_penalty": 0.5, "temperature": 1.3}), ids=str)
def test_candidates_are_chosen_by_what_is_replayed(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is projected or restricted outside of it after the first word."""
    steps: list[int] = []
    original = FasterSequenceGenerator._restrict

    def restrict(self: Any, step: int, *args: Any) -> Any:
        steps.append(step)
        return original(self, step, *args)

    monkeypatch.setattr(FasterSequenceGenerator, "_restrict", restrict)
    assert_same(*both([model_of("translation", "pre_ln")], net_input("translation", 5), **settings))
    assert steps == [0]


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    assert_same(*both([model_of("translation", "realformer")], net_input("translation", 5), **SETTINGS[name]))


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_prefixes(task: str, name: str, runs: list[int]) -> None:
    """Words that are forced are chosen outside of the graph, which then goes on by them."""
    prefix = torch.tensor(PREFIXES[name])
    found = both([model_of(task, "resi_dual")], net_input(task), prefix)
    assert_same(*found, attention=EOS not in prefix)
    assert runs


@pytest.mark.parametrize("flags", ((), ("--decoder-learned-pos",), ("--adaptive-softmax-cutoff", "10,20")), ids=str)
def test_embeddings_that_sort_words_by_their_values_are_not_in_the_graph(flags: tuple[str, ...]) -> None:
    model = model_of("language_modeling", "pre_ln", "--adaptive-input", "--adaptive-input-cutoff", "10,20", *flags)
    inputs = net_input("language_modeling")
    assert_same(*both([model], inputs, inputs["src_tokens"][:, 1:3]))


@pytest.mark.parametrize(("beam", "factor"), ((4, -0.5), (1, -1)))
def test_sentences_that_leave_early(beam: int, factor: float) -> None:
    """Some hypothesis is empty. With a beam of one a sentence is, and leaves before there is a graph."""
    model: Any = model_of("translation", "pre_ln")
    with torch.no_grad():
        # the end is then likely, of some sentences more than of others
        model.decoder.output_projection.weight[EOS] *= factor
    expected, found = both([model], net_input("translation", 6), beam_size=beam, max_len_b=40, min_len=0)
    assert_same(expected, found)
    assert len({max(len(hypothesis["tokens"]) for hypothesis in one) for one in found}) > 2
    assert min(len(hypothesis["tokens"]) for one in found for hypothesis in one) == 1


class Seen(TorchDispatchMode):
    """The names of the operations outside of what is replayed, between two words."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.counts = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.counts:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_word_is_one_replay_and_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing ends, nothing is computed on the device between two words; the host looks at their flags."""
    seen = Seen()
    run, replay = WordGraph.run, Rerun.replay

    def counted(self: Any, step: int, forced: bool) -> Any:
        seen.counts = 5 <= step <= 7  # there is room for 8 words, and no sentence ends
        return run(self, step, forced)

    def uncounted(self: Any) -> None:
        counts, seen.counts = seen.counts, False
        replay(self)
        seen.counts = counts

    monkeypatch.setattr(WordGraph, "run", counted)
    monkeypatch.setattr(Rerun, "replay", uncounted)
    with seen:
        both([model_of("translation", "pre_ln")], net_input("translation"), min_len=10)
    on_the_host = {"any", "all", "bitwise_not", "_local_scalar_dense"}
    assert seen.names == {"slice", "unbind", *on_the_host}


def test_looking_at_values_is_refused_as_by_a_device() -> None:
    def look() -> Tensor:
        return torch.ones(3)[torch.ones(3, dtype=torch.bool)]

    with pytest.raises(RuntimeError, match="index looks at values while a graph is recorded"):
        RerunWithoutLooks(look, torch.device("cpu"), None)
