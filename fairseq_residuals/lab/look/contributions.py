"""Contributions of each sub-layer to the output of a stack.

A wiring is additive if its output is a sum of one term for the embedding, one for each sub-layer, and one for biases.
Norms divide by a statistic, and routers weigh streams by what these hold: both are taken as they are on the given
input. A Pre-LN stack then is Σ_i (c_i - mean(c_i)) g / σ + b, with c_i the embedding and the sub-layers' outputs; under
Post-LN each term passes all the norms above it. Where a wiring is not additive even so (a gate on the stream, dynamic
tanh, a softmax over depth), there is no such sum, and it is refused.

The stack runs once as it is. Its wiring then runs again with what was recorded, with a copy of the batch for each term
in which all other terms are zero, and one in which all are, which gives the biases.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.look.probes import SUBLAYERS, replaced
from fairseq_residuals.wirings.core.base import Connection, Kind, Stream, SubLayer, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Layer
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.stack import Stack

Run = Callable[[Kind, Stream, SubLayer], tuple[Stream, Tensor | None]]
"""The type of :meth:`.Layer.run`."""
TOLERANCE = 1e-3
"""Share of the largest output by which the sum of the terms may miss it; rounding misses it by much less."""


@dataclass(frozen=True)
class Contributions:
    """The terms of which a stack's output is the sum."""

    names: list[str]
    """``embedding``, ``layer 1 self-attention``, ``layer 1 FFN``, ..., ``biases``."""
    terms: Tensor
    """(terms, T, B, C), or (terms, B, T, C) of a stack with ``batch_first``."""

    def sizes(self) -> dict[str, float]:
        """Return, by name, the root mean square of each term."""
        return dict(zip(self.names, self.terms.square().mean((1, 2, 3)).sqrt().tolist(), strict=True))


