"""Wirings whose files number sub-layers: of wdlctc/hyper-connection-factory, and lucidrains' x-transformers.

Sub-layer 2 l is the attention of layer l, 2 l + 1 its FFN.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm, silu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Values
from fairseq_residuals.wirings.core.base import Connection, Site, Stream
from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from fairseq_residuals.wirings.variants._streams import stack_streams, stream_keys
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.hyper_connections_host import join_dynamic, streams_side_by_side
from tests.golden_check.hosts.released_2026_host import gains_themselves, pairs_by_the_largest, released
from tests.golden_check.hosts.surroundings import layers_of
from tests.golden_check.tolerances import SHIPPED

_PLACE = re.compile(r"(sublayers|connection\.sites|connection\.routers|dec\.layers)\.(\d+)\.(.*)")
_SUBLAYER = re.compile(r"(?:f|1\.fn|1)\.(?:([qkvo])|(fc[12]))\.")


def by_layers(values: Values) -> Values:
    """Name what is numbered by sub-layers by layers; the last of the routers is the output's."""
    places = [m for m in map(_PLACE.fullmatch, values) if m]
    top = max((int(m[2]) for m in places if m[1] == "connection.routers"), default=-1)

    def inside(m: re.Match[str]) -> str:
        return f"{m[2]}." if m[2] else f"self_attn.{'out' if m[1] == 'o' else m[1]}_proj."

    def renamed(name: str) -> str:
        m = _PLACE.fullmatch(name)
        if m is None:
            return name
        layer, kind = int(m[2]) // 2, ("ffn" if int(m[2]) % 2 else "self")
        owner = "layers.wiring" if int(m[2]) == top else f"layers.{layer}.{CONNECTIONS[kind]}"  # type: ignore[index]
        if m[1].startswith("connection"):
            return f"{owner}.{'router' if m[1].endswith('sites') else 'over_depth'}.{m[3]}"
        if m[3] in ("norm.weight", "0.0.gamma"):
            return f"layers.{layer}.{FAIRSEQ_NORMS[kind]}.weight"  # type: ignore[index]
        return f"layers.{layer}.{_SUBLAYER.sub(inside, m[3])}" if _SUBLAYER.match(m[3]) else f"{owner}.{m[3]}"

    return {renamed(name): value for name, value in values.items()}


def by_fractions(values: Values) -> Values:
    """Join what is read, mixed and written, as Hyper-Connections have it."""
    names = (
        (r"\.dyn_(alpha|beta)$", r".dynamic_\1_fn"),
        (r"\.(alpha|beta)_scale$", r".dynamic_\1_scale"),
        (r"\.router\.norm\.weight$", ".router.gain"),
        (r"\.router\.norm\.bias$", ".router.bias"),
    )
    named = by_layers(values)
    for pattern, replacement in names:
        named = {re.sub(pattern, replacement, name): value for name, value in named.items()}
    return join_dynamic(named)


def outputs_of_ffns(golden: Golden) -> Golden:
    """Compare what the file calls the output of a layer with what its FFN gives."""
    named = {re.sub(r"dec_layer(\d+)", r"dec\1_ffn", name): x for name, x in golden.activations.items()}
    return replace(golden, activations=named)


