"""The benchmark prepares what it says, from a corpus that is the same each time."""

from __future__ import annotations

from pathlib import Path

from fairseq_residuals.lab.bench import preparation
from fairseq_residuals.lab.data.text.clean import zipped


def test_made_corpora_are_parallel_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        preparation.write_corpus(tmp_path, name, 250, seed=3, block=100)
    english, german = tmp_path / "a.en", tmp_path / "a.de"
    pairs = list(zipped([english, german]))
    assert len(pairs) == 250
    assert all(len(source.split()) == len(target.split()) for source, target in pairs)
    assert english.read_bytes() == (tmp_path / "b.en").read_bytes() != german.read_bytes()
    words = {number: preparation.word(number, "en") for number in range(5000)}
    assert len(set(words.values())) == 5000


def test_measuring_goes_through_every_step() -> None:
    found = preparation.measure(300, workers=1, merges=20)
    assert list(found.costs) == [*preparation.SHOWN, "all"]
    steps = [found.costs[name] for name in preparation.SHOWN]
    # a step may be done before the clock moves on
    assert all(cost.seconds >= 0 for cost in steps)
    assert found.costs["all"].seconds == sum(cost.seconds for cost in steps) > 0
    assert found.main_memory > 50
