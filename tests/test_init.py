"""Initialisation against the authors' code: mean, spread and largest magnitude of every parameter.

The files of tests/golden give them for 6 + 6 layers, 256 channels, five seeds. The plugin draws the same
random numbers in the same order as the authors' code, so its figures are not merely as large as theirs: from
the same seeds they are the same, but for rounding in sums of up to 262,144 numbers and, in the file, to 7
decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import build_model
from tiny import make_dictionary, make_task, settings

from fairseq_residuals.names import fairseq_name

FOLDER = Path(__file__).parent / "golden"
CASES = {
    "postln": ("transformer_post_ln", ""),
    "preln": ("transformer_pre_ln", ""),
    "b2t_june2022_c3dedea": ("transformer_b2t", ""),
    "b2t": ("transformer_b2t", "init_scale=depth"),
    "postln_lm": ("transformer_lm_post_ln", ""),
    "preln_lm": ("transformer_lm_pre_ln", ""),
    "preln_fsmain_lm": ("transformer_lm_pre_ln", ""),
    "b2t_lm": ("transformer_lm_b2t", "init_scale=depth"),
}


def figures(arch: str, args: str, seeds: list[int]) -> Iterator[dict[str, dict[str, float]]]:
    """For each seed, mean, spread and largest magnitude of every parameter, by its name in a checkpoint."""
    stacks = ("decoder",) if "_lm_" in arch else ("encoder", "decoder")
    flags = [
        "--residual-args",
        args,
        "--share-decoder-input-output-embed" if len(stacks) == 1 else "--share-all-embeddings",
    ]
    for stack in stacks:
        flags += [f"--{stack}-layers", "6", f"--{stack}-embed-dim", "256", f"--{stack}-ffn-embed-dim", "1024"]
        flags += [f"--{stack}-attention-heads", "4"]
    task = make_task()
    task.source_dictionary = task.target_dictionary = make_dictionary(996)
    for seed in seeds:
        torch.manual_seed(seed)
        model = build_model(settings(arch, *flags), task)
        values = {fairseq_name(name): p.detach().numpy() for name, p in model.named_parameters()}
        yield {
            name: {"mean": value.mean(), "std": value.std(), "absmax": np.abs(value).max()}
            for name, value in values.items()
        }


@pytest.mark.parametrize("name", CASES)
def test_initialisation(name: str) -> None:
    theirs: dict[str, Any] = json.loads((FOLDER / f"{name}_init.json").read_text())
    seeds = list(figures(*CASES[name], theirs["seeds"]))
    assert {len(ours) for ours in seeds} == {len(theirs["stats"])}
    for parameter, expected in theirs["stats"].items():
        found = {key: [ours[parameter][key] for ours in seeds] for key in ("mean", "std", "absmax")}
        assert found["std"] == pytest.approx(expected["std_per_seed"], rel=1e-5, abs=1e-7), parameter
        # the mean of a sum of either sign is near zero: its digits are to be judged by the spread
        near = max(1e-8, 1e-6 * expected["std"])
        assert np.mean(found["mean"]) == pytest.approx(expected["mean"], rel=1e-5, abs=near), parameter
        assert np.mean(found["absmax"]) == pytest.approx(expected["absmax"], rel=1e-6), parameter


def test_b2t_scales_matrices_by_depth_and_nothing_else() -> None:
    (plain,), (scaled,) = (list(figures("transformer_b2t", args, [1])) for args in ("", "init_scale=depth"))
    ratios = {name: scaled[name]["std"] / plain[name]["std"] for name in plain if plain[name]["std"] > 0}
    matrices = {name for name in ratios if ".layers." in name and name.endswith("weight")}
    assert len(matrices) == 6 * (6 + 10)
    for name, ratio in ratios.items():
        assert ratio == pytest.approx(6**-0.5 if name in matrices else 1, rel=1e-5), name
