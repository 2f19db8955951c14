"""karpathy/nanochat: the previous token's embedding mixed in, value embeddings, norms without gains, no biases."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.core.layer import Context
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.nanogpt_record_host import (
    EPS,
    NAMES,
    WITHOUT_GAINS,
    relu_squared,
    without_unread,
)
from tests.golden_check.hosts.surroundings import (
    QUERIES_AND_KEYS,
    layers_of,
    normalised_input,
    on_outputs,
    plain_norms,
    rotary,
    softcapped,
)
from tests.golden_check.tolerances import SHIPPED


def _name_scalars(values: Values) -> Values:
    named: Values = {}
    for name, value in values.items():
        kind = {"resid_lambdas": "stream", "x0_lambdas": "embedding"}.get(name)
        if kind is None:
            named[name] = value
        else:
            for i, weight in enumerate(value.split(1)):
                named[f"layers.{i}.self_attn_connection.{kind}_weight"] = weight
    return named


class NanochatHost(Host):
    """With the previous token's embedding mixed into each, and embeddings added to the values of some layers."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        words, dim = golden.parameters["embed_tokens.weight"].shape
        self.smear_lambda = nn.Parameter(torch.zeros(1))
        self.smear_gate = nn.Linear(golden.parameters["smear_gate.weight"].size(1), 1, bias=False)
        # hooks are methods: those of a copy of the host are then the copy's
        self.layers.register_forward_pre_hook(self._smear)
        self.value_embeds = nn.ModuleDict()
        for i, layer in enumerate(layers_of(self)):
            gate = f"layers.{i}.self_attn.v_proj.ve_gate.weight"
            if gate in golden.parameters:
                heads, channels = golden.parameters[gate].shape
                projection: nn.Module = layer.self_attn.v_proj  # type: ignore[assignment]
                projection.ve_gate = nn.Linear(channels, heads, bias=False)
                self.value_embeds[str(i)] = nn.Embedding(words, dim)
                projection.register_forward_hook(partial(self._add_embedding, str(i)))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model, as :meth:`Host.forward`."""
        self.words = inputs["prev_output_tokens"].T
        return super().forward(inputs)

    def _smear(self, module: nn.Module, args: tuple[Tensor, Context]) -> tuple[Tensor, Context]:
        x, context = args
        gate = self.smear_lambda * self.smear_gate(x[1:, :, : self.smear_gate.in_features]).sigmoid()
        return torch.cat([x[:1], x[1:] + gate * x[:-1]]), context

    def _add_embedding(self, layer: str, module: Any, args: tuple[Tensor], values: Tensor) -> Tensor:
        gate = 3 * module.ve_gate(args[0][..., : module.ve_gate.in_features]).sigmoid()
        embedded = self.value_embeds[layer](self.words).unflatten(-1, (gate.size(-1), -1))
        return values + (gate.unsqueeze(-1) * embedded).flatten(-2)


def _larger_queries_and_keys(host: Host, golden: Golden) -> None:
    on_outputs(host, QUERIES_AND_KEYS, lambda module, args, x: 1.2 * x)


RECIPES = {
    "nanochat": HostRecipe(
        "x0_lambdas(norm=rms,start=nanochat,backout=true)",
        Authors(
            "karpathy/nanochat",
            _name_scalars,
            (
                (r"^backout_lambda$", "layers.wiring.backout_weight"),
                (r"\.attn\.ve_gate\.", ".self_attn.v_proj.ve_gate."),
                *NAMES,
            ),
        ),
        activation=relu_squared,
        eps=EPS,
        adapt=without_unread,
        fixed=WITHOUT_GAINS,
        model=NanochatHost,
        surroundings=(
            normalised_input,
            rotary("half", base=1e5, direction=-1),
            plain_norms(*QUERIES_AND_KEYS, eps=EPS),
            _larger_queries_and_keys,
            softcapped(15.0),
        ),
        tolerances=SHIPPED,
    )
}
