"""The options ``init`` and ``init_scale``, common to all variants, against the formulas of their papers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fairseq.models import build_model
from tiny import build, make_dictionary, make_task, settings, sizes_of, stacks
from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name

STACKS = ("encoder", "decoder")
LAYERS, DIM, FFN, WORDS = 3, 64, 96, 60


def drawn(args: str, *flags: str, arch: str = "transformer_post_ln", seed: int = 1) -> dict[str, Tensor]:
    """Parameters as initialised, by their names in a checkpoint."""
    sizes = [flag for stack in STACKS for flag in sizes_of(stack, LAYERS, DIM, FFN, heads=4)]
    task = make_task()
    task.source_dictionary = task.target_dictionary = make_dictionary(WORDS - 4)
    torch.manual_seed(seed)
    model = build_model(settings(arch, "--residual-args", args, *sizes, *flags), task)
    return {fairseq_name(name): p.detach() for name, p in model.named_parameters()}


def matrices(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weight matrices of the layers."""
    return {name: p for name, p in parameters.items() if re.search(r"\.layers\.\d", name) and p.dim() == 2}


def biases(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the matrices of the layers."""
    return {name: p for name, p in parameters.items() if re.search(r"\.layers\..*(_proj|fc\d)\.bias$", name)}


def is_uniform(values: Tensor, bound: float) -> None:
    """Within the bound, up to it, and with the spread of U(±bound); n values are within 6 standard errors."""
    n, largest = values.numel(), values.abs().max().item()
    assert bound * (1 - 20 / n) < largest <= bound * (1 + 1e-6)
    assert values.std().item() == pytest.approx(bound / 3**0.5, rel=6 * (0.2 / n) ** 0.5)
    assert abs(values.mean().item()) < 6 * bound / (3 * n) ** 0.5


def xavier(p: Tensor) -> float:
    return (6 / (p.size(0) + p.size(1))) ** 0.5


def is_normal(values: Tensor, std: float) -> None:
    """With the spread of N(0, std^2) and its share of values beyond one and a half deviations."""
    n = values.numel()
    assert values.std().item() == pytest.approx(std, rel=6 / (2 * n) ** 0.5)
    assert (values.abs() > 1.5 * std).float().mean().item() == pytest.approx(0.1336, abs=6 * (0.1336 / n) ** 0.5)


def test_small_init() -> None:
    """Nguyen and Salazar 2019, section 3.1: attention N(0, 2/(5d)), FFN N(0, 2/(d+f))."""
    parameters = drawn("init=small,fixnorm=true", "--share-all-embeddings")
    for name, p in matrices(parameters).items():
        is_normal(p, (2 / (5 * DIM)) ** 0.5 if "_attn." in name else (2 / (DIM + FFN)) ** 0.5)
    assert all(not p.any() for p in biases(parameters).values())
    is_uniform(parameters["encoder.embed_tokens.weight"], 0.01)
    plain = drawn("init=small", "--share-all-embeddings")["encoder.embed_tokens.weight"]
    assert torch.equal(plain, drawn("init=fairseq", "--share-all-embeddings")["encoder.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("init", "power"),
    [("xavier", 0.0), ("ds_init", 0.5), ("ds_init_code", 0.25)],
)
def test_xavier_over_a_power_of_the_layers_number(init: str, power: float) -> None:
    parameters = drawn(f"init={init}")
    found = matrices(parameters)
    assert len(found) == LAYERS * (6 + 10)
    for name, p in found.items():
        layer = int(name.split(".")[2]) + 1
        is_uniform(p, xavier(p) * layer**-power)
    assert all(p.eq(0).all() for p in biases(parameters).values())


@pytest.mark.parametrize("args", ["init=lipschitz", "init=small,fixnorm=true"])
def test_embeddings_from_a_file_are_not_drawn_anew(args: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text(f"1 {DIM}\nw3{' 7.0' * DIM}\n")
    flags = ("--share-all-embeddings", *(f"--{stack}-embed-path={tmp_path / 'words'}" for stack in STACKS))
    assert drawn("init=small", *flags)["encoder.embed_tokens.weight"][7].eq(7.0).all()
    with pytest.raises(UserError, match="--encoder-embed-path gives embeddings that the wiring post_ln draws anew"):
        drawn(args, *flags)


@pytest.mark.parametrize("shared", [False, True])
def test_lipschitz(shared: bool) -> None:
    parameters = drawn("init=lipschitz", *(["--share-all-embeddings"] if shared else []))
    for p in matrices(parameters).values():
        is_uniform(p, p.size(1) ** -0.5)
    assert len(biases(parameters)) == LAYERS * (6 + 10)
    assert all(p.eq(0).all() for p in biases(parameters).values())
    tables = {name: p for name, p in parameters.items() if "embed_tokens" in name}
    assert len(tables) == (1 if shared else 2)
    for p in tables.values():
        assert p[1].eq(0).all()
        is_uniform(p[torch.arange(WORDS) != 1], (2 / (WORDS + DIM)) ** 0.5)
    if not shared:
        is_uniform(parameters["decoder.output_projection.weight"], DIM**-0.5)


def test_lipschitz_leaves_a_shared_output_matrix_drawn_as_the_embedding() -> None:
    parameters = drawn("init=lipschitz", "--share-decoder-input-output-embed")
    assert "decoder.output_projection.weight" not in parameters
    is_uniform(parameters["decoder.embed_tokens.weight"][4:], (2 / (WORDS + DIM)) ** 0.5)


@pytest.mark.parametrize("decoder", ["t_fixup", "post_ln"])
def test_a_table_of_both_stacks_is_drawn_and_scaled_by_the_encoder(decoder: str) -> None:
    flags = ("--share-all-embeddings", "--decoder-residual", decoder, "--decoder-residual-args", "init=lipschitz")
    table = drawn("init=lipschitz", *flags, arch="transformer_t_fixup")["encoder.embed_tokens.weight"]
    is_uniform(table[torch.arange(WORDS) != 1], (2 / (WORDS + DIM)) ** 0.5 * (9 * LAYERS) ** -0.25)


def test_t_fixup_gives_values_the_gain_back_that_they_lost() -> None:
    for init in ("xavier", "fairseq_0.9"):
        for name, p in matrices(drawn(f"init={init}", arch="transformer_t_fixup")).items():
            if name.endswith("v_proj.weight"):
                factor = 0.67 * LAYERS**-0.25 if name.startswith("encoder") else (9 * LAYERS) ** -0.25
                is_uniform(p, factor * xavier(p))


@pytest.mark.parametrize(("scale", "factor"), [("0.1", 0.1), ("depth", LAYERS**-0.5)])
@pytest.mark.parametrize(
    ("arch", "args"), [("post_ln", "init=fairseq"), ("post_ln", "init=xavier"), ("ode_rk2", "mode=gated")]
)
def test_init_scale_multiplies_the_matrices_of_the_layers_and_nothing_else(
    arch: str, args: str, scale: str, factor: float
) -> None:
    plain, scaled = (drawn(a, arch=f"transformer_{arch}") for a in (args, f"{args},init_scale={scale}"))
    expected = plain | {name: p * factor for name, p in matrices(plain).items()}
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0)


def test_norms_and_gains_stay() -> None:
    for init in ("xavier", "lipschitz", "ds_init", "fairseq_0.8"):
        parameters = drawn(f"init={init}", arch="transformer_normformer")
        for name, p in parameters.items():
            if "norm" in name or name.endswith(("c_attn", "attn_ln.weight", "attn_ln.bias")):
                assert p.eq(0.0 if name.endswith("bias") else 1.0).all(), name


@pytest.mark.parametrize("task", ["language_modeling", "speech"])
def test_the_other_tasks_have_them_too(task: str) -> None:
    model = build(task, "post_ln", "--residual-args", "init=ds_init")
    found = {fairseq_name(name): p for name, p in model.named_parameters()}
    for layer in (0, 1):
        p = found[f"decoder.layers.{layer}.fc1.weight"]
        is_uniform(p.detach(), xavier(p) * (layer + 1) ** -0.5)


def test_a_matrix_that_starts_at_zero_stays_zero() -> None:
    model = build("translation", "post_ln", "--residual-args", "init=xavier")
    stack = stacks(model)[0]
    nn.init.zeros_(stack[0].fc1.weight)
    before = stack[1].fc1.weight.clone()
    initialise([(model.encoder, stack)])
    assert not stack[0].fc1.weight.any()
    assert not torch.equal(stack[1].fc1.weight, before)
