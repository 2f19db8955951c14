"""The option ``value_residual``: the first layer's values in those of the layers above."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import batch, build, depth_for, logits, perturb, stacks, step_by_step
from torch import Tensor, nn

from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.stack import Pass
from fairseq_residuals.wirings.speed.cpu import CPUAttention
from tests.rotation import SHAPES_OF_CODE, rotated

LAYERS = 8
WEIGHTS = {
    "identity": [(0.5, 0.5)] * LAYERS,
    "constant": [(2.0, 1.0)] * LAYERS,
    "learnable": [(0.5, 0.5)] * LAYERS,
    # Zhou et al. 2024: layers 6 to 8 of 8
    "sparse": [(0.0, 1.0)] * 5 + [(5.0, 1.0)] * 3,
}
"""Of the first layer's values and of the own ones, by layer; the first layer has its own."""
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
"""Of double precision: attention takes its softmax in single precision, as fairseq does."""
every_mixing = pytest.mark.parametrize("mixing", sorted(WEIGHTS))
LEARNABLE = ("--residual-args", "value_residual=learnable")


def build_pre_ln(mixing: str, task: str = "translation", *flags: str, layers: int = LAYERS) -> nn.Module:
    return perturb(build(task, "pre_ln", "--residual-args", f"value_residual={mixing}", *flags, layers=layers))


def weights_of(model: Any) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if "value_residual" in name]


