"""A search whose layers are replayed finds fairseq's hypotheses; tests/test_on_gpu.py has the graphs themselves."""

from __future__ import annotations

from typing import Any

import pytest
from reruns import instead_of_graphs
from test_generation import SETTINGS, WIRINGS, assert_same, both, model_of, net_input, registered

from fairseq_residuals.generation import kv_cache
from fairseq_residuals.generation.beam_search import FasterSequenceGenerator
from fairseq_residuals.generation.cuda_graph_cache import ReplayedBeamCache


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of words of every replay; there is little room for words, so that more has to be made."""
    seen: list[int] = []
    original = ReplayedBeamCache.layers

    def layers(self: Any, *args: Any) -> Any:
        seen.append(self.past.size(1))
        return original(self, *args)

    instead_of_graphs(monkeypatch)
    monkeypatch.setattr(kv_cache, "GROWTH", 4)
    monkeypatch.setattr(FasterSequenceGenerator, "_cache", lambda self, device: ReplayedBeamCache)
    monkeypatch.setattr(ReplayedBeamCache, "layers", layers)
    return seen


@pytest.mark.parametrize(("task", "variant"), registered())
def test_every_variant(task: str, variant: str, runs: list[int]) -> None:
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
