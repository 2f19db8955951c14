"""The blocks of NVIDIA/ngpt, as a decoder that is given vectors of norm 1 and gives such: SwiGLU, no biases.

Rotary positions are left out in the file: the authors multiply queries and keys by their gain above these, the wiring
below. The gains of channels inside the FFN are 1 there.
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host_recipe import HostRecipe


def gate_first(values: Values) -> Values:
    """Exchange the halves of the first matrix of an FFN, and sort gains of queries by heads."""
    parted: Values = {}
    for name, value in values.items():
        if name.endswith(".c_fc.weight"):
            fc1 = name.removesuffix(".c_fc.weight") + ".fc1"
            parted[f"{fc1}.up.weight"], parted[f"{fc1}.gate.weight"] = value.chunk(2)
        else:
            parted[name] = value
    return parted


def by_root_mean_square(golden: Golden) -> Golden:
    """Make vectors of norm 1 those of root mean square 1, their loss what it was, and gains a row for each head."""
    root = golden.parameters["layers.0.self_attn.out_proj.weight"].size(1) ** 0.5
    rows = {name: (golden.heads, -1) for name in golden.parameters if name.endswith(".query_gain")}
    parts = (golden.parameters, golden.gradients, golden.scales, golden.initial)
    parameters, gradients, scales, initial = (
        {name: x.view(rows[name]) if name in rows else x for name, x in part.items()} for part in parts
    )
    return replace(
        golden,
        parameters=parameters,
        gradients=gradients,
        scales=scales,
        initial=initial,
        activations={name: root * x for name, x in golden.activations.items()},
        inputs=golden.inputs | {"loss_weight": golden.inputs["loss_weight"] / root},
    )


NGPT = Authors(
    "NVIDIA/ngpt",
    gate_first,
    (
        (r"^transformer\.h\.", "layers."),
        (r"\.query\.", ".self_attn.q_proj."),
        (r"\.key\.", ".self_attn.k_proj."),
        (r"\.value\.", ".self_attn.v_proj."),
        (r"\.att_c_proj\.", ".self_attn.out_proj."),
        (r"\.mlp_c_proj\.", ".fc2."),
        (r"\.attn_alpha$", ".self_attn_connection.rate"),
        (r"\.mlp_alpha$", ".ffn_connection.rate"),
        (r"\.sqk$", ".self_attn_connection.query_gain"),
    ),
)
RECIPES = {
    "ngpt": HostRecipe(
        "ngpt", NGPT, activation=ACTIVATIONS["swiglu"], unused=r"transformer\.h\.\d+\.suv", adapt=by_root_mean_square
    )
}
