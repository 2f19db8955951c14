"""The best rate over depth: where a parabola has its minimum, and what its table says."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_residuals.lab.recipes.sweep import DIVERGED, SweepResult
from fairseq_residuals.lab.recipes.sweep_table import write_results
from fairseq_residuals.lab.recipes.synthetic_tasks import find_task
from fairseq_residuals.lab.recipes.synthetic_tasks.rates_over_depth import best_rate, main, scaled, table_rows
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.plugin.folders import locked

RUN = SweepResult("pre_ln", 0.001, 1, 400, "trained", "", 1.0, 1.0, None, 8.0, 1.0, 1.0, "abc", "2.0", "Abacus")
RATES = (0.001, 0.002, 0.004, 0.008)


def parabola(lowest: float, row: str = "pre_ln") -> list[SweepResult]:
    return [replace(RUN, row=row, lr=lr, valid_loss=1 + math.log(lr / lowest) ** 2) for lr in RATES]


@pytest.mark.parametrize("lowest", (0.002, 0.0027, 0.004))
def test_the_lowest_point_of_a_parabola_is_met(lowest: float) -> None:
    assert best_rate(parabola(lowest)) == pytest.approx(lowest)


@pytest.mark.parametrize("lowest", (0.0005, 0.02))
def test_a_minimum_beyond_the_rates_is_not_guessed(lowest: float) -> None:
    assert best_rate(parabola(lowest)) is None


def test_what_diverged_is_no_neighbour() -> None:
    runs = parabola(0.004)
    assert best_rate([*runs[:3], replace(runs[3], ended=DIVERGED)]) is None
    assert best_rate([]) is None


def test_the_first_depth_is_the_base_of_both_rows() -> None:
    results = {6: parabola(0.004), 18: [*parabola(0.002), *parabola(0.0036, scaled("pre_ln", 6))]}
    off, on = table_rows(results, ["pre_ln"])
    assert off == ["pre_ln", "off", "0.004", "0.002", "2.00"]
    assert on == ["pre_ln", "on", "0.004", "0.0036", "1.11"]
    assert scaled("pre_ln/final_norm=false", 6) == "pre_ln/final_norm=false,depth_mup=true,base_depth=6"


def test_what_is_finished_is_shown_while_more_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--out", str(tmp_path), "--rows", "pre_ln", "--layers", "6", "--lrs", *map(str, RATES), "--show"]
    assert main(call) != 0
    assert f"--show: nothing is finished in {tmp_path}" in capsys.readouterr().err
    task = find_task("translation")
    own = ("model.encoder_layers=6", "model.decoder_layers=6")
    workspace = Workspace.under(tmp_path, task, task.sizes, own, name="rates_over_depth-6l", any_code=True)
    workspace.folder.mkdir(exist_ok=True)
    write_results(workspace.results, parabola(0.0027))
    with locked(workspace.folder):
        assert main(call) == 0
    assert "pre_ln   off          0.0027 " in capsys.readouterr().out
    assert (tmp_path / "rates_over_depth.png").is_file()
