"""Initial weights of a wired stack: the options ``init`` and ``init_scale``, common to all variants.

==============  =====================================================================================================
``fairseq``     as fairseq drew them: Xavier uniform for attention (gain 1/sqrt(2) for queries, keys and values),
                PyTorch's default for the FFN
``fairseq_0.8``  the same for attention, Xavier uniform for the FFN, biases 0: fairseq until 0.8
``fairseq_0.9``  as that, but the biases of queries, keys and values are PyTorch's random default
``lipschitz``   Xu et al. 2020, "Lipschitz Constrained Parameter Initialization for Deep Transformers": matrices
                U(±sqrt(1/fan_in)), embeddings U(±sqrt(2/(V + d))), biases 0; also outside the layers
                (anoidgit/transformer, ``utils/init.py``)
``ds_init``     Zhang et al. 2019, "Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention",
                Eq. 8: Xavier uniform over sqrt(l) in layer l, counted from 1 in each stack, or in each part of a
                stack that is a list of variants; biases 0
``ds_init_code``  the same over l^(1/4): what the authors' repository (bzhangGo/zero@d97e2c2) comes to, since
                TensorFlow takes its factor for one on the variance
``xavier``      Xavier uniform for every matrix of the layers, biases 0
``small``       Nguyen and Salazar 2019, "Transformers without Tears", section 3.1 (SmallInit): attention
                N(0, 2/(5d)), FFN N(0, 2/(d + f)), biases 0; with ``fixnorm`` embeddings U(±0.01)
                (tnq177/transformers_without_tears@c2dfaaa, ``layers.py``, ``model.py``)
==============  =====================================================================================================

``init_scale`` then multiplies every weight matrix of the layers; embeddings, biases, norms and gains stay. Matrices are
those of linear maps: the weights by which a variant combines layers, and the routers of its streams, start as it says.
A matrix that a variant starts at zero stays zero, whatever the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.stack import Stack


@torch.no_grad()
def initialise(owners: list[tuple[nn.Module, Stack]]) -> None:
    """Draw and scale the weights of a model's stacks.

    Args:
        owners: fairseq's encoders and decoders, each with the stack that it holds.
    """
    # what two stacks share belongs to the first of them
    taken: set[nn.Parameter] = set()
    for owner, stack in owners:
        embed_tokens = getattr(owner, "embed_tokens", None)
        if embed_tokens is not None and not taken.isdisjoint(embed_tokens.parameters()):
            embed_tokens = None
        inside = set(stack.modules())
        outside = [m for m in owner.modules() if m not in inside and taken.isdisjoint(m.parameters(recurse=False))]
        taken.update(owner.parameters())
        for variant, layers in stack.segments():
            _initialise(variant, layers, outside, embed_tokens)
            # what lies outside of the layers belongs to the first segment
            outside, embed_tokens = [], None


def _initialise(variant: Variant, layers: nn.ModuleList, outside: Iterable[nn.Module], embed_tokens: Any) -> None:
    rule, scale = variant.config.init, variant.config.init_scale
    matrices = matrices_of(layers)
    if rule == "lipschitz":
        _draw_lipschitz([*layers.modules(), *variant.modules(), *outside])
    elif rule in ("fairseq_0.8", "fairseq_0.9"):
        for layer in layers:
            for name, module in layer.named_modules():
                ffn = name.rpartition(".")[2] in ("fc1", "fc2")
                for matrix in matrices[module] if ffn else ():
                    nn.init.xavier_uniform_(matrix)
                drawn = ffn or rule == "fairseq_0.8"
                if isinstance(module, nn.Linear) and drawn and module.bias is not None:
                    nn.init.zeros_(module.bias)
    elif rule == "small":
        _draw_small(layers, matrices, variant.shape.dim)
        if variant.config.fixnorm and isinstance(embed_tokens, nn.Embedding):
            nn.init.uniform_(embed_tokens.weight, -0.01, 0.01)
    elif rule != "fairseq":
        power = {"xavier": 0.0, "ds_init": 0.5, "ds_init_code": 0.25}[rule]
        for depth, layer in enumerate(layers, start=1):
            for module in _linear(layer.modules()):
                for matrix in matrices[module]:
                    nn.init.xavier_uniform_(matrix, gain=depth**-power)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
    variant.init_weights(layers, embed_tokens)
    if scale != 1.0:
        for module in _linear(layers.modules()):
            module.weight.mul_(len(layers) ** -0.5 if scale == "depth" else scale)


def _draw_small(layers: nn.ModuleList, matrices: Mapping[nn.Module, tuple[Tensor, ...]], dim: int) -> None:
    # the authors' matrices of queries, keys, values and outputs are one, of d inputs and 4 d outputs
    named = [(name.rstrip("0123456789"), part) for name, part in layers.named_modules()]  # wrap counts attentions
    attention = {m for name, part in named if name.endswith("_attn") for m in part.modules()}
    for module in _linear(layers.modules()):
        fans = 5 * dim if module in attention else sum(matrices[module][0].shape)
        nn.init.normal_(module.weight, std=(2 / fans) ** 0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _draw_lipschitz(modules: list[nn.Module]) -> None:
    for linear in _linear(modules):
        nn.init.uniform_(linear.weight, -(linear.in_features**-0.5), linear.in_features**-0.5)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    # after the matrices: an output projection tied to an embedding is drawn as the embedding
    for module in modules:
        if isinstance(module, nn.Embedding):
            bound = (2 / (module.num_embeddings + module.embedding_dim)) ** 0.5
            nn.init.uniform_(module.weight, -bound, bound)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])


def matrices_of(layers: nn.Module) -> dict[nn.Module, tuple[Tensor, ...]]:
    """Return the matrices of each linear map: one, but two of the first one of a gated FFN."""
    ffns: list[Any] = [part for part in layers.modules() if hasattr(part, "fc2")]
    gated = {ffn.fc1 for ffn in ffns if ffn.fc1.out_features > ffn.fc2.in_features}
    return {m: m.weight.chunk(1 + (m in gated)) for m in layers.modules() if isinstance(m, nn.Linear)}


def _linear(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    """Return the linear maps, but those that start at zero; matrices on ``meta`` have no values to look at."""
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    return [module for module in linear if module.weight.is_meta or bool(module.weight.any())]
