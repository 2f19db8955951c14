"""The depth of one encoder or decoder: open, layers, close; layer dropout and activation checkpointing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_residuals.core.base import Shape, Stream, Variant
from fairseq_residuals.core.layer import Context, ResidualLayer
from fairseq_residuals.generation.cuda_graph_cache import Outputs, ReplayedBeamCache
from fairseq_residuals.performance import compile_layers


class Stack(nn.Module):
    """Stands where fairseq keeps its list of layers. Iterating it starts a pass along the depth and yields one
    callable per layer with the signature of fairseq's layers, so that fairseq's loops run unmodified: the first opens
    the stream, the last closes it, and the pass, not a module, holds the stream in between.
    """

    def __init__(
        self,
        built: list[nn.Module],
        variant: Variant,
        shape: Shape,
        *,
        layerdrop: float = 0.0,
        checkpoint_activations: bool = False,
        compile_backend: str = "",
    ) -> None:
        """
        Args:
            built: fairseq's layers; their sub-layers move into this stack.
            layerdrop: probability of skipping a layer in training (Fan et al. 2020).
            checkpoint_activations: recompute each layer in the backward pass instead of keeping its activations.
            compile_backend: of torch.compile, for the layers in training (:mod:`..performance.compile_layers`); empty:
                they run as they are.
        """
        super().__init__()
        for i, layer in enumerate(built):
            self.add_module(str(i), ResidualLayer(layer, *variant.at(i)))
        self.wiring = variant
        self.shape = shape
        self.layerdrop = layerdrop
        self.checkpoint_activations = checkpoint_activations
        self.compile_backend = compile_backend

    def __len__(self) -> int:
        return self.shape.depth

    def __getitem__(self, i: int) -> ResidualLayer:
        layer = self._modules[str(range(len(self))[i])]
        assert isinstance(layer, ResidualLayer)
        return layer

    def run_plainly(self) -> None:
        """From now on every layer runs, once, and as it is: for looks, which a stack's settings of training disturb."""
        self.layerdrop, self.checkpoint_activations, self.compile_backend = 0.0, False, ""

    def segments(self) -> list[tuple[Variant, nn.ModuleList]]:
        """The variants of this stack from the bottom, each with the layers that it wires."""
        variants = dict.fromkeys(self.wiring.at(i)[0] for i in range(len(self)))
        return [
            (variant, nn.ModuleList(self[i] for i in range(len(self)) if self.wiring.at(i)[0] is variant))
            for variant in variants
        ]

    def __iter__(self) -> Iterator[Any]:
        a_pass = EncoderPass(self) if self.shape.stack == "encoder" else DecoderPass(self)
        return iter([partial(a_pass.layer, i) for i in range(len(self))])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The whole depth at once: what the last layer returns to fairseq's loop."""
        out: Any = x
        for layer in self:
            out = layer(x, *args, **kwargs)
            x = out[0] if isinstance(out, tuple) else out
        return out


class Pass:
    """One pass along the depth; what it holds ends with it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.stream: Stream = {}
        self.keep = [True] * len(stack)
        if stack.training and stack.layerdrop > 0:
            self.keep = (torch.empty(len(stack)).uniform_() > stack.layerdrop).tolist()

    def run(self, i: int, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Layer ``i``: "x" of the stream after it (after the last layer: the stack's output), attention weights."""
        stack, attn = self.stack, None
        s = stack.wiring.open(x) if i == 0 else self.stream
        if self.keep[i]:
            layer: compile_layers.Run = stack[i]
            if stack.compile_backend and stack.training and torch.is_grad_enabled():
                layer = compile_layers.in_training(stack[i], stack.compile_backend)
            if stack.checkpoint_activations and torch.is_grad_enabled():
                s, attn = checkpoint(layer, s, context, use_reentrant=False)
            else:
                s, attn = layer(s, context)
        self.stream = s = stack.wiring.after_layer(i, s)
        return stack.wiring.close(s) if i == len(stack) - 1 else s["x"], attn


class EncoderPass(Pass):
    def layer(self, i: int, x: Tensor, encoder_padding_mask: Tensor | None = None) -> Tensor:
        """With the signature of fairseq's encoder layers: (T, B, C), mask (B, T) -> (T, B, C)."""
        return self.run(i, x, Context(padding_mask=encoder_padding_mask))[0]


class DecoderPass(Pass):
    def layer(
        self,
        i: int,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """With the signature of fairseq's decoder layers: (T, B, C), ... -> (T, B, C), weights, None.

        Args:
            encoder_out: (S, B, C), or (S, B, L * C) where the encoder has made each layer a memory of its own.
            incremental_state: where it replays all layers at once, the first runs them, and each returns the output.
        """
        context = Context(
            padding_mask=self_attn_padding_mask,
            self_attn_mask=self_attn_mask,
            memory=encoder_out,
            memory_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            need_attn=need_attn or need_head_weights,
            need_head_weights=need_head_weights,
        )
        if isinstance(incremental_state, ReplayedBeamCache) and incremental_state.ready:
            if i == 0:
                self.replayed = incremental_state.layers(x, partial(self._all, context))
            return self.replayed[0], self.replayed[1][i], None
        return *self._one(i, x, context), None

    def _one(self, i: int, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        memory, attention = context.memory, self.stack[i].encoder_attn
        if memory is not None and attention is not None and memory.size(-1) != attention.kdim:
            context = replace(context, memory=memory.chunk(len(self.stack), -1)[i])
        return self.run(i, x, context)

    def _all(self, context: Context, x: Tensor) -> Outputs:
        weights: list[Tensor | None] = []
        for i in range(len(self.stack)):
            asked = i == len(self.stack) - 1  # fairseq's search asks for the attention of the last layer
            x, attn = self._one(i, x, replace(context, need_attn=asked, need_head_weights=asked))
            weights.append(attn)
        return x, weights
