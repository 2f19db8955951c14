"""On a CPU, training keeps freed memory, takes in bf16 the attention that is faster, and drops by 16 bits each."""

from __future__ import annotations

import platform
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_reference import CHECKS, Case
from autograd_memory import kept_for_gradients
from fairseq.modules.fairseq_dropout import FairseqDropout
from tiny import PAD, batch, build, perturb
from tiny_trainer import SGD, make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals.plugin.search import beam_search
from fairseq_residuals.plugin.speed.bit_dropout import LEVELS, bit_dropout, random_levels, reference
from fairseq_residuals.plugin.training.fast_paths import FastDropout
from fairseq_residuals.wirings.ops.hyper_mix import around_small_products
from fairseq_residuals.wirings.speed import allocator, cpu, matmul_backend
from fairseq_residuals.wirings.speed.cpu import CPUAttention

FAULTS = """
import resource, torch
from fairseq_residuals.wirings.speed.allocator import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(10 * 2**20).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_memory(), faults(), faults())
"""


def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 tensors of 40 MiB, 10240 pages each, one after the other; where the C library is glibc."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FAULTS], capture_output=True, text=True, check=True)
    before, kept, _, after = done.stdout.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    if kept == "True":
        assert int(before) > 20 * 10240 / 2 and int(after) < 10240 / 2


@pytest.mark.parametrize("name", ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"))
def test_settings_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_freed_memory.__wrapped__()


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory.__wrapped__()


@pytest.mark.parametrize(
    ("flags", "times"), (((), 0), (("--keep-freed-memory",), 1), (("--fast-on-cpu",), 1)), ids=("plain", "kept", "fast")
)
def test_freed_memory_is_kept_where_a_flag_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], times: int
) -> None:
    """In training, and in a search by the same model."""
    calls: list[str] = []
    monkeypatch.setattr(cpu, "keep_freed_memory", lambda: calls.append("training"))
    monkeypatch.setattr(beam_search, "keep_freed_memory", lambda: calls.append("search"))
    trainer = make_trainer(*SGD, *flags)
    update(trainer, sample())
    assert calls == ["training"] * times
    trainer.task.build_generator([trainer.get_model()], Namespace(beam=2))
    assert calls == ["training", "search"] * times


def gradients(model: nn.Module, task: str) -> tuple[int, dict[str, Tensor]]:
    """How often attention modules ran, and the gradients of the squared logits, in training."""
    ran: list[nn.Module] = []
    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_hook(lambda module, *_: ran.append(module))
    out: Any = model.train()(**batch(task))
    out[0].float().square().sum().backward()
    return len(ran), {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def test_attention_in_bf16() -> None:
    """Its error against single precision is bf16's, as the module's is."""
    _, exact = gradients(perturb(build("translation", "pre_ln")), "translation")
    ran, found = gradients(perturb(build("translation", "pre_ln")).bfloat16(), "translation")
    assert ran == 0
    for name, gradient in exact.items():
        if "k_proj.bias" not in name:  # its gradient is zero but for rounding
            assert (found[name] - gradient).norm() < 0.1 * gradient.norm(), name


def test_where_attention_stays_fused() -> None:
    layer = build("translation", "post_ln").encoder.layers[0]
    attn, plain = layer.self_attn, layer.self_attn_connection.attention
    x = torch.randn(128, 1, 8)
    assert plain.opens(attn.train(), x.bfloat16(), x.bfloat16())
    assert not plain.opens(attn, x, x)
    assert not plain.opens(attn, x.half(), x.half())
    assert not plain.opens(attn, x.bfloat16(), torch.randn(129, 1, 8).bfloat16())
    assert not plain.opens(attn.eval(), x.bfloat16(), x.bfloat16())
    fast = build("translation", "post_ln", "--fast-on-cpu").encoder.layers[0].self_attn_connection.attention
    assert fast == CPUAttention(fast=True)
    assert fast.opens(attn.train(), x, x) and not fast.opens(attn, x.double(), x.double())


@pytest.mark.parametrize("flags", ((), ("--checkpoint-activations",)), ids=("kept", "recomputed"))
def test_fast_on_cpu_rounds_otherwise_and_no_more(flags: tuple[str, ...]) -> None:
    model = perturb(build("translation", "b2t", "--fast-on-cpu", *flags))
    with cpu.tuned(model):
        ran, found = gradients(model, "translation")
    assert ran == 0
    plain, exact = gradients(perturb(build("translation", "b2t")), "translation")
    assert plain > 0
    smallest = 1e-6 * max(gradient.norm().item() for gradient in exact.values())
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=smallest)


