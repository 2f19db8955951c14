"""``--compile-stack``: layers in training run as code that torch.compile generates from them.

Residual, dropout and norm around a sub-layer are then one kernel.

Only steps of training are compiled: not evaluation, generation, or what runs without gradients. A layer with hooks is
not either, since hooks are to see its parts. Layers of one kind share their code, whatever their stack and model; sizes
of batches are symbols in it. Where the stream has other tensors in every layer, each layer has code of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context, ResidualLayer
from fairseq_residuals.wirings.core.stack import Run, Stack
from fairseq_residuals.wirings.utils import torch_private

BACKEND = "inductor"
"""torch.compile's own compiler."""
MOST_CODES = 256
"""For all layers of a process, as many as PyTorch keeps for one function; its usual 8 are too few, and beyond the limit
it silently stops compiling."""


@dataclass(frozen=True)
class CompiledInTraining:
    """A wrapper of layers: runs the compiled code of one, or itself outside of training and where it has hooks."""

    backend: str

    def __call__(self, run: Run) -> Run:
        """Wrap a layer, which nothing else is wrapped around yet."""
        assert isinstance(run, ResidualLayer)
        if not (run.training and torch.is_grad_enabled()) or torch_private.has_hooks(run):
            return run
        return functools.partial(_run_compiled, self.backend, run)


def attach(model: nn.Module) -> None:
    """Compile the layers of every stack in training, innermost of what is wrapped around them."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            stack.wrappers.insert(0, CompiledInTraining(BACKEND))


def _run_compiled(backend: str, layer: ResidualLayer, s: Stream, context: Context) -> tuple[Stream, Tensor | None]:
    attention: Any = layer.self_attn
    channels = (attention.embed_dim, getattr(layer.encoder_attn, "kdim", None))
    s = {key: _of_any_size(value, channels) for key, value in s.items()}
    given = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
    sized = {key: _of_any_size(x, channels) for key, x in given.items() if isinstance(x, Tensor)}
    return _compiled(backend)(layer, s, Context(**given | sized))


def _of_any_size(x: Tensor, channels: tuple[int | None, ...]) -> Tensor:
    """Return ``x`` for code in which its sizes are symbols, but for that of its channels."""
    x = x.contiguous()  # embeddings are not, nor a piece of a larger mask; what is gets code of its own
    torch_private.mark_dynamic(x, x.dim() - (x.size(-1) in channels))
    return x


@functools.cache
def _compiled(backend: str) -> Callable[[ResidualLayer, Stream, Context], tuple[Stream, Tensor | None]]:
    """Return what runs layers by code of ``backend``, generated when a layer of a new kind first runs."""
    torch_private.allow_recompilations(MOST_CODES)
    return torch.compile(_run, backend=backend)


def _run(layer: ResidualLayer, s: Stream, context: Context) -> tuple[Stream, Tensor | None]:
    return layer(s, context)  # type: ignore[no-any-return]


def try_out(device: torch.device, backend: str) -> None:
    """Compile something small: what torch.compile needs for a device shows only when it is at work.

    Raises:
        UserError: no code can be made for ``device`` here.
    """
    x = torch.ones(8, device=device)
    try:
        torch.compile(torch.exp, backend=backend)(x)
    except torch_private.compiler_failures() as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--compile-stack: torch.compile cannot make code for {device.type} here ({reason}); it needs a C++"
            " compiler, and on a GPU Triton; leave the flag out where there is none"
        ) from error