def set_weights(model: Any, first: float, own: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("value_residual.first_weight"):
                parameter.fill_(first)
            if name.endswith("value_residual.own_weight"):
                parameter.fill_(own)


def pre_ln_by_hand(layers: list[Any], x: Tensor, weights: list[tuple[Any, Any]], mask: Tensor | None = None) -> Tensor:
    """The equations of Pre-LN layers (T, B, C) -> (T, B, C), without a norm on top."""
    first = None
    for layer, (of_first, of_own) in zip(layers, weights, strict=True):
        attention, h = layer.self_attn, layer.self_attn_connection.norm(x)
        q, k, v = attention.q_proj(h), attention.k_proj(h), attention.v_proj(h)
        if first is None:
            first = v
        else:
            v = of_first * first + of_own * v
        q, k, v = (z.unflatten(-1, (attention.num_heads, -1)) for z in (q, k, v))
        scores = torch.einsum("tbhd,sbhd->bhts", q, k) / q.size(-1) ** 0.5
        scores = scores if mask is None else scores + mask
        x = x + attention.out_proj(torch.einsum("bhts,sbhd->tbhd", scores.softmax(-1), v).flatten(-2))
        x = x + layer.fc2(torch.relu(layer.fc1(layer.ffn_connection.norm(x))))
    return x


@every_mixing
@pytest.mark.parametrize("task", ("translation", "language_modeling"))
def test_the_equation(task: str, mixing: str) -> None:
    stack = stacks(build_pre_ln(mixing, task))[0].double()
    x = torch.randn(5, 2, stack.shape.dim, dtype=torch.double)
    weights: list[tuple[Any, Any]] = list(WEIGHTS[mixing])
    if mixing == "learnable":
        mixed = [stack[i].value_residual for i in range(1, LAYERS)]
        weights = [(1.0, 1.0), *((m.first_weight, m.own_weight) for m in mixed)]
    causal = torch.full((5, 5), -torch.inf, dtype=x.dtype).triu(1)
    mask = causal if stack.shape.stack == "decoder" else None
    expected = stack.wiring.norm(pre_ln_by_hand([stack[i] for i in range(LAYERS)], x, weights, mask))
    found = stack(x) if mask is None else stack(x, self_attn_mask=mask)[0]
    torch.testing.assert_close(found, expected, **SINGLE)


@every_mixing
def test_parameters(mixing: str) -> None:
    model = build("translation", "pre_ln", "--residual-args", f"value_residual={mixing}", layers=LAYERS)
    plain = build("translation", "pre_ln", layers=LAYERS)
    added = {name: value for name, value in model.state_dict().items() if name not in plain.state_dict()}
    names = {
        f"{stack}.layers.{i}.value_residual.{kind}_weight"
        for stack in ("encoder", "decoder")
        for i in range(1, LAYERS)
        for kind in ("first", "own")
    }
    assert added.keys() == (names if mixing == "learnable" else set())
    assert all(value.item() == 0.5 for value in added.values())
    for name, parameter in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("variant", "args"), [*((name, "") for name in SHAPES_OF_CODE), ("normformer", "heads=before_projection,")]
)
def test_without_weight_on_the_first_layer_nothing_changes(
    variant: str, args: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit where attention is open with and without it; that opening it changes rounding at most is another
    test."""
    monkeypatch.setattr(CPUAttention, "opens", lambda *args: True)
    inputs, found = batch("translation"), []
    for mixing in ("none", "learnable"):
        flags = ("--residual-args", f"{args}value_residual={mixing}")
        model = build("translation", variant, *flags, layers=depth_for(variant, 3))
        set_weights(model, 0.0, 1.0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "value_residual" not in name:
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        out = logits(model, "translation", inputs)
        out.log_softmax(-1).square().mean().backward()
        found.append({name: p.grad for name, p in model.named_parameters() if "value_residual" not in name})
        found[-1]["logits"] = out.detach()
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize(("mixing", "dtype"), rotated(sorted(WEIGHTS), (torch.bfloat16, torch.float16)), ids=str)
def test_half_precision(mixing: str, dtype: torch.dtype) -> None:
    model, inputs = build_pre_ln(mixing, layers=4), batch("translation")
    full = logits(model, "translation", inputs)
    out = logits(model.to(dtype), "translation", inputs)
    assert out.dtype == dtype
    assert (out.float() - full).abs().max() < {torch.bfloat16: 0.2, torch.float16: 0.03}[dtype] * full.std()


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_variant_mixes_in_every_layer(variant: str) -> None:
    """A stream that lost the values on its way would leave the weights without gradients."""
    layers = depth_for(variant, 3)
    model, inputs = perturb(build("translation", variant, *LEARNABLE, layers=layers)), batch("translation")
    full = logits(model, "translation", inputs)
    full.log_softmax(-1).square().mean().backward()
    assert len(weights_of(model)) == 2 * 2 * (layers - 1)
    assert all(p.grad is not None and p.grad != 0 for p in weights_of(model))
    torch.testing.assert_close(step_by_step(model, "translation", inputs), full, rtol=1e-4, atol=2e-5)


def test_if_the_first_layer_is_skipped_the_next_is_the_first() -> None:
    stack = stacks(build_pre_ln("constant", layers=4))[0].double()
    x = torch.randn(5, 2, stack.shape.dim, dtype=torch.double)
    expected = stack.wiring.norm(pre_ln_by_hand([stack[1], stack[3]], x, WEIGHTS["constant"][:2]))
    a_pass, h = Pass(stack), x
    a_pass.keep = [False, True, False, True]
    for i in range(4):
        h, _ = a_pass.run(i, h, Context())
    torch.testing.assert_close(h, expected, **SINGLE)


def test_a_segment_has_a_chain_of_its_own() -> None:
    flags = ("--residual", "pre_ln:0-1,pre_ln:2-4", "--residual-args", "value_residual=constant")
    stack = stacks(perturb(build("translation", "pre_ln", *flags, layers=5)))[0].double()
    x = torch.randn(5, 2, stack.shape.dim, dtype=torch.double)
    expected = x
    for variant, layers in stack.segments():
        expected = variant.norm(pre_ln_by_hand(list(layers), expected, WEIGHTS["constant"][: len(layers)]))
    torch.testing.assert_close(stack(x), expected, **SINGLE)


def test_one_graph() -> None:
    torch.compiler.reset()
    stack = stacks(build_pre_ln("learnable", layers=3))[0].train()
    x = torch.randn(5, 2, stack.shape.dim)
    compiled = torch.compile(stack, fullgraph=True, backend="aot_eager")
    results = []
    for run in (stack, compiled):
        stack.zero_grad()
        out = run(x)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in weights_of(stack))])
    assert len(results[0]) == 1 + 2 * 2
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)
