"""Ways to train faster on a CPU.

Attention is opened where it then trains faster (:class:`CPUAttention`): in bf16, in which stock fairseq does not train
on a CPU, without being asked. ``--fast-on-cpu`` adds what changes the order of sums, and the random numbers of dropout:
in single precision a run without it continues one of stock fairseq bit for bit. It implies ``--keep-freed-memory``.

fairseq's trainer runs its steps in :func:`tuned` for models of this plugin; a training loop of your own enters it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.attention import KVCache, needs_opening, opened, run_attention, weigh_values
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.ops.tied_embedding import TiedEmbedding
from fairseq_residuals.wirings.speed.activation_recompute import RecomputedLayerNorm, recomputable, recomputing
from fairseq_residuals.wirings.speed.allocator import keep_freed_memory
from fairseq_residuals.wirings.speed.matmul_backend import bound_caches, onednn_is_exact, products_by_onednn

LEAST_WIDTH = 256
"""Channels from which on oneDNN's products are faster than MKL's also where hardly two batches have one shape: it has
to make code for each. At 64 channels they took longer, at 128 as long."""
MOST_POSITIONS = 128
"""Between more positions PyTorch's fused attention is faster, and spares the memory of the weights."""


@dataclass(frozen=True)
class CPUAttention:
    """An attention backend that opens attention in training on a CPU.

    There PyTorch's fused attention, which fairseq's module calls, takes longer: its backward pass is slow.

    Attributes:
        fast: also in single precision, where a run of fairseq's is to be continued bit for bit; and the outputs of the
            heads are recomputed in the backward pass.
    """

    fast: bool = False

    def __call__(
        self, attn: Any, query: Tensor, key: Tensor, value: Tensor, *, cache: KVCache | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run attention as :func:`~fairseq_residuals.wirings.core.attention.run_attention` does."""
        if not (needs_opening(cache, kwargs) or self.opens(attn, query, key)):
            return run_attention(attn, query, key, value, cache=cache, **kwargs)
        if self.fast and "edit_heads" not in kwargs:  # an edit keeps the heads for its own gradient in any case
            kwargs["weigh"] = weigh_values_recomputably
        return opened(attn)(query, key, value, cache=cache, **kwargs)

    def opens(self, attn: Any, query: Tensor, key: Tensor) -> bool:
        """Return whether open attention trains faster.

        Args:
            query, key: (T, B, C), (S, B, C of the keys).
        """
        if not attn.training or query.device.type != "cpu" or max(len(query), len(key)) > MOST_POSITIONS:
            return False
        return query.dtype == torch.bfloat16 or (self.fast and query.dtype == torch.float32)


def weigh_values_recomputably(probs: Tensor, values: Tensor, cache: KVCache | None = None) -> Tensor:
    """Weigh the values, and do so once more in the backward pass."""
    heads = weigh_values(probs, values, cache)
    if cache is not None or not heads.requires_grad or torch.compiler.is_compiling():
        return heads
    probs, values, dtype = probs.detach(), values.detach(), heads.dtype  # under autocast not that of both
    return recomputable(heads, lambda: weigh_values(probs.to(dtype), values.to(dtype)))


def attach(model: nn.Module, *, fast: bool, keep_memory: bool = False) -> None:
    """Attach all this to a model that was just built; on other devices nothing changes.

    Args:
        fast: as ``--fast-on-cpu`` asks.
        keep_memory: as ``--keep-freed-memory`` asks.
    """
    backend = CPUAttention(fast)
    for module in model.modules():
        # wrap and rewire have backends of their own, which call sub-layers of any kind
        if isinstance(module, Connection) and module.attention in (run_attention, CPUAttention(), CPUAttention(True)):
            module.attention = backend
    model.fast_on_cpu = fast  # type: ignore[assignment]
    model.keep_freed_memory = fast or keep_memory  # type: ignore[assignment]
    if fast:
        make_fast(model)


def make_fast(model: nn.Module) -> None:
    """Give the modules of a model that have faster forms on a CPU these."""
    attentions: list[Any] = [m for m in model.modules() if hasattr(m, "q_proj")]
    widths = [attention.embed_dim for attention in attentions]
    model.is_wide = max(widths, default=0) >= LEAST_WIDTH  # type: ignore[assignment]
    last = getattr(getattr(model, "decoder", None), "output_projection", None)
    tied = last.weight if isinstance(last, nn.Linear) else None
    for module in list(model.modules()):
        if type(module) is nn.LayerNorm:
            module.__class__ = RecomputedLayerNorm  # which leaves parameters and hooks as they are
        for name, child in module.named_children():
            if type(child) is nn.Embedding and child.weight is tied:
                setattr(module, name, TiedEmbedding(child))


@contextmanager
def tuned(model: nn.Module) -> Iterator[None]:
    """Train ``model``, which is on a CPU, as fast as its settings permit within this context."""
    if getattr(model, "keep_freed_memory", False):
        keep_freed_memory()
    bound_caches()
    fast = getattr(model, "fast_on_cpu", False)
    with (
        products_by_onednn() if fast and model.is_wide and onednn_is_exact() else nullcontext(),
        recomputing() if fast else nullcontext(),
    ):
        yield
