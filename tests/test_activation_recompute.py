"""Tensors that are made again in the backward pass: the numbers are those of kept ones, and less is kept."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tiny import TASKS, batch, build, perturb
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_residuals.wirings.ops.depth_sum import weighted_sum
from fairseq_residuals.wirings.speed import activation_recompute, cpu
from fairseq_residuals.wirings.speed.activation_recompute import RecomputedLayerNorm, recomputable, recomputing

VARIANTS = (
    "post_ln",
    "pre_ln",
    "dlcl_post",
    "realformer",
    "normformer",
    "siamese_norm",
    "mhc",
    "attention_residuals",
    "depthwise_lstm",
)
DROPOUT = ("--dropout=0.2", "--attention-dropout=0.1", "--activation-dropout=0.1")


def gradients(task: str, variant: str, *flags: str) -> dict[str, Tensor]:
    model = perturb(build(task, variant, "--fast-on-cpu", *DROPOUT, *flags)).train()
    torch.manual_seed(3)
    with cpu.tuned(model):
        out: Any = model(**batch(task))
        out[0].square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("task", "variant", "flags"),
    [
        *(("translation", name, ()) for name in VARIANTS),
        *((task, "pre_ln", ()) for task in TASKS[1:]),
        ("translation", "post_ln", ("--checkpoint-activations",)),
        ("translation", "b2t", ("--residual-args", "norm=rms")),
        ("translation", "pre_ln", ("--residual-args", "value_residual=learnable")),
    ],
)
def test_gradients_are_the_same_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, task: str, variant: str, flags: tuple[str, ...]
) -> None:
    found = gradients(task, variant, *flags)
    monkeypatch.setattr(cpu, "recomputing", nullcontext)
    torch.testing.assert_close(found, gradients(task, variant, *flags), rtol=0, atol=0)


def bytes_kept(*, again: bool) -> int:
    """By autograd, after a forward pass."""
    model = build("translation", "post_ln", "--fast-on-cpu").train()
    pack, all_packed = activation_recompute._Step.pack, []

    def counting(step: Any, x: Tensor) -> Any:
        all_packed.append(pack(step, x) if again else x.detach())
        return all_packed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activation_recompute._Step, "pack", counting)
        with cpu.tuned(model):
            out = model(**batch("translation"))
    kept = [packed if isinstance(packed, Tensor) else packed[0].kept for packed in all_packed]
    storages = [x.untyped_storage() for x in kept if x is not None]
    assert out[0].requires_grad
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def test_what_is_not_kept() -> None:
    """Post-LN: the heads side by side of every attention, and the outputs of all norms but the last of the encoder,
    which every decoder layer reads, and of the decoder, of which the output projection makes a copy."""
    inputs = batch("translation")
    source, target = inputs["src_tokens"].numel(), inputs["prev_output_tokens"].numel()
    in_encoder, in_decoder = 2 * (1 + 2) - 1, 2 * (2 + 3) - 1
    assert bytes_kept(again=False) - bytes_kept(again=True) == (in_encoder * source + in_decoder * target) * 16 * 4


def test_what_a_checkpoint_hands_on_keeps_nothing() -> None:
    """Such as the input of a norm, which the layer above would keep with its output."""
    norm, x = RecomputedLayerNorm(4), torch.randn(3, 4, requires_grad=True)
    with recomputing():
        within, outside = checkpoint(norm, x, use_reentrant=False), norm(x)
    assert not hasattr(within, "recipe") and hasattr(outside, "recipe")
    assert not hasattr(norm(x), "recipe")


class Counted:
    """Doubles, and counts how often."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.times = x.detach(), 0

    def __call__(self) -> Tensor:
        self.times += 1
        return self.x * 2


@pytest.mark.parametrize(("users", "times"), ((1, 1), (3, 1), (4, 0)))
def test_how_often(users: int, times: int) -> None:
    """Once for those that follow each other; what many use is kept."""
    x = torch.randn(3, 4)
    again, weights = Counted(x), [torch.randn(3, 4, requires_grad=True) for _ in range(users)]
    with recomputing():
        y = recomputable(x * 2, again)
        loss = torch.stack([y * w for w in weights]).sum()
    loss.backward()
    assert again.times == times
    assert all(torch.equal(w.grad, x * 2) for w in weights if w.grad is not None)


