"""What authors put around their wirings, beyond the fields of a recipe: hooks on the modules of a host.

Each function returns an entry for :attr:`.host_recipe.HostRecipe.surroundings`. A number may be given as the name
that the file's sidecar has for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.layer import Layer
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.authors_rotary import AuthorsRotary
from tests.golden_check.hosts.host import Host, add_norm

Surrounding = Callable[[Host, Golden], None]
QUERIES_AND_KEYS = ("self_attn.q_proj", "self_attn.k_proj")


def number(golden: Golden, name: str) -> float:
    """Return a number among the authors' settings."""
    return float(golden.description["provenance"][name])


def rope_setting(golden: Golden, name: str, default: float) -> float:
    """Return a number of the rotary positions that the sidecar describes as ``rope``; ``default`` where it does not."""
    described = re.search(rf"'{name}': ([\d.e+]+)", str(golden.description["provenance"].get("rope", "")))
    return float(described[1]) if described else default


def layers_of(host: Host) -> list[Layer]:
    """Return the layers from the bottom."""
    return [host.layers[i] for i in range(len(host.layers))]


def scaled_input(factor: str | Callable[[Golden], float]) -> Surrounding:
    """Multiply what enters the first layer."""

    def surround(host: Host, golden: Golden) -> None:
        value = number(golden, factor) if isinstance(factor, str) else factor(golden)
        host.layers.register_forward_pre_hook(lambda module, args: (value * args[0], *args[1:]))

    return surround


def by_root_of_width(golden: Golden) -> float:
    """Return sqrt(d)."""
    return float(len(golden.parameters["layers.0.self_attn.out_proj.weight"]) ** 0.5)


def scaled_embeddings(host: Host, golden: Golden) -> None:
    """Multiply embeddings by sqrt(d), which the file has after that."""
    factor = by_root_of_width(golden)
    host.embed_tokens.register_forward_hook(lambda module, args, x: factor * x)


def scaled_scores(factor: str | float) -> Surrounding:
    """Multiply the scores of attention by this instead of the root of a head's channels."""

    def surround(host: Host, golden: Golden) -> None:
        for layer in layers_of(host):
            layer.self_attn.scaling = number(golden, factor) if isinstance(factor, str) else factor  # type: ignore[assignment]

    return surround


def logits_by(change: Callable[[Tensor, Golden], Tensor]) -> Surrounding:
    """Change the logits (B, T, V)."""

    def surround(host: Host, golden: Golden) -> None:
        host.output_projection.register_forward_hook(lambda module, args, x: change(x, golden))

    return surround


def softcapped(limit: float) -> Surrounding:
    """Bound the logits: limit tanh(logits / limit)."""
    return logits_by(lambda x, golden: limit * torch.tanh(x / limit))


def rotary(
    style: Literal["half", "interleaved"],
    channels: Callable[[Golden, int], int] = lambda golden, head: head,
    *,
    base: float = 1e4,
    **more: Any,
) -> Surrounding:
    """Turn queries and keys.

    Args:
        channels: of a head that has so many.
        base: where the sidecar has no ``rope_theta``.
        more: of :class:`AuthorsRotary`.
    """

    def surround(host: Host, golden: Golden) -> None:
        theta = rope_setting(golden, "rope_theta", base)
        for layer in layers_of(host):
            turned = channels(golden, layer.self_attn.head_dim)
            layer.self_attn.rotary = AuthorsRotary(theta, style, turned, **more)

    return surround


def on_outputs(host: Host, names: tuple[str, ...], hook: Any) -> None:
    """Register a forward hook on modules of every layer."""
    for layer in layers_of(host):
        for name in names:
            layer.get_submodule(name).register_forward_hook(hook)


def root_mean_square(x: Tensor, eps: float = torch.finfo(torch.float32).eps) -> Tensor:
    """Return x (..., C) over its root mean square; without another ``eps``, as PyTorch does in single precision."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def normalised_input(host: Host, golden: Golden) -> None:
    """Normalise what enters the first layer."""
    host.layers.register_forward_pre_hook(lambda module, args: (root_mean_square(args[0]), *args[1:]))


def plain_norms(*names: str, eps: float) -> Surrounding:
    """Normalise per head what modules of a layer give, without gains: root mean square."""

    def surround(host: Host, golden: Golden) -> None:
        head = host.layers.shape.dim // host.layers.shape.heads
        for layer in layers_of(host):
            for name in names:
                add_norm(layer.get_submodule(name), nn.RMSNorm(head, eps=eps, elementwise_affine=False), head)

    return surround
