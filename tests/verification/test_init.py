"""Initialisation against the authors' code: mean and spread of every parameter of freshly initialised models.

The files of tests/golden give them for 6 + 6 layers, 256 channels, five seeds. Where the plugin draws the same random
numbers in the same order as the authors' code, its figures from the same seeds are the same (``SAME``), but for
rounding in sums of up to 262,144 numbers and, in the file, to 7 decimals. Where it cannot, because fairseq 0.12 builds
the layers and weights are drawn anew afterwards (``ALIKE``), they are as far apart as those of five other seeds would
be: for n numbers of deviation s and k seeds, the standard error of a mean is s / sqrt(nk), that of a deviation at most
s / sqrt(2nk); the difference of two is sqrt(2) times that, and six times the result is allowed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import build_model
from golden_files import FOLDER, provenance, tensors_of
from test_init_options import drawn
from tiny import make_dictionary, make_task, settings, sizes_of

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import translate
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.variants.deepnet import alpha_beta
from tests.golden_check.archive import read_description
from tests.golden_check.fairseq_recipes import EncoderAlone, authors_of

SAME = {
    "postln": "transformer_post_ln",
    "postln_b2tfork": "transformer_post_ln",
    "preln": "transformer_pre_ln",
    "preln_b2tfork": "transformer_pre_ln",
    "b2t_june2022_c3dedea": "transformer_b2t",
    "b2t": "transformer_b2t --residual-args init_scale=depth",
    "b2t_noln_june2022_c3dedea": "transformer_b2t_no_ln",
    "b2t_noln": "transformer_b2t_no_ln --residual-args init_scale=depth",
    "residual": "transformer_resi_dual",
    "residual_s005": "transformer_resi_dual --residual-args scale=0.05",
    "normformer_encdec": "transformer_pre_ln --decoder-residual normformer --decoder-residual-args cross=false",
    "postln_lm": "transformer_lm_post_ln",
    "preln_lm": "transformer_lm_pre_ln",
    "preln_fsmain_lm": "transformer_lm_pre_ln",
    "b2t_lm": "transformer_lm_b2t --residual-args init_scale=depth",
    "b2t_noln_lm": "transformer_lm_b2t_no_ln --residual-args init_scale=depth",
    "normformer_lm": "transformer_lm_normformer",
    "normformer_resids_lm": "transformer_lm_normformer --residual-args scale_resids=true",
}
ALIKE = {
    "clinic_postln": "transformer_post_ln --residual-args init=fairseq_0.8",
    "dlclrepo_prenorm_baseline": "transformer_pre_ln --residual-args init=fairseq_0.8",
    "tfixuprepo_postln": "transformer_post_ln --residual-args init=fairseq_0.9",
    "tfixuprepo_preln": "transformer_pre_ln --residual-args init=fairseq_0.9",
    "dlcl_pre": "transformer_dlcl_pre",
    "dlcl_post": "transformer_dlcl_post",
    "admin": "transformer_admin",
    "tfixup": "transformer_t_fixup",
    "tfixup_sharedec": "transformer_t_fixup --share-decoder-input-output-embed",
    "deepnet": "transformer_deepnet --residual-args beta=torchscale",
    "deepnet_lm": "transformer_lm_deepnet --residual-args beta=torchscale",
    "deepnet_enc": "transformer_deepnet --residual-args beta=torchscale",
    "subln": "transformer_sub_ln",
    "subln_lm": "transformer_lm_sub_ln",
    "subln_enc": "transformer_sub_ln",
}
Values = dict[str, np.ndarray]
SEEDS = [1000, 1001, 1002, 1003, 1004]
"""Where a file does not say: what it holds of the embedding is what the others hold of it from these."""


def models(case: str, seeds: list[int], *, encoder_alone: bool = False) -> Iterator[Values]:
    """For each seed, every parameter by its name in a checkpoint.

    Args:
        case: an architecture, and flags.
    """
    arch, *flags = case.split()
    stacks = ("decoder",) if "_lm_" in arch else ("encoder", "decoder")
    if not any(flag.startswith("--share") for flag in flags):
        flags += ["--share-decoder-input-output-embed" if len(stacks) == 1 else "--share-all-embeddings"]
    for stack in stacks:
        flags += sizes_of(stack, 6, 256, 1024, heads=4)
    task = make_task()
    task.source_dictionary = task.target_dictionary = make_dictionary(996)
    for seed in seeds:
        torch.manual_seed(seed)
        args = settings(arch, *flags)
        if encoder_alone:
            wiring = Wiring.parse(args.residual, args.residual_args)
            model: Any = EncoderAlone(args, Namespace(source_dictionary=task.source_dictionary), wiring)
            initialise([(model.encoder, model.encoder.layers)])
        else:
            model = build_model(args, task)
        yield {fairseq_name(name): p.detach().numpy() for name, p in model.named_parameters()}


def compared(name: str, case: str) -> Iterator[tuple[str, dict[str, Any], list[np.ndarray]]]:
    """For each parameter of a file: its name there, its figures, and for each seed its values here."""
    file = read_description(FOLDER / f"{name}_init.json")
    alone = name.endswith("_enc")
    prefix = "encoder." if alone else ""
    theirs = {f"{prefix}{key}": figures for key, figures in file["initialization"].items()}
    # a parameter that is several of ours, or none of them, is found by a number that it is filled with
    filled = {key: torch.full(figures["shape"], float(i)) for i, (key, figures) in enumerate(theirs.items())}
    ours: dict[int, list[str]] = {}
    for key, value in translate(filled, authors_of(file["provenance"].get("repo"))).items():
        ours.setdefault(int(value.flatten()[0]), []).append(key)
    seeds = list(models(case, file["seeds"] or SEEDS, encoder_alone=alone))
    assert sorted(part for parts in ours.values() for part in parts) == sorted(seeds[0])
    for i, (key, figures) in enumerate(theirs.items()):
        if i in ours:
            values = [np.concatenate([seed[part] for part in ours[i]]) for seed in seeds]
            assert list(values[0].shape) == figures["shape"], key
            yield key, figures, values


@pytest.mark.parametrize("name", SAME)
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    for parameter, expected, values in compared(name, SAME[name]):
        assert [value.std() for value in values] == pytest.approx(expected["std_per_seed"], rel=1e-5, abs=1e-7), (
            parameter
        )
        # the mean of a sum of either sign is near zero: its digits are to be judged by the spread
        near = max(1e-8, 1e-6 * expected["std"])
        mean = np.mean([value.mean() for value in values])
        assert mean == pytest.approx(expected["mean"], rel=1e-5, abs=near), parameter
        assert np.mean([np.abs(value).max() for value in values]) == pytest.approx(expected["absmax"], rel=1e-6), (
            parameter
        )


@pytest.mark.parametrize("name", ALIKE)
def test_other_random_numbers_of_the_same_law(name: str) -> None:
    for parameter, expected, values in compared(name, ALIKE[name]):
        mean, std, largest = (np.mean(expected[key]) for key in ("mean", "std", "absmax"))
        found = [np.mean([f(value) for value in values]) for f in (np.mean, np.std, lambda v: np.abs(v).max())]
        if std == 0 or parameter.endswith("history.weight"):
            # not random; the files' deviations are unbiased in the repositories that have such a parameter
            spread = std * (1 - 1 / values[0].size) ** 0.5
            assert found == pytest.approx([mean, spread, largest], rel=1e-6), parameter
            continue
        numbers = values[0].size * len(values)
        assert found[0] == pytest.approx(mean, abs=6 * std * (2 / numbers) ** 0.5), parameter
        assert found[1] == pytest.approx(std, rel=6 * (1 / numbers) ** 0.5), parameter
        # tells a uniform law from a normal one, whose largest value is more than twice as far out
        assert found[2] == pytest.approx(largest, rel=0.25), parameter


@pytest.mark.parametrize(("name", "sharing"), [("S", "all-embeddings"), ("Sd", "decoder-input-output-embed")])
def test_the_ratios_of_t_fixup(name: str, sharing: str) -> None:
    """To fairseq's initialisation from the same seed, every number of a parameter."""
    flags = ("--encoder-layers", "2", "--decoder-layers", "2", f"--share-{sharing}")
    plain = drawn("init=fairseq_0.9", *flags)
    scaled = drawn("", *flags, arch="transformer_t_fixup")
    expected = provenance(FOLDER / f"tfixup_{name}.npz")["scale_ratio_Tfixup_over_plain_init_same_seed"]
    compared = 0
    for parameter, p in scaled.items():
        # zeros have no ratio: the file leaves them out
        if p.count_nonzero():
            low, high = expected[parameter]
            ratio = (p / plain[parameter])[p != 0]
            assert [ratio.min().item(), ratio.max().item()] == pytest.approx([low, high], rel=2e-6), parameter
            compared += 1
    # all but the biases of FFN and attention's output
    assert compared == 2 * 9 + 2 * 16 + (1 if name == "S" else 2)


