"""The seam: fairseq builds a model with all of its own options, then its layers are replaced by our stacks."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from fairseq_residuals.core.base import Shape
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.models.state_dict_names import translate_state_dict


def rewire(
    owner: nn.Module,
    wiring: Wiring,
    side: Literal["encoder", "decoder"],
    *,
    enc_depth: int,
    dec_depth: int,
    layerdrop: float = 0.0,
    checkpoint_activations: bool = False,
    compile_backend: str = "",
) -> Stack:
    """Replaces the layers of a fairseq encoder or decoder, built without a norm on top, by a wired stack.

    The sub-layers stay the ones that fairseq built (same weights from the same seed); norms are the wiring's own.
    :func:`fairseq_residuals.core.initialization.initialise` comes after the last stack of a model.
    """
    attribute = "layers" if hasattr(owner, "layers") else "transformer_layers"
    built: list[Any] = list(getattr(owner, attribute)._modules.values())
    layer = built[0]
    shape = Shape(
        stack=side,
        depth=len(built),
        dim=layer.self_attn.embed_dim,
        ffn_dim=layer.fc1.out_features,
        heads=layer.self_attn.num_heads,
        enc_depth=enc_depth,
        dec_depth=dec_depth,
        cross=enc_depth > 0 and dec_depth > 0,
    )
    variant = wiring.build(shape)
    stack = Stack(
        built,
        variant,
        shape,
        layerdrop=layerdrop,
        checkpoint_activations=checkpoint_activations,
        compile_backend=compile_backend,
    )
    assert owner.layer_norm is None, "fairseq's norm on top belongs to the variant here"
    setattr(owner, attribute, stack)
    translate_state_dict(owner, attribute)
    return stack
