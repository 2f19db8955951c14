"""Records of KellerJordan/modded-nanogpt: norms without gains, FFNs with a squared ReLU, no biases.

The file of November 2024 holds the authors' model. The later two hold their loops over layers among plain parts; these
have no skip, embedding or backout that the wiring here lacks, but for what :class:`TwoLaneHost`
adds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.value_residual import ValueResidual
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.surroundings import (
    QUERIES_AND_KEYS,
    layers_of,
    logits_by,
    normalised_input,
    plain_norms,
    root_mean_square,
    rotary,
    softcapped,
)
from tests.golden_check.rebuild import batch_first
from tests.golden_check.tolerances import SHIPPED

REPOSITORY = "KellerJordan/modded-nanogpt"
EPS = torch.finfo(torch.float32).eps
WITHOUT_GAINS = {r"(layers\.\d+\.\w+_)?layer_norm\.weight": 1.0}
NAMES = (
    (r"^(?:transformer\.h|blocks)\.", "layers."),
    (r"^(?:transformer\.wte|embed)\.", "embed_tokens."),
    (r"^lm_head\.", "output_projection."),
    (r"\.attn\.lamb$", ".value_residual.lamb"),
    (r"\.attn\.(?:c_)?([qkv])\.", r".self_attn.\1_proj."),
    (r"\.attn\.(?:c_proj|o)\.", ".self_attn.out_proj."),
    (r"\.mlp\.c_fc\.", ".fc1."),
    (r"\.mlp\.c_proj\.", ".fc2."),
)
UNREAD = "unread."
"""What rows are called that their model never reads."""


def relu_squared(x: Tensor) -> Tensor:
    """Return the activation of the FFN, of any shape."""
    return relu(x).square()


def mixing_weights(layer: int, pair: Tensor) -> Values:
    """Return the weights of the stream and the embedding below a layer, from a row of both."""
    place = f"layers.{layer}.self_attn_connection."
    return {f"{place}stream_weight": pair[:1], f"{place}embedding_weight": pair[1:]}


def _of_2024(values: Values) -> Values:
    parted: Values = {}
    for name, value in values.items():
        if name == "skip_weights":
            for i, weight in enumerate(value.split(1)):
                parted[f"layers.{len(value) + i}.self_attn_connection.skip_weight"] = weight
        elif found := re.fullmatch(r"transformer\.h\.(\d+)\.lambdas", name):
            parted |= mixing_weights(int(found[1]), value)
        else:
            parted[name] = value
    return parted


class SharedWeight(ValueResidual):
    """(1 - w) v + w v_1, with one number."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.mixes = True
        self.lamb = nn.Parameter(torch.tensor(0.5))

    @property
    def first_weight(self) -> Tensor:  # type: ignore[override]
        return self.lamb

    @property
    def own_weight(self) -> Tensor:  # type: ignore[override]
        return 1 - self.lamb


def _shared_value_weights(host: Host, golden: Golden) -> None:
    for layer in layers_of(host)[1:]:
        layer.value_residual = SharedWeight()


def _of_2025(values: Values) -> Values:
    """Name the rows of 12 layers, of which the first is never run and the last has no skip."""
    parted: Values = {}
    for name, value in values.items():
        if name == "skip_weights":
            *read, unread = value.split(1)
            parted[f"{UNREAD}{name}"] = unread
            for i, weight in enumerate(read):
                parted[f"layers.{len(read) + i}.self_attn_connection.skip_weight"] = weight
        elif name == "lambdas":
            parted[f"{UNREAD}{name}"] = value[0]
            for i, pair in enumerate(value[1:]):
                parted |= mixing_weights(i, pair)
        elif name == "backout_lambda":
            parted["layers.wiring.backout_weight"] = value
        else:
            parted[re.sub(r"^blocks\.(\d+)\.", lambda m: f"layers.{int(m[1]) - 1}.", name)] = value
    return parted


