"""``--fused-kernels``: kernels in Triton and larger products, attached to a model that trains on a GPU.

Nothing of it is in a model on another device, and nothing of it has parameters: names and checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.ops import depth_sum, hyper_mix, sinkhorn
from fairseq_residuals.performance import fused_activation, joint_products, waiting_sums
from fairseq_residuals.utils.triton_kernels import has_triton


def refuse_other_devices(device: torch.device) -> None:
    """Refuse a device for which there are no kernels.

    Raises:
        UserError: it is one, or Triton is missing.
    """
    if device.type != "cuda":
        raise UserError("--fused-kernels is for training on a CUDA device; leave it out on a CPU")
    if not has_triton():
        raise UserError("--fused-kernels needs Triton, which PyTorch's builds for CUDA bring; leave it out without it")


def attach(model: nn.Module) -> None:
    """Attach everything to a model; what somebody watches by hooks stays as it is."""
    waiting_sums.attach(model)
    fused_activation.attach(model)
    joint_products.attach(model)


@contextmanager
def kernels_of_ops() -> Iterator[None]:
    """Compute sums over depth and the mixing of streams by kernels within this context, where these serve."""
    # they import Triton, which may be missing where nothing enters this
    from fairseq_residuals.ops.kernels import depth_sum as sums
    from fairseq_residuals.ops.kernels import hyper_mix as streams
    from fairseq_residuals.ops.kernels import sinkhorn as steps

    with ExitStack() as contexts:
        for form, kernel in (
            (sinkhorn.kernel, steps.sinkhorn),
            (hyper_mix.width_kernel, streams.width_connection),
            (hyper_mix.depth_kernel, streams.depth_connection),
            (depth_sum.weighted_kernel, sums.weighted_sum),
            (depth_sum.softmax_kernel, sums.softmax_sum),
        ):
            contexts.enter_context(form.attached(kernel))
        yield
