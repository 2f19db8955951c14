"""On a CPU, training keeps freed memory, and in bf16 takes the attention that is faster there."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
from tiny import batch, build, perturb
from tiny_trainer import SGD, make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals import on_cpu
from fairseq_residuals.attention import open_trains_faster

FAULTS = """
import resource, torch
from fairseq_residuals.on_cpu import keep_freed_memory
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
    assert not on_cpu.keep_freed_memory.__wrapped__()


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu.platform, "libc_ver", lambda: ("", ""))
    assert not on_cpu.keep_freed_memory.__wrapped__()


def test_the_trainer_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(on_cpu, "keep_freed_memory", lambda: calls.append(1))
    update(make_trainer(*SGD), sample())
    assert calls


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
    attn = build("translation", "post_ln").encoder.layers[0].self_attn
    x = torch.randn(128, 1, 8)
    assert open_trains_faster(attn.train(), x.bfloat16(), x.bfloat16())
    assert not open_trains_faster(attn, x, x)
    assert not open_trains_faster(attn, x.half(), x.half())
    assert not open_trains_faster(attn, x.bfloat16(), torch.randn(129, 1, 8).bfloat16())
    assert not open_trains_faster(attn.eval(), x.bfloat16(), x.bfloat16())