def test_the_ratios_of_t_fixup_count_the_layers_of_each_stack() -> None:
    flags = ("--encoder-layers", "3", "--decoder-layers", "5")
    plain, scaled = drawn("init=fairseq_0.9", *flags), drawn("", *flags, arch="transformer_t_fixup")
    for parameter, ratio in {
        "encoder.layers.2.self_attn.v_proj.weight": 0.719962,
        "decoder.layers.4.encoder_attn.v_proj.weight": 0.546024,
        "encoder.layers.0.fc1.weight": 0.50909,
        "decoder.layers.1.self_attn.out_proj.weight": 0.386097,
        "encoder.embed_tokens.weight": 0.438691,
        "decoder.embed_tokens.weight": 0.386097,
        "decoder.output_projection.weight": 1.0,
    }.items():
        rows = slice(4, None)
        torch.testing.assert_close(scaled[parameter][rows], ratio * plain[parameter][rows], rtol=3e-6, atol=0)


@pytest.mark.parametrize("name", ["S", "Sd"])
def test_t_fixup_draws_what_the_authors_code_draws(name: str) -> None:
    """Until the first FFN, where it draws what fairseq 0.12 does not, the random numbers are the same."""
    theirs = translate(
        tensors_of(FOLDER / f"tfixup_{name}_initweights.npz", "init/"), authors_of("layer6ai-labs/T-Fixup")
    )
    hyper = provenance(FOLDER / f"tfixup_{name}_initweights.npz")["hyper"]
    flags = ["--share-all-embeddings" if hyper["share"] else "--share-decoder-input-output-embed"]
    for stack, layers in (("encoder", hyper["enc"]), ("decoder", hyper["dec"])):
        flags += sizes_of(stack, layers, hyper["d"], hyper["ffn"], hyper["heads"])
    task = make_task()
    torch.manual_seed(hyper["seed"])
    model = build_model(settings("transformer_t_fixup", *flags), task)
    ours = {fairseq_name(key): p.detach() for key, p in model.named_parameters()}
    first = [key for key in ours if key.startswith(("encoder.embed_tokens", "encoder.layers.0.self_attn."))]
    assert len(first) == 9
    for key in first:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-6, atol=1e-7, msg=key)
    for key, p in ours.items():
        # the rest is zero where theirs is, and of the same law
        assert bool(p.any()) == bool(theirs[key].any()), key
        if p.dim() == 2:
            assert p.std().item() == pytest.approx(theirs[key].std().item(), rel=6 * (1 / p.numel()) ** 0.5), key