def test_views() -> None:
    """A view of the whole is made again in its shape; a piece, or the whole in another order, is kept."""
    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    for view, times in ((lambda y: y.view(4, 3).view(3, 4), 1), (lambda y: y[:], 1), (lambda y: y[:2], 0)):
        again = Counted(x)
        with recomputing():
            seen = view(recomputable(x * 2, again))
            loss = (seen * w[: len(seen)]).sum()
        w.grad = None
        loss.backward()
        assert again.times == times and w.grad is not None and torch.equal(w.grad[: len(seen)], 2 * x[: len(seen)])
    again, square = Counted(torch.randn(3, 3)), torch.randn(3, 3, requires_grad=True)
    with recomputing():
        loss = (recomputable(again.x * 2, again).t() * square).sum()
    loss.backward()
    assert again.times == 0 and square.grad is not None and torch.equal(square.grad, 2 * again.x.t())


def test_what_was_changed_in_place_is_kept() -> None:
    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    again = Counted(x)
    with recomputing():
        y = recomputable(x * 2, again)
        y.add_(1)
        (y * w).sum().backward()
    assert again.times == 0 and w.grad is not None and torch.equal(w.grad, 2 * x + 1)


def test_terms_of_a_sum_over_depth_are_kept() -> None:
    """And what comes after the sum is made again."""
    x, weights = torch.randn(3, 4), torch.randn(2, requires_grad=True)
    first, second = Counted(x), Counted(x)
    with recomputing():
        terms = [recomputable(x * 2, first), torch.ones(3, 4)]
        total = weighted_sum(weights, terms)
        loss = (recomputable(x * 2, second) * total).sum()
    loss.backward()
    assert (first.times, second.times) == (0, 1)
    torch.testing.assert_close(weights.grad, torch.stack([(4 * x.square()).sum(), (2 * x).sum()]))


def test_hooks_of_others_see_a_sum_over_depth() -> None:
    seen: list[Tensor] = []
    weights, term = torch.randn(2, requires_grad=True), torch.ones(3, 4)
    with recomputing(), torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        weighted_sum(weights, [term, term])
    assert any(x is term for x in seen)


class Exp(torch.autograd.Function):
    """Keeps its output, as many layers do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, marker: Any) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.marker = marker
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0], None


def test_nothing_keeps_itself() -> None:
    """A forward pass without a backward one is freed without the garbage collector."""

    class Marker:
        pass

    marker = Marker()
    freed = weakref.ref(marker)
    gc.disable()
    try:
        with recomputing():
            y = Exp.apply(torch.ones(2, requires_grad=True), marker)
        del y, marker
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("affine", (True, False))
def test_norms_stay_what_they_are(bias: bool, affine: bool) -> None:
    norm, x = nn.LayerNorm(8, eps=1e-3, elementwise_affine=affine, bias=bias), torch.randn(2, 8)
    norm.register_forward_hook(lambda _, inputs, out: 2 * out)
    before = norm(x).tolist(), f"Recomputed{norm}", [(n, id(p)) for n, p in norm.named_parameters()]
    cpu.make_fast(nn.ModuleList([norm]))
    assert before == (norm(x).tolist(), str(norm), [(n, id(p)) for n, p in norm.named_parameters()])


def test_norms_of_a_fast_model() -> None:
    plain, fast = (build("translation", "sandwich_ln", *flags) for flags in ((), ("--fast-on-cpu",)))
    assert plain.state_dict().keys() == fast.state_dict().keys()
    assert not any(type(m) is nn.LayerNorm for m in fast.modules())
    assert sum(isinstance(m, RecomputedLayerNorm) for m in fast.modules()) == sum(
        type(m) is nn.LayerNorm for m in plain.modules()
    )