class XTransformersConnection(Connection):
    """Read n streams by gates with a static part, and normalise each after every write.

    The gates of what is read and of what is written share a bottleneck. Norms of what is read have the eps that PyTorch
    gives them in single precision, those of the streams 1e-5.
    """

    def __init__(self, site: Site, n: int, rank: int) -> None:
        super().__init__(site)
        self.n, width = n, n * site.dim
        self.read_gain = nn.Parameter(torch.ones(n, site.dim))
        self.static_read_logit = nn.Parameter(torch.zeros(1, n, site.dim))
        self.static_write_logit = nn.Parameter(torch.zeros(n))
        self.dynamic_gate_scale = nn.Parameter(torch.tensor(0.01))
        self.to_bottleneck = nn.Linear(width, rank, bias=False)
        self.to_read_gate = nn.Linear(rank, width, bias=False)
        self.to_write_gate = nn.Linear(rank, n, bias=False)
        self.post_gain = nn.Parameter(torch.ones(site.dim))

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        streams = stack_streams(s, self.n)
        z = rms_norm(streams, streams.shape[-1:], eps=torch.finfo(torch.float32).eps) * self.read_gain
        shared = silu(self.to_bottleneck(z.flatten(-2)) / self.n) * self.dynamic_gate_scale
        gates = (self.to_read_gate(shared).view_as(z) + self.static_read_logit).sigmoid()
        written = 2 * (self.to_write_gate(shared) + self.static_write_logit).sigmoid()
        return (gates * z).mean(-2), s | {"written": written}

    def write(self, s: Stream, y: Tensor) -> Stream:
        streams = stack_streams(s, self.n) + s["written"].unsqueeze(-1) * y.unsqueeze(-2)
        normed = layer_norm(streams, streams.shape[-1:], self.post_gain, eps=1e-5)
        return dict(zip(stream_keys(self.n), normed.unbind(-2), strict=True))


def gated_multi_residual(host: Host, golden: Golden) -> None:
    """Give each sub-layer that connection, and each stream a vector of its own at the start."""
    n, rank, wiring = golden.setting("streams"), golden.setting("rank"), host.layers.wiring
    for layer in layers_of(host):
        for kind in layer.kinds:
            site = layer.connection(kind).site
            setattr(layer, CONNECTIONS[kind], XTransformersConnection(site, n, rank))
    wiring.stream_emb = nn.Parameter(torch.zeros(n, host.layers.shape.dim))
    wiring.open = lambda x: {key: x + e for key, e in zip(stream_keys(n), wiring.stream_emb, strict=True)}  # type: ignore[arg-type, method-assign]


HCF = "wdlctc/hyper-connection-factory"
_MHAR = released(
    "attention_residuals(norm=rms,eps=?,heads={heads_over_depth},block={block_size_sublayers})",
    (r"^final_norm\.", "layer_norm."),
    (r"\.key_norm_weight$", ".key_gain"),
    repository=HCF,
    convert=by_layers,
    adapt=outputs_of_ffns,
    # the first sub-layer's softmax is over one source
    unused=r"connection\.routers\.0\.",
)
_X_TRANSFORMERS: dict[str, Any] = {
    "repository": "lucidrains/x-transformers",
    "convert": by_layers,
    "adapt": gains_themselves(r"layer_norm\.weight$|\.post_gain$"),
}
RECIPES = {
    "mhar": _MHAR,
    "mhar_block": _MHAR,
    # the eps of its LayerNorms and RMSNorms are those of their kinds
    "frac_connections": released(
        "frac_connections(norm=rms,m={fractions})",
        (r"^final_norm\.", "layer_norm."),
        repository=HCF,
        convert=by_fractions,
        adapt=pairs_by_the_largest,
    ),
    "xt_depth_scale_residual": released(
        "residual_multiplier(eps=?,multiplier={residual_multiplier})",
        (r"^dec\.final_norm\.gamma$", "layer_norm.weight"),
        fixed={r".*layer_norm\.bias": 0.0},
        **_X_TRANSFORMERS,
    ),
    "xt_gated_multi_residual": released(
        "hyper_connections(eps=?,n={streams})",
        (r"^dec\.final_norm\.gamma$", "layer_norm.weight"),
        (r"^dec\.stream_emb$", "layers.wiring.stream_emb"),
        (r"_connection\.0\.2\.gamma$", "_connection.post_gain"),
        (r"_connection\.2\.", "_connection."),
        fixed={r"layer_norm\.bias": 0.0},
        surroundings=(gated_multi_residual,),
        initial_values=False,
        layer_outputs=streams_side_by_side,
        tolerances=replace(SHIPPED, reason="its connections are no wiring of this plugin, and stand in the host alone"),
        **_X_TRANSFORMERS,
    ),
}
