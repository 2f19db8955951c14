"""The option ``norm_type``: what each kind computes, and that a stack has no norms of another kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import TASKS, batch, build, logits, perturb, stacks, step_by_step
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.config import SHORT, options_of
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import Derf, DyT, ScaleNorm, build_norm
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.rotation import rotated

KINDS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "scalenorm": ScaleNorm, "dyt": DyT, "derf": Derf}
WITHOUT_EPS = {"dyt", "derf"}
WITHOUT_NORMS = {"b2t_no_ln", "ngpt", "re_zero", "t_fixup"}
DIVIDED_OUT = {"layer_scalar": "layers.1.ffn_connection.scalar"}
"""What scales all that the norm on top is fed: a norm that divides by the size leaves nothing of it, beside eps."""
OWN_NORM = sorted(name for name in VARIANTS if "norm" in options_of(VARIANTS[name].Config))


def by_definition(kind: str, norm: Any, x: Tensor, eps: float) -> Tensor:
    """In double precision."""
    x, weight = x.double(), norm.weight.double()
    bias = 0.0 if getattr(norm, "bias", None) is None else norm.bias.double()
    if kind == "dyt":
        return weight * torch.tanh(norm.alpha.double() * x) + bias
    if kind == "derf":
        return weight * torch.erf(norm.alpha.double() * x + norm.shift.double()) + bias
    if kind == "scalenorm":
        return weight * x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)
    x = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt() + bias


@pytest.mark.parametrize("scale", (1e-3, 1.0, 1e3))
@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_definitions(kind: str, dtype: torch.dtype, bias: bool, scale: float) -> None:
    """At a scale of 1e-3, eps is felt where it is added; at 1e3, a square overflows half precision."""
    torch.manual_seed(0)
    norm = perturb(build_norm(kind, 48, 0.0, bias)).to(dtype)  # type: ignore[arg-type]
    x = (scale * (torch.randn(5, 3, 48) + 0.5)).to(dtype)
    expected = by_definition(kind, norm, x, {"layer": 1e-5, "rms": 1e-6, "scalenorm": 1e-5}.get(kind, 0.0))
    found = norm(x)
    assert found.dtype == dtype
    units = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=4 * units, atol=4 * units)


def test_eps_and_width_can_be_chosen() -> None:
    shape = {"depth": 1, "dim": 6, "ffn_dim": 8, "heads": 2, "enc_depth": 1, "dec_depth": 1, "cross": True}
    for kind, module in KINDS.items():
        stack = StackShape(stack="encoder", norm_type=kind, **shape)  # type: ignore[arg-type]
        assert isinstance(stack.new_norm(), module)
        assert [stack.new_norm(width).normalized_shape for width in (0, 8)] == [(6,), (8,)]
        assert getattr(stack.new_norm(eps=1e-3), "eps", None) == (None if kind in WITHOUT_EPS else 1e-3)
        chosen = StackShape(stack="encoder", norm_type=kind, norm_eps=0.3, **shape)  # type: ignore[arg-type]
        assert getattr(chosen.new_norm(eps=1e-3), "eps", None) == (None if kind in WITHOUT_EPS else 0.3)
    with pytest.raises(UserError, match=r"'batch' is not valid for option 'norm_type'.*valid: layer or rms or scale"):
        Wiring.parse("pre_ln", "norm=batch")


def test_scalenorm_divides_by_the_length_but_not_by_less_than_eps() -> None:
    """Nguyen and Salazar 2019, Eq. 3, with the clamp of the authors' code; g starts at sqrt(C)."""
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0], [3e-6, 4e-6, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.2, 1.6, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(ScaleNorm(4)(x), expected)


def test_derf_starts_as_the_error_function_of_a_half() -> None:
    """Chen et al. 2025: alpha 0.5, shift 0, gain 1, bias 0."""
    torch.testing.assert_close(Derf(3)(torch.tensor([-2.0, 0.0, 2.0])), torch.tensor([-0.8427008, 0.0, 0.8427008]))


def test_dyt_starts_as_half_a_tangent() -> None:
    """Zhu et al. 2025, Eq. 1 and section 4: alpha 0.5, gain 1, bias 0."""
    x = torch.randn(4, 8)
    torch.testing.assert_close(DyT(8)(x), torch.tanh(0.5 * x))


class Called(TorchFunctionMode):
    """Notes which of PyTorch's norms are called as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("layer_norm", "rms_norm"):
            self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def short(variant: str, kind: str) -> str:
    return f"{'norm_type' if variant in OWN_NORM else 'norm'}={kind}"


def assert_norms(model: nn.Module, variant: str, called: Called) -> None:
    """All norms are RMSNorm, and were called as such: one that is no module is seen where its function is called."""
    norms = [m for stack in stacks(model) for m in stack.modules() if isinstance(m, tuple(KINDS.values()))]
    assert {type(m) for m in norms} == (set() if variant in WITHOUT_NORMS else {nn.RMSNorm})
    assert not any("norm" in n and n.endswith(".bias") for stack in stacks(model) for n, _ in stack.named_parameters())
    assert called.names == (set() if variant in WITHOUT_NORMS - {"ngpt"} else {"rms_norm"})


@pytest.mark.parametrize(
    ("variant", "kind"), rotated(sorted(set(VARIANTS) - WITHOUT_NORMS), ("rms", "dyt", "scalenorm", "derf"))
)
def test_every_variant_with_other_kinds(variant: str, kind: str) -> None:
    # one task each, in turn
    tasks = [task for task in TASKS if not VARIANTS[variant].refusal(alone=task == "language_modeling", topmost=True)]
    task = tasks[sorted(VARIANTS).index(variant) % len(tasks)]
    args = ("--residual-args", short(variant, kind))
    model, other = perturb(build(task, variant, *args)), build(task, variant, *args, seed=2)
    inputs, plain = batch(task), perturb(build(task, variant))
    out = logits(model, task, inputs)
    assert not torch.allclose(out, logits(plain, task, inputs), atol=1e-3)
    torch.testing.assert_close(step_by_step(model, task, inputs), out, rtol=1e-4, atol=2e-5)
    other.load_state_dict(copy.deepcopy(model.state_dict()), strict=True)
    torch.testing.assert_close(logits(other, task, inputs), out, rtol=0, atol=0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    out.log_softmax(-1).square().mean().backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    divided_out = DIVIDED_OUT.get(variant) if kind not in WITHOUT_EPS else None
    assert [n for n in unreached if not n.endswith(("k_proj.bias", divided_out or "k_proj.bias"))] == []
    optimizer.step()
    after = logits(model, task, inputs)
    assert after.isfinite().all() and not torch.equal(after, out)
    for dtype in (torch.bfloat16, torch.float16):
        halves = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        assert logits(copy.deepcopy(model).to(dtype), task, halves).isfinite().all()


def test_the_short_name() -> None:
    assert SHORT == {"norm": "norm_type"}
    assert Wiring.parse("pre_ln", "norm=rms").value("norm_type") == "rms"
    assert Wiring.parse("pre_ln(norm=dyt)").value("norm_type") == "dyt"
    with pytest.raises(UserError, match="option 'norm_type' of wiring 'pre_ln' is given twice"):
        Wiring.parse("pre_ln", "norm=rms,norm_type=layer")
    mixed = Wiring.parse("post_ln:0-1,pre_ln:2-3", "norm=rms")
    assert [part.config.norm_type for part in mixed.parts] == ["rms", "rms"]
    mixed = Wiring.parse("post_ln:0-1,pre_ln:2-3", "pre_ln.norm=rms")
    assert [part.config.norm_type for part in mixed.parts] == ["layer", "rms"]


def test_variants_with_an_option_of_that_name_keep_it() -> None:
    assert OWN_NORM == ["dlcl_post", "dlcl_pre", "realformer"]
    config = Wiring.parse("realformer", "norm=pre,norm_type=rms").parts[0].config
    assert (config.norm, config.norm_type) == ("pre", "rms")
    config = Wiring.parse("dlcl_pre", "norm=false").parts[0].config
    assert (config.norm, config.norm_type) == (False, "layer")
    parts = Wiring.parse("pre_ln:0-1,realformer:2-3", "norm_type=rms,realformer.norm=pre").parts
    assert [part.config.norm_type for part in parts] == ["rms", "rms"] and parts[1].config.norm == "pre"
    # in a list with one of them, the short name is theirs for them, and the kind for the others
    parts = Wiring.parse("pre_ln:0-1,realformer:2-3", "norm=pre").parts
    assert (parts[1].config.norm, parts[0].config.norm_type) == ("pre", "layer")
    with pytest.raises(UserError, match="'rms' is not valid for option 'norm' of wiring 'realformer'"):
        Wiring.parse("pre_ln:0-1,realformer:2-3", "norm=rms")


def test_a_segment_has_its_own_kind() -> None:
    flags = ("--residual", "post_ln:0-1,pre_ln:2-3", "--residual-args", "pre_ln.norm=rms")
    for stack in stacks(build("translation", "post_ln", *flags, layers=4)):
        kinds = [
            {type(m) for m in stack[i].modules() if isinstance(m, tuple(KINDS.values()))} for i in range(len(stack))
        ]
        assert kinds == [{nn.LayerNorm}] * 2 + [{nn.RMSNorm}] * 2


@pytest.mark.parametrize("rule", ("ds_init", "lipschitz", "xavier", "fairseq_0.8"))
def test_initialisation_leaves_gains_alone(rule: str) -> None:
    args = f"init={rule},init_scale=0.5,norm=dyt,value_residual=learnable"
    model = build("translation", "hybrid_norm", "--residual-args", args, layers=3)
    starts = {"weight": 1.0, "bias": 0.0, "alpha": 0.5, "first_weight": 0.5, "own_weight": 0.5}
    found = 0
    for stack in stacks(model):
        for name, parameter in stack.named_parameters():
            if "norm" in name or "value_residual" in name:
                assert (parameter == starts[name.rpartition(".")[2]]).all(), name
                found += 1
    assert found > 0
