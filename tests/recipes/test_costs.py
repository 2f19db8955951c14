"""What the dry run says that a table costs: from measured steps, by arithmetic that is checked by hand here."""

from __future__ import annotations

import csv
import re

import pytest
from recipe_files import read_job

from fairseq_residuals.experiments.costs import DEVICES, MEASURED, devices, matrices_of, summary
from fairseq_residuals.experiments.model_size import Matrices
from fairseq_residuals.utils.checkout import ROOT
from modern_fairseq.plain_yaml import read_yaml

GRAPHS = next(device for device in devices() if "--cuda-graphs" in device.name)
PLAIN = next(device for device in devices() if device.name == "H100, fp16")


def test_steps_are_those_of_the_reports() -> None:
    """Milliseconds in the tables of the GPU's report, seconds in the CSV of the CPU's."""
    for name, entry in read_yaml(DEVICES).items():
        report = ROOT / entry["report"]
        if report.suffix == ".csv":
            with report.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if row["precision"] == "fp32"]
            steps = {row["contestant"]: float(row["step s"]) for row in rows}
            assert [steps[entry["contestant"]]] * 2 == pytest.approx(entry["seconds"], abs=5e-5)
            continue
        # | contestant | machine | step | in a row | GPU | ...
        lines = re.findall(r"^\|.*\| [abc] \| ([\d.]+)(?: ms)? \|.*?\| ([\d.]*)(?: ms)? \|", report.read_text(), re.M)
        assert {f"{1000 * seconds:.1f}" for seconds in entry["seconds"]} <= {step for step, _ in lines}, name
        assert f"{1000 * entry['busy']:.1f}" in {busy for _, busy in lines}, name


def test_matrices_of_the_model_that_was_measured() -> None:
    """Its parameters are 148.9 million, norms and biases but few of them; Table 1's 18L-18L is that model."""
    assert MEASURED.multiplied == 148_897_792
    found = matrices_of(read_job("b2t/table1/18l_b2t"))
    assert found is not None
    assert (found.layers, found.multiplied, found.stored) == (36, MEASURED.multiplied, MEASURED.multiplied)


def test_a_language_model_has_no_attention_to_an_encoder() -> None:
    found = matrices_of(read_job("debian/language_model/16l_pre_ln"))
    assert found is not None
    assert (found.layers, found.multiplied) == (16, 16 * (4 + 8) * 512**2 + 32_768 * 512)


def test_hours_of_the_measured_model_are_its_steps() -> None:
    """50,000 updates of 128 passes: 6.4 million steps of 34 ms, or of 93 to 182."""
    steps = 50_000 * 128
    assert GRAPHS.hours(MEASURED, steps, 3584) == pytest.approx((60.4, 60.4), abs=0.1)
    assert PLAIN.hours(MEASURED, steps, 3584) == pytest.approx((165.0, 323.6), abs=0.1)


def test_a_narrow_model_costs_what_python_takes_for_its_layers() -> None:
    narrow = Matrices(36, MEASURED.multiplied // 16, 0)
    assert PLAIN.hours(narrow, 1000, 3584) == PLAIN.hours(MEASURED, 1000, 3584)
    assert GRAPHS.hours(narrow, 1000, 3584)[0] == pytest.approx(GRAPHS.hours(MEASURED, 1000, 3584)[0] / 16)


def test_a_wide_model_costs_what_the_device_computes() -> None:
    wide = Matrices(36, MEASURED.multiplied * 20, 0)
    assert PLAIN.hours(wide, 3600, 3584) == pytest.approx((20 * 0.0317,) * 2, rel=1e-3)


def test_the_summary_of_a_row() -> None:
    lines = list(summary([read_job("b2t/table1/18l_b2t")]))
    assert lines[0] == "1 runs, at most 50,000 updates of 6,400,000 passes on each device"
    assert "about 165 to 324 hours (H100, fp16; derived from results/bench/devices.yaml)" in lines
    assert "about 60 hours (H100, fp16, --cuda-graphs; derived from results/bench/devices.yaml)" in lines
    # 12 checkpoints of 148.9 million weights in half precision and two moments
    assert f"about {12 * 10 * MEASURED.multiplied / 2**30:.0f} GiB of checkpoints, corpora not counted" in lines
    assert "7 files to download or supply, 0 are here; `prepare --sources` lists them" in lines


def test_speech_is_not_reckoned() -> None:
    lines = list(summary([read_job("b2t/table5/6l_b2t")]))
    assert "1 runs of speech, of which no step was measured, are not in these hours" in lines
    assert not [line for line in lines if "derived from" in line]
