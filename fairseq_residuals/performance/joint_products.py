"""Fewer, larger products: queries, keys and values in one, and keys and values of all cross-attention in one.

A GPU is not filled by a product of few thousand positions and 512 channels. Parameters stay as they are, and matrices
are put side by side for each product; the gradient of each is a part of that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.core.attention import KVCache, needs_opening
from fairseq_residuals.core.base import Connection
from fairseq_residuals.core.layer import ResidualLayer
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.utils.torch_private import has_hooks


class JointProduct:
    """The products of one input by several matrices, each asked for by its module's forward.

    The first that is asked for computes all. Once an input came of which not all were asked for, each is computed by
    itself: they are then fed different things.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.linears = linears
        self.serves = True
        self.fed: tuple[Tensor, int, bool] | None = None
        self.products: dict[int, Tensor] = {}

    def of(self, i: int, x: Tensor) -> Tensor:
        """Return the product of x (..., in) by matrix ``i`` (out, in), with its bias: (..., out)."""
        if self.fed is not None and not self._is_fed(x):
            self.serves, self.fed, self.products = False, None, {}
        if self.serves and self.fed is None:
            self._multiply(x)
        product = self.products.pop(i, None)
        if not self.products:
            self.fed = None
        return F.linear(x, self.linears[i].weight, self.linears[i].bias) if product is None else product

    def _is_fed(self, x: Tensor) -> bool:
        assert self.fed is not None
        return self.fed[0] is x and self.fed[1:] == (x._version, torch.is_grad_enabled())

    def _multiply(self, x: Tensor) -> None:
        weight, bias = torch.cat([m.weight for m in self.linears]), torch.cat([m.bias for m in self.linears])
        products = F.linear(x, weight, bias).split([m.out_features for m in self.linears], -1)
        self.fed, self.products = (x, x._version, torch.is_grad_enabled()), dict(enumerate(products))


class SDPAttention:
    """An attention backend that calls PyTorch's fused attention with the projections of the module.

    fairseq's module has its own way where it projects by modules, which keeps all weights of attention, and does not
    call its projections where it calls PyTorch's.
    """

    def __init__(self, otherwise: Any) -> None:
        self.otherwise = otherwise

    def __call__(
        self, attn: Any, query: Tensor, key: Tensor, value: Tensor, *, cache: KVCache | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run attention as :func:`~fairseq_residuals.core.attention.run_attention` does."""
        weights = kwargs.get("need_weights") or kwargs.get("need_head_weights")
        if cache is not None or weights or needs_opening(cache, kwargs):
            return self.otherwise(attn, query, key, value, cache=cache, **kwargs)  # type: ignore[no-any-return]

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (attn.num_heads, attn.head_dim)).permute(1, 2, 0, 3)

        heads = F.scaled_dot_product_attention(
            split(attn.q_proj(query)),
            split(attn.k_proj(key)),
            split(attn.v_proj(value)),
            attn_mask=_mask(kwargs.get("attn_mask"), kwargs.get("key_padding_mask"), query),
            dropout_p=attn.dropout_module.p if attn.training else 0.0,
            scale=attn.scaling,
        )
        return attn.out_proj(heads.permute(2, 0, 1, 3).flatten(2)), None


def _mask(added: Tensor | None, padding: Tensor | None, query: Tensor) -> Tensor | None:
    """Return (T, S), which is added to scores, and (B, S), True at padding, as one mask, or None."""
    if padding is None:
        return None if added is None else added.to(query.dtype)
    least = torch.finfo(query.dtype).min
    mask = torch.zeros((), dtype=query.dtype, device=query.device) if added is None else added.to(query.dtype)
    # not infinity: a query that may see padding alone, such as padding on the left, is to have some weights
    return mask.masked_fill(padding.bool()[:, None, None], least).clamp_min(least)


def attach(model: nn.Module) -> None:
    """Attach both to the attention of every stack; what somebody watches by hooks stays as it is."""
    for stack in model.modules():
        if isinstance(stack, Stack) and not has_hooks(stack):
            _attach_to(stack)


def _attach_to(stack: Stack) -> None:
    layers = [layer for layer in stack.modules() if isinstance(layer, ResidualLayer)]
    for connection in stack.modules():
        if isinstance(connection, Connection) and not isinstance(connection.attention, SDPAttention):
            connection.attention = SDPAttention(connection.attention)
    for layer in layers:
        _join([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj])
    cross: list[Any] = [layer.encoder_attn for layer in layers if layer.encoder_attn is not None]
    # a layer that is dropped, or run again for its gradient, asks at another time than the others
    if cross and stack.layerdrop == 0 and not stack.wrappers:
        _join([matrix for attn in cross for matrix in (attn.k_proj, attn.v_proj)])


def _join(linears: list[Any]) -> None:
    alike = all(type(m) is nn.Linear and m.bias is not None for m in linears)
    if alike and len({m.in_features for m in linears}) == 1 and not any("forward" in vars(m) for m in linears):
        joint = JointProduct(linears)
        for i, linear in enumerate(linears):
            linear.forward = partial(joint.of, i)
