"""Which cells are next, against losses whose best rate is known."""

import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_residuals.lab.compare import command
from fairseq_residuals.lab.compare.cells import Cell, Ended, Result, judged
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import (
    Plan,
    at_best_rate,
    best_rate,
    cells_of,
    is_edge,
    next_cells,
    rate_losses,
)
from fairseq_residuals.lab.compare.verdict import decide

PRE_LN, B2T = Entry("pre_ln", "pre_ln", ""), Entry("b2t", "b2t", "")
PLAN = Plan([PRE_LN, B2T], (0.002, 0.001, 0.004), True, seeds=2, baseline_seeds=4)


def result(entry: str, lr: float, seed: int, loss: float = 2.0, ended: Ended = "learned") -> Result:
    return Result(
        *(entry, lr, seed, ended, "", loss, loss, None, "", 4.0, 100, 80, 0.01),
        *(f"40:{loss + 1} 80:{loss}", "s", "d", "fairseq-train", "c", "t", "cpu"),
    )


def carry_out_by(plan: Plan, loss: Callable[[Cell], float]) -> list[Result]:
    """All results; what is done is not done again, or this would not end."""
    results: list[Result] = []
    while cells := next_cells(plan, results):
        results += [result(*cell.key, loss(cell)) for cell in cells]
        assert len(results) < 200
    return results


def carry_out(plan: Plan, best: dict[str, float]) -> list[Result]:
    """All results where an entry's loss is the distance to its best rate, in factors of two."""
    return carry_out_by(plan, lambda cell: abs(math.log2(cell.lr / best[cell.entry.name])))


def test_rates_grow_until_the_best_has_a_worse_neighbour_on_each_side() -> None:
    results = carry_out(PLAN, {"pre_ln": 0.002, "b2t": 0.0005})
    grids = {e.name: rate_losses(e, results) for e in PLAN.entries}
    assert sorted(grids["pre_ln"]) == [0.001, 0.002, 0.004]
    assert sorted(grids["b2t"]) == [0.00025, 0.0005, 0.001, 0.002, 0.004]
    assert {name: best_rate(grid) for name, grid in grids.items()} == {"pre_ln": 0.002, "b2t": 0.0005}
    assert not any(is_edge(best_rate(grid), grid) for grid in grids.values())


def test_rates_of_an_earlier_call_leave_no_gap_beside_the_best() -> None:
    results = [result("pre_ln", 0.032, 1, 2.0)]
    while cells := next_cells(replace(PLAN, entries=[PRE_LN], seeds=1, baseline_seeds=1), results):
        results += [result(c.entry.name, c.lr, c.seed, abs(math.log2(c.lr / 0.008))) for c in cells]
    assert best_rate(rate_losses(PRE_LN, results)) == 0.008
    assert sorted(rate_losses(PRE_LN, results)) == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]


def test_seeds_follow_at_the_best_rate_paired_and_the_baseline_has_more() -> None:
    results = carry_out(PLAN, {"pre_ln": 0.002, "b2t": 0.004})
    further = [o.key for o in results if o.seed > 1]
    assert further == [("pre_ln", 0.002, 2), ("pre_ln", 0.002, 3), ("pre_ln", 0.002, 4), ("b2t", 0.004, 2)]


def test_no_entry_waits_for_another_and_the_same_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rate of b2t ends only once Pre-LN, whose rates are known, has begun its seeds."""
    best, seeds_begun = {"pre_ln": 0.002, "b2t": 0.0005}, threading.Event()

    def train(comparison: Any, cell: Cell, *_: Any) -> Result:
        if cell.seed > 1:
            seeds_begun.set()
        assert cell.key != ("b2t", 0.001, 1) or seeds_begun.wait(60)
        return result(*cell.key, abs(math.log2(cell.lr / best[cell.entry.name])))

    monkeypatch.setattr(command, "carry_out", train)
    results: list[Result] = []
    comparison: Any = SimpleNamespace(rung=SimpleNamespace(updates=80))
    command._train(comparison, PLAN, results, list, dict.fromkeys(best, 1.0), [{}, {}], math.inf, None)
    assert {o.key for o in results} == {o.key for o in carry_out(PLAN, best)} and len(results) == 12


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        # 0.001 leads by seed 1, and no longer once it has all
        ({0.001: (1.0, 1.4, 1.3, 1.4), 0.002: (1.1, 1.2, 1.1, 1.2), 0.004: (3.0,), 0.0005: (3.0,)}, 0.002),
        # 0.001 is 0.075 worse, less than the error of 0.107; with a second seed 0.225, more than 0.117
        ({0.001: (1.2, 1.5), 0.002: (1.0, 1.2, 1.1, 1.2), 0.004: (3.0,)}, 0.002),
    ],
)
def test_rates_that_one_seed_cannot_tell_apart_get_more(losses: dict[float, tuple[float, ...]], best: float) -> None:
    plan = replace(PLAN, entries=[PRE_LN], seeds=4)
    results = carry_out_by(plan, lambda cell: losses[cell.lr][cell.seed - 1])
    assert {lr: len(seeds) for lr, seeds in rate_losses(PRE_LN, results).items()} == {
        lr: len(seeds) for lr, seeds in losses.items()
    }
    assert [o.lr for o in at_best_rate(PRE_LN, results, plan)] == [best] * 4


def test_before_the_end_the_rate_with_most_seeds_is_reported() -> None:
    """0.001, whose first seed now is better than the mean of the others' three, is to have three as well."""
    results = [result("pre_ln", 0.002, seed, 1.2) for seed in (1, 2, 3)]
    results += [result("pre_ln", lr, 1, loss) for lr, loss in ((0.001, 1.1), (0.004, 3.0), (0.0005, 3.0))]
    plan = replace(PLAN, entries=[PRE_LN], seeds=3, baseline_seeds=3)
    assert [cell.key for cell in next_cells(plan, results)] == [("pre_ln", 0.001, 2), ("pre_ln", 0.001, 3)]
    assert [o.lr for o in at_best_rate(PRE_LN, results, plan)] == [0.002] * 3
    # a better rate of the baseline has as many as an entry has, but not yet its eight
    results += [result("pre_ln", 0.002, seed, 1.2) for seed in range(4, 9)]
    results += [result("pre_ln", 0.001, seed, 1.1) for seed in (2, 3)]
    assert [o.lr for o in at_best_rate(PRE_LN, results, replace(plan, baseline_seeds=8))] == [0.001] * 3


