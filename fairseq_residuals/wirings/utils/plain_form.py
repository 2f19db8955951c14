"""Cases in which an op with a gradient written out is differentiated by PyTorch after all, in its plain form.

A gradient that is written out is made of intermediate results, which are constants to whoever differentiates it again.
So the gradients of a gradient are those of the plain form, and what transforms code is given the plain form at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.utils.torch_private import is_transforming


def plain_form_serves() -> bool:
    """Return whether torch.compile or a transform of ``torch.func`` looks into what is called now.

    The first cannot trace a gradient whose sizes are symbols, the second none that is written out.
    """
    return torch.compiler.is_compiling() or is_transforming()


def differentiable_gradients(
    ctx: Any, plain: Callable[..., Tensor], inputs: Sequence[Any], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of all ``inputs`` as functions that can be differentiated again.

    Args:
        ctx: that of the ``backward`` which is called while gradients are recorded (``create_graph=True``).
        plain: the same function of the inputs, of differentiable operations.
        inputs: those of ``forward``; the tensors among them as ``ctx.saved_tensors`` gives them.
        gradient: that of the output.
    """
    with torch.enable_grad():
        # views, since one input may have been computed from another, and that way is not this function's
        views = [x.view_as(x) if need else x for x, need in zip(inputs, ctx.needs_input_grad, strict=True)]
        needed = [x for x, need in zip(views, ctx.needs_input_grad, strict=True) if need]
        found = iter(torch.autograd.grad(plain(*views), needed, gradient, create_graph=True))
    return tuple(next(found) if need else None for need in ctx.needs_input_grad)
