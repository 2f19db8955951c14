"""The decision rule on data whose answer is known."""

import random
import statistics
from functools import partial

import pytest
import torch
from scipy import stats

from fairseq_residuals.lab.compare.checks import _measure, seconds_in_turns
from fairseq_residuals.lab.compare.verdict import LEVEL, decide, holm, loss_at, smallest_difference
from fairseq_residuals.wirings.blocks.models import LanguageModel

SEEDS, ENTRIES, SIGMA = 5, 3, 0.01


def experiment(draw: random.Random, effect: float = 0.0) -> dict[str, str]:
    """The verdicts on entries of which the first differs from the baseline by ``effect``."""
    baseline = [draw.gauss(2.0, SIGMA) for _ in range(SEEDS)]
    pairs = {
        f"entry{i}": [(draw.gauss(2.0 + (effect if i == 0 else 0.0), SIGMA), b) for b in baseline]
        for i in range(ENTRIES)
    }
    return {verdict.entry: verdict.word for verdict in decide(pairs)}


def test_where_nothing_differs_a_finding_is_as_rare_as_the_level_says() -> None:
    draw = random.Random(1)
    false = [set(experiment(draw).values()) != {"not distinguishable"} for _ in range(2000)]
    # the entries share a baseline, which makes Holm's correction a little cautious
    assert 0.5 * LEVEL < statistics.fmean(false) < 1.2 * LEVEL


@pytest.mark.parametrize(("sign", "word"), [(-1, "better"), (1, "worse")])
def test_three_sigma_are_found(sign: int, word: str) -> None:
    draw = random.Random(2)
    found = [experiment(draw, sign * 3 * SIGMA)["entry0"] for _ in range(500)]
    assert found.count(word) > 0.7 * len(found)
    assert {"better": "worse", "worse": "better"}[word] not in found


def test_the_smallest_difference_is_found_as_often_as_is_said() -> None:
    draw = random.Random(3)
    smallest = smallest_difference(SEEDS, ENTRIES)
    found = [experiment(draw, -smallest * SIGMA)["entry0"] == "better" for _ in range(1000)]
    assert 0.78 < statistics.fmean(found) < 0.86  # Holm is at its strictest for the smallest p only
    assert smallest_difference(10, ENTRIES) < smallest < smallest_difference(SEEDS, 10)
    assert smallest_difference(1, 3) is None


def test_one_entry_is_scipys_paired_test() -> None:
    own, baseline = [1.0, 1.2, 1.1, 1.4], [1.3, 1.3, 1.35, 1.5]
    (verdict,) = decide({"b2t": list(zip(own, baseline, strict=True))})
    expected = stats.ttest_rel(own, baseline)
    assert verdict.p == pytest.approx(expected.pvalue)
    assert verdict.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert verdict.difference == pytest.approx(-0.1875)
    assert (verdict.word, verdict.pairs) == ("better", 4)


def test_holm_by_hand() -> None:
    # 0.01 * 4, 0.015 * 3 (0.045), 0.03 * 2, and the largest is at least as large as that
    assert holm([0.03, 0.01, 0.04, 0.015]) == pytest.approx([0.06, 0.04, 0.06, 0.045])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0)]])
def test_one_seed_decides_nothing(pairs: list[tuple[float, float]]) -> None:
    verdicts = decide({"b2t": pairs, "deepnet": [(1.0, 1.1), (1.0, 1.2), (1.0, 1.12)]})
    assert (verdicts[0].word, verdicts[0].p) == ("not decided", None)
    # what is not tested does not count among the tests that are corrected for
    assert verdicts[1].p == pytest.approx(stats.ttest_rel([1.0] * 3, [1.1, 1.2, 1.12]).pvalue)


def test_a_loss_between_two_validations_lies_on_a_line() -> None:
    """And is none before the first, or beside one that was no number."""
    curve = [(10, 3.0), (20, 2.0)]
    assert [loss_at(curve, at) for at in (9.5, 10, 15, 20, 21)] == [None, 3.0, 2.5, 2.0, 2.0]
    curve = [(10, 3.0), (20, float("inf")), (30, 2.0)]
    assert [loss_at(curve, at) for at in (10, 15, 20, 30)] == [3.0, None, None, 2.0]


def test_a_machine_that_slows_down_and_speeds_up_does_not_change_the_ratio_of_two_passes() -> None:
    draw = random.Random(3)
    speed = {"baseline": [draw.uniform(1, 2) for _ in range(20)]}  # of the machine, round by round
    speed["mine"] = list(speed["baseline"])
    speed["baseline"][4] = 0.5  # one pass by chance
    work = {"baseline": 1.0, "mine": 1.5}
    passes = {name: iter([work[name] * slow for slow in speed[name]]) for name in work}
    seconds = seconds_in_turns({name: partial(next, times) for name, times in passes.items()})
    assert seconds["mine"] / seconds["baseline"] == pytest.approx(1.5)
    assert 1 < seconds["baseline"] < 2


@pytest.mark.parametrize("pairs", [[(1.5, 1.5), (1.25, 1.25)], [(0.049, 0.051), (0.045, 0.047)]])
def test_differences_of_nothing_and_those_that_rounding_made_equal_decide_nothing(
    pairs: list[tuple[float, float]],
) -> None:
    (verdict,) = decide({"mine": pairs})
    assert verdict.word == "not distinguishable"
    assert verdict.p is not None and verdict.p > 0.05


def test_the_flops_of_attention_are_counted_on_a_cpu() -> None:
    """Where one wiring has PyTorch's attention, and another, as for its scores or a norm inside, has it written out."""
    counted = set()
    for wiring in ("pre_ln", "sub_ln", "realformer"):
        model = LanguageModel(wiring, vocab=50, dim=16, ffn_dim=32, depth=2, heads=2)
        start = _measure(model, lambda m, s: (m.loss(s), 1, {}), torch.full((2, 13), 5), True, 1, 1)
        counted.add(start.flops)
    # forward and twice as much backward, by 12 positions of 2 sentences
    assert counted == {3 * (2 * (4 * 2 * 24 * 16**2 + 2 * 2 * 24 * 12 * 16 + 2 * 2 * 24 * 16 * 32) + 2 * 24 * 16 * 50)}