@pytest.mark.parametrize("ended", ["learned", "diverged"])
def test_more_seeds_at_a_rate_of_an_earlier_call_do_not_make_it_the_best(ended: Ended) -> None:
    """As of what was the baseline then, or had more --seeds, at the --rates of that call."""
    results = [result("pre_ln", 0.004, seed, 3.0, ended) for seed in range(1, 9)]
    plan = replace(PLAN, entries=[PRE_LN], seeds=3, baseline_seeds=3)
    while cells := next_cells(plan, results):
        results += [result(*cell.key, 1 + abs(math.log2(cell.lr / 0.002))) for cell in cells]
    assert [o.lr for o in at_best_rate(PRE_LN, results, plan)] == [0.002] * 3
    assert not is_edge(0.002, rate_losses(PRE_LN, results))


def test_equal_wirings_are_told_apart_as_rarely_as_the_level_says() -> None:
    """Where neighbours of the best rate are two standard deviations worse; one seed's choice made it 16%."""
    draw, plan, found = random.Random(2), replace(PLAN, seeds=5, baseline_seeds=8), 0
    for _ in range(1000):
        results = carry_out_by(plan, lambda cell: 9 + 2 * math.log2(cell.lr / 0.002) ** 2 + draw.gauss(0, 1))
        own, baseline = ({o.seed: o.loss for o in at_best_rate(entry, results, plan)} for entry in (B2T, PRE_LN))
        (verdict,) = decide({"b2t": [(own[seed], baseline[seed]) for seed in sorted(own)]})
        found += verdict.word != "not distinguishable"
    assert 30 < found < 80


def test_a_grid_that_never_turns_ends_and_says_so() -> None:
    results = carry_out(PLAN, {"pre_ln": 0.002, "b2t": 1e9})
    grid = rate_losses(B2T, results)
    assert len(grid) == 9 and is_edge(best_rate(grid), grid)


def test_given_rates_are_the_only_ones() -> None:
    plan = replace(PLAN, rates=(0.001,), grows=False, seeds=1, baseline_seeds=1)
    results = carry_out(plan, {"pre_ln": 0.002, "b2t": 0.004})
    assert [o.key for o in results] == [("pre_ln", 0.001, 1), ("b2t", 0.001, 1)]


@pytest.mark.parametrize("ended", ["diverged", "failed"])
def test_where_all_rates_diverge_lower_ones_are_tried_and_no_seeds(ended: Ended) -> None:
    plan = replace(PLAN, entries=[PRE_LN, B2T])
    results = [result("pre_ln", lr, 1, abs(lr - 0.002)) for lr in plan.rates]
    results += [result("b2t", lr, 1, 9.0, ended) for lr in plan.rates]
    assert [c.lr for c in cells_of(B2T, plan, results)] == [0.0005]
    while cells := next_cells(plan, results):
        results += [result(c.entry.name, c.lr, c.seed, 9.0, ended if c.entry == B2T else "learned") for c in cells]
    assert {o.seed for o in results if o.entry == "b2t"} == {1}


@pytest.mark.parametrize(("loss", "ended"), [(3.6, "learned"), (3.61, "did not learn")])
@pytest.mark.parametrize("written", ["learned", "did not learn"])
def test_one_rule_says_whether_a_model_learned(loss: float, ended: Ended, written: Ended) -> None:
    """The unigram loss is 4; what an earlier version wrote into runs.csv does not count."""
    found = judged(result("b2t", 0.001, 1, loss, written))
    assert (found.ended, bool(found.reason)) == (ended, ended == "did not learn")
    assert judged(result("b2t", 0.001, 1, loss, "diverged")).ended == "diverged"
