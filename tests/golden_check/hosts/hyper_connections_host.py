"""Hyper-Connections and mHC around plain parts.

``hc_alg2`` is a transcription of the paper's pseudo code, ``hc_lucidrains`` lucidrains/hyper-connections, and
``mhc_hf_dsv4`` the router and the read-out of DeepSeek-V4 in Hugging Face's transformers.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.variants._streams import StreamsConnection, Weights, stack_streams
from fairseq_residuals.wirings.variants.hyper_connections import HyperRouter
from fairseq_residuals.wirings.variants.mhc import MHCRouter
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.plain_host import plain


def all_streams(s: Stream) -> Tensor:
    """(T, B, n, C)"""
    return stack_streams(s, sum(key.startswith("x") for key in s))


def streams_side_by_side(s: Stream) -> dict[str, Tensor]:
    """(B, T, n, C)"""
    return {"": all_streams(s).transpose(0, 1)}


class LucidrainsRouter(HyperRouter):
    """With a root-mean-square norm, whose gain is kept as its distance from 1."""

    def product(self, streams: Tensor) -> Tensor:
        """(T, B, n, C) -> (T, B, n, n + 2)"""
        assert self.dynamic is not None
        return rms_linear(streams, self.dynamic * (1 + self.gain), centred=False, eps=0.0).movedim(0, -1)


def lucidrains_routers(host: Host, golden: Golden) -> None:
    for module in (module for module in host.modules() if isinstance(module, StreamsConnection)):
        module.router = LucidrainsRouter(module.site, golden.setting("streams"), True)


def join_dynamic(values: Values) -> Values:
    """Return the parameters (or gradients) of what is read and mixed, alpha, and written, beta, in one."""
    joined = dict(values)
    for name in values:
        if found := re.fullmatch(r"(.*)\.static_alpha", name):
            router = found[1]
            alpha, beta = joined.pop(name), joined.pop(f"{router}.static_beta")
            joined[f"{router}.static"] = torch.cat([alpha, beta[:, None]], 1)
            alpha, beta = (joined.pop(f"{router}.dynamic_{part}_fn") for part in ("alpha", "beta"))
            joined[f"{router}.dynamic"] = torch.cat([alpha.T, beta[None]])
            scales = [joined.pop(f"{router}.dynamic_{part}_scale").flatten() for part in ("alpha", "beta")]
            joined[f"{router}.scale"] = torch.cat(scales)
    return joined


def transpose_mixing(values: Values) -> Values:
    """Return the rows of the router that make the mixing matrix make its transpose there."""
    changed = dict(values)
    for name, value in values.items():
        if re.search(r"_hc\.(fn|base)$", name):
            n = int((len(value) + 1) ** 0.5) - 1
            gates, mixing = value.split([2 * n, n * n])
            changed[name] = torch.cat([gates, mixing.unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)])
    return changed


def eps_in_gates(host: Host, golden: Golden) -> None:
    """Add what the paper does not: 1e-6 to gates without a matrix that mixes; else to pre, and in Sinkhorn's steps."""
    eps = golden.description["provenance"].get("hc_eps", 1e-6)

    def add(router: Any, args: Any, weights: Weights) -> Weights:
        written = weights.write if router.sizes[2] else weights.write + eps
        return weights._replace(read=weights.read + eps, write=written)

    def balance(n: int, logits: Tensor) -> Tensor:
        # rows there are columns here, and the first of them is a softmax
        matrices = logits.unflatten(0, (n, n)).softmax(0) + eps
        for dim in (1, *(0, 1) * 19):
            matrices = matrices / (matrices.sum(dim, keepdim=True) + eps)
        return matrices.permute(2, 3, 0, 1)

    for router in (module for module in host.modules() if isinstance(module, MHCRouter)):
        router.register_forward_hook(add)
        if router.sizes[2]:
            router.mix = partial(balance, router.n)  # type: ignore[method-assign]


HYPER_NAMES = (
    (r"\.hc_attn\.(?:layer_norm|norm)\.(?:weight|gamma)$", ".hc_attn.gain"),
    (r"\.hc_ffn\.(?:layer_norm|norm)\.(?:weight|gamma)$", ".hc_ffn.gain"),
    (r"\.layer_norm\.bias$", ".bias"),
    (r"\.hc_attn\.", ".self_attn_connection.router."),
    (r"\.hc_ffn\.", ".ffn_connection.router."),
)
MHC_NAMES = (
    (r"^hc_head\.hc_", "layers.wiring.read_out."),
    (r"\.attn_hc\.", ".self_attn_connection.router."),
    (r"\.ffn_hc\.", ".ffn_connection.router."),
    (r"\.(router|read_out)\.fn$", r".\1.logits.weight"),
    (r"\.(router|read_out)\.base$", r".\1.logits.bias"),
)

RECIPES = {
    "hc_alg2": plain(
        "hyper_connections(n={streams})", "", *HYPER_NAMES, convert=join_dynamic, layer_outputs=streams_side_by_side
    ),
    "hc_lucidrains": plain(
        "hyper_connections(n={streams})",
        "lucidrains/hyper-connections",
        *HYPER_NAMES,
        convert=join_dynamic,
        layer_outputs=streams_side_by_side,
        fixed={r".*\.router\.bias": 0.0},
        surroundings=(lucidrains_routers,),
    ),
    "mhc_hf_dsv4": plain(
        "mhc(n={streams},close=learned)",
        "huggingface/transformers",
        *MHC_NAMES,
        convert=transpose_mixing,
        layer_outputs=streams_side_by_side,
        # it is made for inference: everything is zero until it is loaded
        initial_values=False,
        surroundings=(eps_in_gates,),
    ),
}
