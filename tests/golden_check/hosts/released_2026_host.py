"""Wirings of models released in 2026 around plain parts: of Hugging Face's transformers, Kimi K3 and others.

Of transformers the files have whole models with plain attention and FFNs in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.variants.deepnet import DeepNetConnection
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.hyper_connections_host import (
    MHC_NAMES,
    eps_in_gates,
    streams_side_by_side,
    transpose_mixing,
)
from tests.golden_check.hosts.inkling_host import newest_source
from tests.golden_check.hosts.plain_host import ATTENTION, NAMES, query_vectors
from tests.golden_check.hosts.surroundings import layers_of, number, root_mean_square
from tests.golden_check.tolerances import SHIPPED

SELF, FFN = f".{CONNECTIONS['self']}.", f".{CONNECTIONS['ffn']}."
MODEL = ((r"^model\.", ""), (r"^lm_head\.", "output_projection."))
LAYER = (*ATTENTION, (r"\.post_attention_layernorm\.", ".final_layer_norm."))


def released(wiring: str, *names: tuple[str, str], **more: Any) -> HostRecipe:
    """Return a recipe for a file of 2026.

    Args:
        wiring: as :attr:`HostRecipe.wiring`.
        names: regular expressions and replacements for what only this design has.
        more: further fields of the recipe; ``repository`` and ``convert`` are those of its authors.
    """
    repository, convert = more.pop("repository", "huggingface/transformers"), more.pop("convert", dict)
    authors = Authors(repository, convert, (*MODEL, *names, *LAYER, *NAMES))
    return HostRecipe(wiring, authors, **{"tolerances": SHIPPED} | more)


def gains_themselves(pattern: str) -> Callable[[Golden], Golden]:
    """Add 1 to the gains of that pattern, which a file has as their distance from 1."""

    def adapt(golden: Golden) -> Golden:
        parameters = {name: 1 + x if re.search(pattern, name) else x for name, x in golden.parameters.items()}
        return replace(golden, parameters=parameters)

    return adapt


def gains_of_streams(values: Values) -> Values:
    """Give the gains of the norms of n streams, there side by side, a name each."""
    n = next((len(value) for name, value in values.items() if "block_inject" in name), 1)
    parted: Values = {}
    for name, value in values.items():
        if name.endswith("hc_norm.weight"):
            parts = enumerate(value.unflatten(0, (n, -1)))
            parted |= {name.replace("hc_norm", f"norms.{i}"): part for i, part in parts}
        else:
            parted[name] = value
    return parted


class Muse(Host):
    """With embeddings that the file has as the wiring has normalised them."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = super().forward(inputs)
        return outputs | {"dec_embed": self.layers.wiring.open(outputs["dec_embed"])["x"]}


# MiniMax


class ScaledPostLN(DeepNetConnection):
    """With the constants of the file; the stream also has "sum", what the norm is of."""

    beta: float

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s, self.beta * y) | {"sum": self.alpha * s["x"] + self.beta * y}


def scaled_post_ln(host: Host, golden: Golden) -> None:
    """Normalise the embeddings, and take the constants from the sidecar."""
    host.embed_norm = host.layers.wiring.shape.new_norm()
    host.layers.register_forward_pre_hook(lambda module, args: (host.embed_norm(args[0]), *args[1:]))  # type: ignore[operator]
    for layer in layers_of(host):
        for connection, factors in ((layer.connection("self"), "full_attn"), (layer.connection("ffn"), "mlp")):
            connection.__class__ = ScaledPostLN
            connection.alpha = number(golden, f"{factors}_alpha_factor")  # type: ignore[assignment]
            connection.beta = number(golden, f"{factors}_beta_factor")  # type: ignore[assignment]


def norms_of_sums(values: Values) -> Values:
    """Name each norm by the sub-layer above which it stands; the first of a layer stands above the layer below."""
    depth = 1 + max((int(m[1]) for name in values if (m := re.search(r"layers\.(\d+)\.", name))), default=0)

    def above(m: re.Match[str]) -> str:
        i = int(m[1]) - 1 if m[1] else depth - 1
        return f"layers.{i}.final_layer_norm." if i >= 0 else "embed_norm."

    return {
        re.sub(r"^model\.(?:layers\.(\d+)\.input_layernorm|norm)\.", above, name).replace(
            "post_attention_layernorm", "self_attn_layer_norm"
        ): value
        for name, value in values.items()
    }


# LongCat


def in_pairs(values: Values) -> Values:
    """Make two layers of each."""

    def half(m: re.Match[str]) -> str:
        return f"layers.{2 * int(m[1]) + int(m[3] or 0)}.{m[2]}."

    return {re.sub(r"layers\.(\d+)\.(\w+)\.(?:([01])\.)?", half, name): value for name, value in values.items()}


def by_second_layer(golden: Golden) -> Golden:
    """Call what is above a pair by the number of its second layer."""

    def second(m: re.Match[str]) -> str:
        return str(2 * int(m[0]) + 1)

    above = {re.sub(r"(?<=dec_layer)\d+", second, name): x for name, x in golden.activations.items()}
    return replace(golden, activations=above)


