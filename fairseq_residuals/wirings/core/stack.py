"""The depth of one encoder or decoder: open, layers, close."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import StackShape, Stream, Variant
from fairseq_residuals.wirings.core.layer import Context, Layer, ResidualLayer

Run = Callable[[Stream, Context], tuple[Stream, Tensor | None]]
"""A function that runs a layer: the layer itself, or what was wrapped around it."""
Wrapper = Callable[[Run], Run]


class Stack(nn.Module):
    """The layers of an encoder or decoder, wired by one variant."""

    layer_class: Callable[[Any, Variant, int], Layer] = ResidualLayer

    def __init__(
        self,
        built: Sequence[Any],
        variant: Variant,
        shape: StackShape,
        *,
        layerdrop: float = 0.0,
        wrappers: Iterable[Wrapper] = (),
    ) -> None:
        """Take the sub-layers of all layers over.

        Args:
            built: layers whose sub-layers move into this stack, as ``layer_class`` takes them.
            layerdrop: probability of skipping a layer in training (Fan et al. 2020).
            wrappers: what is wrapped around each layer whenever it runs, from the inside out.
        """
        super().__init__()
        for i, layer in enumerate(built):
            self.add_module(str(i), self.layer_class(layer, *variant.at(i)))
        self.wiring = variant
        self.shape = shape
        self.layerdrop = layerdrop
        self.wrappers = list(wrappers)

    def __len__(self) -> int:
        return self.shape.depth

    def __getitem__(self, i: int) -> Layer:
        # or what a tool has wrapped around it, with its attributes
        return self._modules[str(range(len(self))[index(i)])]  # type: ignore[return-value]

    def run_layer(self, i: int, s: Stream, context: Context) -> tuple[Stream, Tensor | None]:
        """Run layer ``i`` within its wrappers: the stream after it, attention weights or None."""
        run: Run = self[i]
        for wrap in self.wrappers:
            run = wrap(run)
        return run(s, context)

    def segments(self) -> list[tuple[Variant, nn.ModuleList]]:
        """Return the variants of this stack from the bottom, each with the layers that it wires."""
        variants = dict.fromkeys(self.wiring.at(i)[0] for i in range(len(self)))
        return [
            (variant, nn.ModuleList(self[i] for i in range(len(self)) if self.wiring.at(i)[0] is variant))
            for variant in variants
        ]

    def forward(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor | None]:
        """Run the whole depth: (T, B, C) -> (T, B, C), attention weights of the last layer or None."""
        context = Context() if context is None else context
        this, attn = Pass(self), None
        for i in range(len(self)):
            x, attn = this.run(i, x, context)
        return x, attn


class Pass:
    """One pass along the depth; what it holds ends with it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.stream: Stream = {}
        self.keep = [True] * len(stack)
        if stack.training and stack.layerdrop > 0:
            self.keep = (torch.empty(len(stack)).uniform_() > stack.layerdrop).tolist()

    def run(self, i: int, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Run layer ``i``, after those below it.

        Args:
            x: (T, B, C), the embeddings where this is the first layer; of other layers, the stream is the input.
            context: its memory may be (S, B, L * C), where the encoder has made each of L layers one of its own.

        Returns:
            (T, B, C): "x" of the stream after it, or after the last layer the stack's output; attention weights.
        """
        stack, attn = self.stack, None
        s = stack.wiring.open(x) if i == 0 else self.stream
        if self.keep[i]:
            s, attn = stack.run_layer(i, s, self._of_layer(i, context))
        self.stream = s = stack.wiring.after_layer(i, s)
        return stack.wiring.close(s) if i == len(stack) - 1 else s["x"], attn

    def _of_layer(self, i: int, context: Context) -> Context:
        memory, attention = context.memory, self.stack[i].encoder_attn
        if memory is None or attention is None or memory.size(-1) == attention.kdim:
            return context
        return replace(context, memory=memory.chunk(len(self.stack), -1)[i])