class RecordHost(Host):
    """A host whose file has what enters the norm on top, and embeddings after their norm."""

    def __init__(self, golden: Golden) -> None:
        super().__init__(golden)
        self.seen: dict[str, Tensor] = {}
        norm: nn.Module = self.layers.wiring.norm  # type: ignore[assignment]
        norm.register_forward_pre_hook(self._see)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model, as :meth:`Host.forward`; returns pre_norm too."""
        outputs = super().forward(inputs)
        return outputs | {
            "dec_embed": root_mean_square(outputs["dec_embed"]),
            "pre_norm": self.seen.pop("pre_norm"),
        }

    # hooks are methods: those of a copy of the host are then the copy's
    def _see(self, module: nn.Module, args: tuple[Tensor]) -> None:
        self.seen["pre_norm"] = batch_first(args[0])


def without_unread(golden: Golden, first_layer: int = 0) -> Golden:
    """Leave out the rows that the model never reads.

    Args:
        first_layer: the number of the first layer in the file.
    """

    def read(values: Values) -> Values:
        return {name: x for name, x in values.items() if not name.startswith(UNREAD)}

    def renumber(name: str) -> str:
        return re.sub(r"^dec_layer(\d+)", lambda m: f"dec_layer{int(m[1]) - first_layer}", name)

    unread = {name: x for name, x in golden.gradients.items() if name.startswith(UNREAD)}
    # what surrounds the wiring is drawn at random
    initial = {name: x for name, x in read(golden.initial).items() if re.search(r"_connection\.|\.wiring\.", name)}
    return replace(
        golden,
        parameters=read(golden.parameters),
        gradients=read(golden.gradients),
        scales=read(golden.scales),
        unused_gradients=golden.unused_gradients | unread,
        initial=initial,
        activations={renumber(name): x for name, x in golden.activations.items()},
    )


def _of_2026(values: Values) -> Values:
    parted: Values = {}
    for name, value in values.items():
        if name not in ("w_post", "x0_lambda", "resid_lambda"):
            parted[name] = value
            continue
        for i, row in enumerate(value.flatten(1).unbind() if name == "w_post" else value.split(1)):
            place = f"layers.{i // 2}.{('self_attn', 'ffn')[i % 2]}_connection."
            if name == "w_post":
                parted[f"{place}lane_weight"], parted[f"{place}other_weight"] = row.split(1)
            elif name == "resid_lambda":
                parted[f"{place}stream_weight"] = row
            else:
                parted[f"{UNREAD if i % 2 else ''}{place}embedding_weight"] = row
    return parted


def without_lane_below_split(golden: Golden) -> Golden:
    """Leave out a second lane's weights below the split, too."""
    split = golden.setting("parallel_start")
    below = re.compile(rf"layers\.({'|'.join(map(str, range(split)))})\.\w+\.other_weight")

    def mark(values: Values) -> Values:
        return {f"{UNREAD}{name}" if below.fullmatch(name) else name: x for name, x in values.items()}

    parts = ("parameters", "gradients", "scales", "initial")
    return without_unread(replace(golden, **{part: mark(getattr(golden, part)) for part in parts}))


class TwoLaneHost(RecordHost):
    """With a skip over some layers, gated per token, and the output of a layer subtracted on top."""

    def __init__(self, golden: Golden) -> None:
        self.kept: dict[str, Tensor] = {}
        super().__init__(golden)
        provenance = golden.description["provenance"]
        self.skip_lambda, self.backout_lambda = (nn.Parameter(torch.tensor([value])) for value in (-1.5, 0.5))
        self.skip_gate = nn.Linear(golden.parameters["skip_gate.weight"].size(1), 1, bias=False)
        nn.init.zeros_(self.skip_gate.weight)
        layers = layers_of(self)
        (into,), (out_of,) = provenance["skip_out"], provenance["skip_in"]
        # the skip begins between the attention and the FFN of its layer
        layers[out_of].connection("self").register_forward_hook(partial(self._keep, "skip"))
        layers[provenance["backout_layer"]].register_forward_hook(partial(self._keep, "middle"))
        layers[into].register_forward_pre_hook(self._skip)
        norm: nn.Module = self.layers.wiring.norm  # type: ignore[assignment]
        norm.register_forward_pre_hook(self._back_out, prepend=True)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model, as :meth:`RecordHost.forward`."""
        outputs = super().forward(inputs)
        self.kept.clear()
        return outputs

    def _keep(self, name: str, module: nn.Module, args: Any, output: tuple[Stream, Any]) -> None:
        self.kept[name] = output[0]["x"]

    def _skip(self, module: nn.Module, args: tuple[Stream, Context]) -> tuple[Stream, Context]:
        s, context = args
        gate = self.skip_lambda.sigmoid() * 2 * self.skip_gate(s["x0"][..., : self.skip_gate.in_features]).sigmoid()
        return s | {key: s[key] + gate * self.kept["skip"] for key in ("x", "b") if key in s}, context

    def _back_out(self, module: nn.Module, args: tuple[Tensor]) -> Tensor:
        return args[0] - self.backout_lambda * self.kept["middle"]


_recipe = partial(HostRecipe, activation=relu_squared, eps=EPS, fixed=WITHOUT_GAINS, tolerances=SHIPPED)
RECIPES = {
    "unet_x0_moddednanogpt": _recipe(
        "unet_skip(norm=rms,gate=none,x0=true,value_residual=learnable)",
        Authors(REPOSITORY, _of_2024, NAMES),
        adapt=without_unread,
        # that of the first layer mixes what is equal
        unused=r"transformer\.h\.0\.attn\.lamb$",
        surroundings=(
            normalised_input,
            plain_norms(*QUERIES_AND_KEYS, eps=EPS),
            rotary("half", direction=-1, rounded=torch.bfloat16),
            _shared_value_weights,
            softcapped(30.0),
        ),
    ),
    "unet_gated_backout_moddednanogpt": _recipe(
        # its loop subtracts the output of the ninth of twelve layers, of which the first never runs
        "unet_skip(norm=rms,unpaired=last,x0=true,backout=true,middle=7)",
        Authors(REPOSITORY, _of_2025, NAMES),
        # a layer without attention
        fixed=WITHOUT_GAINS | {r"layers\.6\.self_attn\.\w+\.weight": 0.0},
        adapt=partial(without_unread, first_layer=1),
        model=RecordHost,
        surroundings=(normalised_input, logits_by(lambda x, golden: 30 * torch.sigmoid(x / 7.5))),
    ),
    "two_lane_moddednanogpt": _recipe(
        "two_lane(norm=rms,split={parallel_start})",
        Authors(REPOSITORY, _of_2026, NAMES),
        adapt=without_lane_below_split,
        model=TwoLaneHost,
        surroundings=(normalised_input,),
    ),
}