def above_pairs(s: Stream) -> dict[str, Tensor]:
    return {} if any(key.startswith("shortcut") for key in s) else {"": s["x"].transpose(0, 1)}


# NeoMME


def normalised_embeddings(host: Host, golden: Golden) -> None:
    """Normalise embeddings, which the file has after that."""
    eps = number(golden, "rms_eps")
    host.embed_tokens.register_forward_hook(lambda module, args, x: root_mean_square(x, eps))


def pairs_by_the_largest(golden: Golden) -> Golden:
    """Measure the gradients of two numbers, sums that cancel, by the largest in any layer."""
    names = [name for name in golden.scales if name.endswith((".lambdas", ".router.scale"))]
    largest = torch.stack([golden.scales[name] for name in names]).amax(0)
    return replace(golden, scales=golden.scales | dict.fromkeys(names, largest))


RECIPES = {
    "kimi_k3_block_attnres": released(
        "attention_residuals(norm=rms,eps=?,block={sublayers})",
        (r"\.self_attention_res_(norm|proj)\.", rf"{SELF}over_depth.\1."),
        (r"\.mlp_res_(norm|proj)\.", rf"{FFN}over_depth.\1."),
        (r"^output_attn_res_(norm|proj)\.", r"layers.wiring.over_depth.\1."),
        (r"\.over_depth\.norm\.weight$", ".over_depth.key_gain"),
        (r"\.over_depth\.proj\.weight$", ".over_depth.query"),
        repository="moonshotai/Kimi-K3",
        convert=query_vectors,
        # the first sub-layer's softmax is over one source
        unused=r"layers\.0\.self_attention_res_",
        layer_outputs=newest_source,
        initial_values=False,
    ),
    "glm5_mhc_mean_close": released(
        "mhc(norm=rms,eps=?,n={streams})",
        *MHC_NAMES,
        convert=transpose_mixing,
        surroundings=(eps_in_gates,),
        layer_outputs=streams_side_by_side,
        initial_values=False,
    ),
    "minimax_scaled_postln": released(
        "deepnet(norm=rms,eps=?)",
        convert=norms_of_sums,
        surroundings=(scaled_post_ln,),
        layer_outputs=lambda s: {"": s.get("sum", s["x"]).transpose(0, 1)},
    ),
    "esmc_residual_scaling": released(
        "residual_multiplier(eps=?,multiplier={residual_multiplier})",
        # there the last norm has none
        fixed={"layer_norm.bias": 0.0},
    ),
    "hy4_ihc": released(
        "identity_hc(norm=rms,eps=?,n={streams},start=hy4,close=learned)",
        *MHC_NAMES,
        surroundings=(eps_in_gates,),
        layer_outputs=streams_side_by_side,
        initial_values=False,
    ),
    "orthogonal_residual": released(
        "orthogonal_residual(norm=rms,eps=?)", repository="BootsofLagrangian/ortho-residual"
    ),
    "qwen4_gated_residual": released(
        "gated_residual(norm=rms,eps=?,n={streams},rank={rank},start=qwen)",
        (r"\.attn_hyper_connection\.block_inject_weight\.weight$", f"{SELF}inject"),
        (r"\.mlp_hyper_connection\.block_inject_weight\.weight$", f"{FFN}inject"),
        (r"\.attn_hyper_connection\.", f"{SELF}gated."),
        (r"\.mlp_hyper_connection\.", f"{FFN}gated."),
        (r"^hyper_connection_mixer\.", "layers.wiring.last."),
        (r"\.input_mix_weight_(down|up)\.weight$", r".\1"),
        convert=gains_of_streams,
        adapt=gains_themselves(r"\.norms\.\d+\.weight$"),
        layer_outputs=streams_side_by_side,
        initial_values=False,
    ),
    "muse_residual_gate": released(
        "residual_gate(norm=rms,eps=?,start=muse)",
        (r"\.post_attention_residual_gate\.", SELF),
        (r"\.post_feedforward_residual_gate\.", FFN),
        (r"\.pre_feedforward_layernorm\.", ".final_layer_norm."),
        (r"\.post_feedforward_layernorm\.weight$", f"{FFN}out_gain"),
        adapt=gains_themselves(r"layers\.\d+\.(\w+_layer_norm\.weight|ffn_connection\.out_gain)$"),
        model=Muse,
        initial_values=False,
    ),
    "longcat_scmoe": released(
        "scmoe(norm=rms,eps=?,width={moe_width})",
        (r"\.mlp\.fc1\.", f"{FFN}shortcut_in."),
        (r"\.mlp\.fc2\.", f"{FFN}shortcut_out."),
        (r"\.mlps\.fc", ".fc"),
        convert=in_pairs,
        adapt=by_second_layer,
        layer_outputs=above_pairs,
    ),
    "neomme_x0_read": released(
        "x0_read(norm=rms,eps=?,multiplier={residual_multiplier})",
        (r"\.lambdas$", f"{SELF}lambdas"),
        adapt=pairs_by_the_largest,
        surroundings=(normalised_embeddings,),
        fixed={r".*layer_norm\.weight": 1.0},
    ),
}