def test_the_paper_s_initialisation_of_deepnet() -> None:
    """As in Transformer-Clinic, whose file gives the deviations of one small model; pooled, they tell beta."""
    parameters = tensors_of(FOLDER / "clinic_deepnet_S.npz", "param/")
    found: dict[tuple[str, bool], list[tuple[int, float]]] = {}
    for name, (_, std) in provenance(FOLDER / "clinic_deepnet_S.npz")["init_mean_std"].items():
        if ".layers." in name:
            p = parameters[name]
            scaled = not name.endswith(("q_proj_weight", "k_proj_weight"))
            gain = std / (2 / (p.size(0) + p.size(1))) ** 0.5
            found.setdefault((name.partition(".")[0], scaled), []).append((p.numel(), gain))
    for (stack, scaled), gains in found.items():
        n = sum(numbers for numbers, _ in gains)
        gain = (sum(numbers * g**2 for numbers, g in gains) / n) ** 0.5
        expected = alpha_beta(StackShape(stack, 2, 16, 32, 2, 2, 2, cross=True))[1] if scaled else 1.0  # type: ignore[arg-type]
        assert gain == pytest.approx(expected, rel=6 / (2 * n) ** 0.5), (stack, scaled)

    for name, values in next(models("transformer_deepnet", [1])).items():
        if ".layers." in name and name.endswith(("_proj.weight", "fc1.weight", "fc2.weight")):
            stack = name.partition(".")[0]
            beta = 0.87 * 6 ** (-5 / 16) if stack == "encoder" else 72**-0.25
            expected = (1.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else beta) * (
                2 / sum(values.shape)
            ) ** 0.5
            assert values.std() == pytest.approx(expected, rel=6 / (2 * values.size) ** 0.5), name
            assert np.abs(values).max() > 3.5 * expected, name