@torch.no_grad()
def contributions(stack: Stack, x: Tensor, *args: Any, **kwargs: Any) -> Contributions:
    """Split the output of a stack into what the embedding, each sub-layer and the biases of its wiring add to it.

    The copies need the memory of the stream for each sub-layer.

    Args:
        stack: in evaluation mode.
        x: (T, B, C), its embeddings, or (B, T, C) with ``batch_first``.
        args, kwargs: what its forward is given beside.

    Raises:
        UserError: no stack, in training mode, in half precision, or a wiring that is not additive; it says where.
    """
    if not isinstance(stack, Stack):
        raise UserError(f"contributions are those of a wired stack: give that of this {type(stack).__name__}")
    if stack.training:
        raise UserError("contributions are those of a stack in evaluation mode: call eval() first")
    if x.dtype in (torch.float16, torch.bfloat16):
        raise UserError("in half precision, rounding is more than the smaller contributions: call float() first")
    turned = getattr(stack, "batch_first", False)
    record = _Record(x.transpose(0, 1) if turned else x)
    with record.watching(stack):
        output = stack(x, *args, **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    output = output.transpose(0, 1) if turned else output
    names = ["embedding", *record.names, "biases"]
    terms = _Replay(record, len(names)).run(stack)
    record.compare("at the top of the stack", terms.sum(0), output, stack.wiring)
    return Contributions(names, terms.transpose(1, 2) if turned else terms)


class _Record:
    """Results of one pass of a stack."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.names: list[str] = []
        self.contexts: list[Any] = []
        """Contexts of the layers."""
        self.outputs: list[Tensor] = []
        """Outputs of the sub-layers, with dropout and what a wiring does to them before it adds them."""
        self.streams: list[Tensor] = []
        """Values of the stream "x" after each of the sub-layers."""
        self.results: dict[nn.Module, deque[Any]] = defaultdict(deque)
        """Results by module of the wiring, one for each call: what a norm was given, what a router returned."""
        self.inside = False
        """Whether a sub-layer or a router runs, whose modules are not the wiring's."""

    @contextmanager
    def watching(self, stack: Stack) -> Iterator[None]:
        """Record while the context is open."""
        with ExitStack() as undo:
            for i in range(len(stack)):
                undo.callback(stack[i].register_forward_pre_hook(self._before_layer).remove)
                undo.enter_context(replaced(stack[i], "run", partial(self._run, i + 1, stack[i], stack[i].run)))
            for module in _parts(stack):
                undo.enter_context(replaced(module, "forward", partial(self._call, module, module.forward)))
            yield

    def _before_layer(self, layer: nn.Module, inputs: tuple[Stream, Any]) -> None:
        self.contexts.append(inputs[1])

    def _run(
        self, number: int, layer: Layer, run: Run, kind: Kind, s: Stream, sublayer: SubLayer
    ) -> tuple[Stream, Tensor | None]:
        def recorded(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            self.inside = True
            y, weights, s = sublayer(h, s)
            self.inside = False
            self.outputs.append(y)
            return y, weights, s

        result = run(kind, s, recorded)
        name = f"layer {number} {SUBLAYERS[layer.connection(kind).site.kind]}"
        times = sum(other.startswith(name) for other in self.names)
        self.names.append(f"{name} ({times + 1})" if times else name)
        self.streams.append(result[0]["x"])
        return result

    def _call(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.inside:
            return forward(*args, **kwargs)
        if is_norm(module):
            self.results[module].append(args[0])
            return forward(*args, **kwargs)
        self.inside = True
        result = forward(*args, **kwargs)
        self.inside = False
        self.results[module].append(result)
        return result

    def compare(self, place: str, found: Tensor, expected: Tensor, part: nn.Module) -> None:
        """Compare a sum of terms with what the pass computed.

        Raises:
            UserError: they differ.
        """
        if (found - expected).abs().max() > TOLERANCE * expected.abs().max():
            raise UserError(
                f"the output of this stack is no sum of what its sub-layers add: {place}, {type(part).__name__} makes"
                " something else of the stream than a sum with weights of its own"
            )


class _Replay:
    """The pass once more, for all terms side by side: the wiring alone."""

    def __init__(self, record: _Record, terms: int) -> None:
        self.record, self.terms = record, terms
        self.queues = {module: deque(results) for module, results in record.results.items()}
        self.number = 0

    def run(self, stack: Stack) -> Tensor:
        """Return the terms of the output, (terms, T, B, C)."""
        record = self.record
        with ExitStack() as undo:
            for i in range(len(stack)):
                undo.enter_context(replaced(stack[i], "run", partial(self._run, stack[i], stack[i].run)))
            for module in _parts(stack):
                undo.enter_context(replaced(module, "forward", partial(self._call, module, module.forward)))
            s = stack.wiring.open(self._alone(record.x, 0))
            for i, context in enumerate(record.contexts):
                s, _ = stack[i](s, context)
                s = stack.wiring.after_layer(i, s)
            return self._terms(stack.wiring.close(s))

    def _run(self, layer: Layer, run: Run, kind: Kind, s: Stream, sublayer: SubLayer) -> tuple[Stream, Tensor | None]:
        s, _ = run(kind, s, self._sublayer)
        place, expected = f"after {self.record.names[self.number - 1]}", self.record.streams[self.number - 1]
        self.record.compare(place, self._terms(s["x"]).sum(0), expected, layer.connection(kind))
        return s, None

    def _sublayer(self, h: Tensor, s: Stream) -> tuple[Tensor, None, Stream]:
        self.number += 1
        return self._alone(self.record.outputs[self.number - 1], self.number), None, s

    def _alone(self, value: Tensor, term: int) -> Tensor:
        """(T, B, C) -> (T, terms * B, C), zeros but for one term."""
        zeros = torch.zeros_like(value)
        return torch.stack([value if k == term else zeros for k in range(self.terms)], 1).flatten(1, 2)

    def _terms(self, value: Tensor) -> Tensor:
        """(T, terms * B, C) -> (terms, T, B, C), the biases, which are in each copy, in the last alone."""
        *copies, biases = value.unflatten(1, (self.terms, -1)).unbind(1)
        return torch.stack([*(copy - biases for copy in copies), biases])

    def _call(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if module not in self.queues:  # a part of one that is run anew below
            return forward(*args, **kwargs)
        result = self.queues[module].popleft()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return self._norm(module, args[0], result)
        again = forward(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        # a linear map may have any width; one number is a weight
        mapped = is_norm(module) or (isinstance(module, nn.Linear) and module.out_features > 1)
        # what is like the stream may be made of it (GatedRead): if not linearly, the sum misses the output
        if mapped or any(isinstance(part, Tensor) and part.shape == self.record.x.shape for part in parts):
            return again
        return self._repeated(result, again)

    def _norm(self, norm: nn.LayerNorm | nn.RMSNorm, x: Tensor, recorded: Tensor) -> Tensor:
        """Scale by the recorded statistic."""
        centred = isinstance(norm, nn.LayerNorm)
        if centred:
            x = x - x.mean(-1, keepdim=True)
        statistic = (
            recorded.var(-1, keepdim=True, correction=0) if centred else recorded.square().mean(-1, keepdim=True)
        )
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        y = x * self._repeated((statistic + eps).rsqrt(), x[..., :1])
        y = y if norm.weight is None else y * norm.weight
        bias = getattr(norm, "bias", None)
        return y if bias is None else y + bias

    def _repeated(self, value: Any, again: Any) -> Any:
        """Return ``value`` for the positions of all terms.

        It stays as it is where ``again``, which was computed for these, has the same shape.
        """
        if isinstance(value, tuple):
            parts = map(self._repeated, value, again)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, Tensor) and value.shape != again.shape:
            return torch.cat([value] * self.terms, 1)
        return value


def _parts(stack: Stack) -> list[nn.Module]:
    """Return the norms and other modules that the wiring calls."""
    connections = [connection for i in range(len(stack)) for connection in stack[i].connections()]
    modules = dict.fromkeys(m for owner in (stack.wiring, *connections) for m in owner.modules())
    containers = (Connection, Variant, nn.ModuleList, nn.ModuleDict, nn.ParameterDict, nn.ParameterList)
    return [m for m in modules if not isinstance(m, containers)]
