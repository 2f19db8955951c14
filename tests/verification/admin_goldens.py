"""Profiles that the authors' code measured, and the models that it measured them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.models import build_model
from golden_files import FOLDER, provenance, tensors_of
from tiny import NO_DROPOUT, make_dictionary, make_task, settings, sizes_of
from torch import Tensor, nn


@dataclass(frozen=True)
class ProfileGolden:
    sizes: dict[str, Any]
    arrays: dict[str, Tensor]

    @classmethod
    def read(cls, name: str) -> ProfileGolden:
        path = FOLDER / f"admin_profile_{name}.npz"
        return cls(provenance(path)["hyper"], tensors_of(path))

    @property
    def weights(self) -> dict[str, Tensor]:
        """As stored; empty where only the seed is."""
        return {k.removeprefix("param/"): v for k, v in self.arrays.items() if k.startswith("param/")}

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {k: self.arrays[f"in/{k}"] for k in ("src_tokens", "src_lengths", "prev_output_tokens")}

    def omegas(self, stack: str) -> np.ndarray:
        """(layers, sub-layers)"""
        return self.arrays[f"omega/{stack}"].numpy()

    def build(self, weights: dict[str, Tensor]) -> nn.Module:
        """This plugin's model with ``weights``, named as in the authors' code; its omegas are as built."""
        flags = ["--share-all-embeddings", *NO_DROPOUT]
        for stack in ("encoder", "decoder"):
            flags += sizes_of(stack, self.sizes[stack[:3]], *(self.sizes[key] for key in ("d", "ffn", "heads")))
        task = make_task()
        task.source_dictionary = task.target_dictionary = make_dictionary(self.sizes["vs"] - 4)
        model = build_model(settings("transformer_admin", *flags), task)
        ours = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                if name.endswith((".in_proj_weight", ".in_proj_bias")):
                    module, _, kind = name.rpartition(".in_proj_")
                    for part, rows in zip("qkv", value.chunk(3), strict=True):
                        ours.pop(f"{module}.{part}_proj.{kind}").copy_(rows)
                elif name in ours:
                    ours.pop(name).copy_(value)
                else:
                    assert name.endswith(
                        (
                            "version",
                            "_float_tensor",
                            "_ratio_change",
                            "_norm.weight",
                            "_norm.bias",
                            "decoder.embed_tokens.weight",
                        )
                    ), name
        # what is not given is as built: norms 1 and 0, omegas 1
        assert all("_connection." in name for name in ours), sorted(ours)
        return model


def initial_weights(sizes: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that fairseq 0.8, and so the authors' code, draws from a seed, in its order."""
    torch.manual_seed(sizes["seed"])
    dim, ffn = sizes["d"], sizes["ffn"]
    drawn: dict[str, Tensor] = {}

    def linear(name: str, inside: int, outside: int) -> None:
        layer = nn.Linear(inside, outside)  # draws weights and bias, too
        drawn[f"{name}.weight"] = nn.init.xavier_uniform_(layer.weight).detach()
        drawn[f"{name}.bias"] = torch.zeros(outside)

    def attention(name: str) -> None:
        out = nn.Linear(dim, dim)
        drawn[f"{name}.in_proj_weight"] = nn.init.xavier_uniform_(torch.empty(3 * dim, dim))
        drawn[f"{name}.in_proj_bias"] = torch.zeros(3 * dim)
        drawn[f"{name}.out_proj.weight"] = nn.init.xavier_uniform_(out.weight).detach()
        drawn[f"{name}.out_proj.bias"] = torch.zeros(dim)

    embedding = nn.Embedding(sizes["vs"], dim, padding_idx=1)
    drawn["encoder.embed_tokens.weight"] = nn.init.normal_(embedding.weight, std=dim**-0.5).detach()
    drawn["encoder.embed_tokens.weight"][1] = 0
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for i in range(sizes[stack[:3]]):
            for name in attentions:
                attention(f"{stack}.layers.{i}.{name}")
            linear(f"{stack}.layers.{i}.fc1", dim, ffn)
            linear(f"{stack}.layers.{i}.fc2", ffn, dim)
    return drawn