@pytest.mark.parametrize("flags", ((), ("--fast-on-cpu",)), ids=("plain", "fast"))
@pytest.mark.parametrize("exact", (True, False))
def test_products_by_onednn(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], exact: bool) -> None:
    """In updates of such a model only, and only where oneDNN does not round factors."""
    monkeypatch.setattr(cpu, "onednn_is_exact", lambda: exact)
    monkeypatch.setattr(cpu, "LEAST_WIDTH", 16)
    trainer = make_trainer(*SGD, *flags)
    seen = []
    trainer.get_model().register_forward_hook(lambda *_: seen.append(torch.backends.mkldnn.matmul.fp32_precision))
    update(trainer, sample())
    assert seen == ["bf16" if flags and exact else "none"]
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


def test_small_products_are_not_onednns() -> None:
    seen = []
    with matmul_backend.products_by_onednn():
        with around_small_products(torch.ones(1)):
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        with around_small_products(torch.ones(1, device="meta")):
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
    assert seen == ["ieee", "bf16"]


def test_relu_in_place_copies_nothing() -> None:
    """Of a view, autograd would copy gradients of the FFN's width twice; PyTorch's own attention has such a view."""
    out: Any = build("translation", "post_ln", "--fast-on-cpu").train()(**batch("translation"))
    nodes, left = set(), [out[0].grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            left += [before for before, _ in node.next_functions]
    names = [node.name() for node in nodes]
    assert names.count("ReluBackward0") == 4 and "CopySlices" not in " ".join(names)


def test_rounded_factors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a processor with AMX: the products of factors that were rounded to bf16."""
    rounded = torch.Tensor.__matmul__

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return rounded(a, b) if a.dtype == torch.float64 else rounded(a.bfloat16().float(), b.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", multiply)
    assert not matmul_backend.onednn_is_exact.__wrapped__()


def test_dropout_of_the_fast_kind() -> None:
    """Of a million values, 10% are zero within five standard deviations; the others, and the gradient, are larger by
    what is missing."""
    torch.manual_seed(3)
    dropout = FastDropout(0.1).train()
    x = torch.ones(1001, 1001, requires_grad=True)
    y = dropout(x)
    zeros = (y == 0).double()
    assert abs(zeros.mean() - 0.1) < 5 * (0.09 / x.numel()) ** 0.5
    # neither rows nor neighbours of four, which share a number, are dropped together
    assert (zeros.mean(0) - 0.1).abs().max() < 6 * (0.09 / 1001) ** 0.5
    quarters = zeros.flatten()[: x.numel() // 4 * 4].view(-1, 4)
    assert (quarters.T.corrcoef() - torch.eye(4)).abs().max() < 5 / len(quarters) ** 0.5
    assert torch.all((y == 0) | ((y * 0.9 - 1).abs() < 1e-4))
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())
    torch.manual_seed(3)
    assert torch.equal(dropout(x), y)
    assert torch.equal(dropout.eval()(x), x) and torch.equal(FastDropout(0.0).train()(x), x)
    half = FastDropout(0.5).train()(torch.ones(64, requires_grad=True, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16 and set(half.tolist()) == {0.0, 2.0}


def test_dropout_of_a_fast_model() -> None:
    """In the layers and beside the embeddings, with the probabilities that were asked for."""
    flags = ("--dropout=0.3", "--activation-dropout=0.2", "--attention-dropout=0.1")

    def found(*more: str) -> dict[str, tuple[type, float]]:
        model = build("translation", "post_ln", *flags, *more)
        return {name: (type(m), m.p) for name, m in model.named_modules() if isinstance(m, FairseqDropout)}

    plain, fast = found(), found("--fast-on-cpu")
    assert {kind for kind, _ in plain.values()} == {FairseqDropout}
    assert fast == {name: (FastDropout, p) for name, (_, p) in plain.items()}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize(
    "flags",
    ((), ("--fast-on-cpu",), ("--residual", "realformer"), ("--residual-args", "value_residual=identity")),
    ids=str,
)
def test_a_query_may_see_padding_alone(flags: tuple[str, ...], dtype: torch.dtype) -> None:
    """As the first ones do where sentences are padded on the left."""
    model, inputs = perturb(build("language_modeling", "post_ln", *flags)).to(dtype).train(), batch("language_modeling")
    words = inputs["src_tokens"]
    for row in words:
        row.copy_(torch.cat([row[row.eq(PAD)], row[row.ne(PAD)]]))
    assert words[:, 0].eq(PAD).any()
    out: Any = model(**inputs)
    out[0][words.ne(PAD)].float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


CACHES = """
import os, sys, torch
from fairseq_residuals.wirings.speed import matmul_backend
def in_use():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon:")))
if sys.argv[1] == "bounded":
    matmul_backend.bound_caches()
with matmul_backend.products_by_onednn():
    for n in range(1, 500):
        torch.ones(n, 64) @ torch.ones(64, 64)
        if n == 100:
            before = in_use()
print(in_use() - before)
"""


def test_code_of_many_shapes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """KiB more after 400 shapes."""
    grown = {}
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    for how in ("bounded", "as it is"):
        command = [sys.executable, "-W", "ignore", "-c", CACHES, how]
        grown[how] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown["bounded"] < grown["as it is"] / 3 or grown["as it is"] < 1000


def test_narrow_models_multiply_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for least, wide in ((64, False), (16, True)):
        monkeypatch.setattr(cpu, "LEAST_WIDTH", least)
        assert build("translation", "post_ln", "--fast-on-cpu").is_wide is wide


def seeded(op: Callable[[Tensor, int], Tensor], dropped: int) -> Callable[[Tensor], Tensor]:
    """The op with the same bits in each call."""

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return op(x, dropped)

    return run


# not compiled: there fairseq's dropout is used
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dropped", (1, 6554, LEVELS // 2))
@pytest.mark.parametrize("shape", ((9, 5), (4, 3, 2)), ids=str)
def test_bit_dropout_against_reference(shape: tuple[int, ...], dropped: int, check: Callable[[Case], None]) -> None:
    ops = (seeded(op, dropped) for op in (bit_dropout, reference))
    check(Case("bit_dropout", *ops, (shape,)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("shape", ((), (1,), (3,), (0, 4), (1001, 3)), ids=str)
def test_bit_dropout_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(seeded(bit_dropout, LEVELS // 4)(x), seeded(reference, LEVELS // 4)(x))


def test_share_of_zeros_of_bit_dropout() -> None:
    """Within five standard deviations."""
    torch.manual_seed(2)
    zeros = bit_dropout(torch.ones(1000, 1000), 6554).eq(0).double().mean().item()
    assert abs(zeros - 6554 / LEVELS) < 5 * (0.09 / 1e6) ** 0.5


def test_levels_are_uniform() -> None:
    torch.manual_seed(2)
    levels = random_levels(torch.empty(2**20))
    assert levels.min() >= 0 and levels.max() < LEVELS
    counts = levels.div(LEVELS // 16, rounding_mode="floor").bincount(minlength=16)
    assert (counts - 2**16).abs().max() < 5 * 2**8


def test_the_mask_has_one_byte_a_value() -> None:
    x = torch.randn(64, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        bit_dropout(x, 6554)
    assert [t.element_size() for t in kept] == [1]
    with kept_for_gradients(64) as addresses:
        bit_dropout(x, 6554)
    assert x.data_ptr() not in addresses
