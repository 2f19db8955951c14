"""Steps that fairseq's optimizers do to one parameter after the other, done to all by a few kernels.

A GPU waits for Python otherwise. The same numbers, but for the rounding of a norm on GPUs.
"""

import types
from typing import Any

import torch

from modern_fairseq.proxies import replaces


def copies(module: types.ModuleType) -> None:
    """Copy gradients to single precision, and weights back, at once (optim/fp16_optimizer.py:109 and :146).

    Pipeline parallelism, whose parameters are on several devices, is left to fairseq. Can stay as long as fairseq
    copies them one by one.
    """

    def pieces(optimizer: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Return weights and gradients in single precision, in their parameters' shapes; None if on several devices."""
        copy = optimizer.fp32_params
        if not optimizer.has_flat_params:
            return [p32.data for p32 in copy], [p32.grad for p32 in copy]
        if len(copy) > 1:
            return None
        (flat,) = copy.values()
        memory, lists = optimizer.__dict__.get("pieces", (None, None))
        if memory != (flat.data_ptr(), flat.grad.data_ptr()):
            params = optimizer.fp16_params
            sizes = [p.numel() for p in params]
            lists = tuple(
                [part.view(p.shape) for part, p in zip(whole.split(sizes), params, strict=True)]
                for whole in (flat.data, flat.grad)
            )
            optimizer.pieces = (flat.data_ptr(), flat.grad.data_ptr()), lists
        return lists  # type: ignore[no-any-return]

    @replaces(module._FP16OptimizerMixin, "_sync_fp16_grads_to_fp32")
    @torch.no_grad()
    def sync_gradients(original: Any, self: Any) -> None:
        made = [p.grad for p in self.fp16_params]
        to = pieces(self) if self._needs_sync and all(gradient is not None for gradient in made) else None
        if to is None or any(gradient is None for gradient in to[1]):
            original(self)
            return
        torch._foreach_copy_(to[1], made)
        self._needs_sync = False

    @replaces(module._FP16OptimizerMixin, "_sync_fp32_params_to_fp16")
    @torch.no_grad()
    def sync_parameters(original: Any, self: Any) -> None:
        of = pieces(self)
        if of is None or not all(p.requires_grad for p in self.fp16_params):
            original(self)
            return
        torch._foreach_copy_(self.fp16_params, of[0])


def norms(module: types.ModuleType) -> None:
    """Compute the norm of all gradients on a GPU without apex, which fairseq wants for it (utils.py:370).

    Can go when fairseq > 0.12.2 needs no apex for it.
    """
    if module.multi_tensor_l2norm_available:  # type: ignore[attr-defined]
        return

    def norm_of_all(chunk_size: int, overflowed: torch.Tensor, tensors: list[list[torch.Tensor]], each: bool) -> Any:
        return (torch.stack(torch._foreach_norm(tensors[0], 2, dtype=torch.float32)).norm(),)

    module.multi_tensor_l2norm = norm_of_all  # type: ignore[attr-defined]
    module.multi_tensor_l2norm_available = True  # type: ignore[attr-defined]
