"""Admin's omegas as they are measured, against the authors' code and by the definition."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import build_model
from golden_files import FOLDER, provenance, tensors_of
from tiny import NO_DROPOUT, TASKS, batch, build, make_dictionary, make_task, settings, sizes_of, stacks
from torch import Tensor, nn

from fairseq_residuals.wirings.admin_measurement import measure, profile, start_from, unprofiled
from fairseq_residuals.wirings.variants.admin import AdminConnection


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


@pytest.mark.parametrize("name", ["S", "D12"])
def test_from_their_weights(name: str) -> None:
    golden = ProfileGolden.read(name)
    model = golden.build(golden.weights)
    compare(golden, model)
    compare_activations(golden, model)


@pytest.mark.parametrize("name", ["B6", "B18"])
def test_from_the_weights_of_their_seed(name: str) -> None:
    """At the width and depth of the paper, whose weights are too large to store."""
    golden = ProfileGolden.read(name)
    assert golden.weights == {}
    compare(golden, golden.build(initial_weights(golden.sizes)))


@pytest.mark.parametrize("name", ["S", "D12"])
def test_the_weights_of_a_seed_are_theirs(name: str) -> None:
    golden = ProfileGolden.read(name)
    for parameter, value in initial_weights(golden.sizes).items():
        torch.testing.assert_close(value, golden.weights[parameter], rtol=0, atol=1e-7, msg=parameter)


def compare(golden: ProfileGolden, model: nn.Module) -> None:
    omegas = measure(model, lambda: model(**golden.inputs))
    for stack in ("encoder", "decoder"):
        np.testing.assert_allclose(rows(omegas[stack]), golden.omegas(stack), rtol=1e-6, atol=0)
        assert golden.omegas(stack).max() > 1.4


def compare_activations(golden: ProfileGolden, model: nn.Module) -> None:
    """Of the same pass: the layers were fed what the omegas below them had made of the batch."""
    found: dict[str, Tensor] = {}
    for stack in stacks(model):
        for i in range(len(stack)):
            key = f"out/{stack.shape.stack[:3]}_layer{i}"
            stack[i].register_forward_hook(lambda m, a, out, key=key: found.update({key: out[0]["x"]}))
    measure(model, lambda: model(**golden.inputs))
    for key, value in found.items():
        torch.testing.assert_close(value.transpose(0, 1), golden.arrays[key], rtol=1e-5, atol=1e-5, msg=key)
    assert len(found) == golden.sizes["enc"] + golden.sizes["dec"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("list_", [None, "admin:0-1,post_ln:2-2,admin:3-4"])
def test_every_omega_is_the_root_of_what_lies_below(task: str, list_: str | None) -> None:
    """Recomputed from what the modules of the profiled model compute; each segment of a list starts at 1."""
    model = build(task, "admin", *(["--residual", list_] if list_ else []), layers=5)
    inputs = batch(task)
    omegas = measure(model, lambda: model(**inputs))
    start_from(unprofiled(model), omegas)
    seen = list(_residuals_and_outputs(model, inputs))
    assert len(seen) == sum(len(layer) for layers in omegas.values() for layer in layers) >= 8
    ratio = 1.0
    for connection, x, y in seen:
        if connection.site.layer == 0 and connection.site.first:
            ratio = 1.0
        assert connection.omega.tolist() == pytest.approx([ratio] * 16, rel=1e-6), connection
        ratio = ((ratio * x).double().var(correction=0) + y.double().var(correction=0)).sqrt().item()
    starts = [c for c, _, _ in seen if c.site.layer == 0 and c.site.first]
    assert len(starts) == len(stacks(model)) * (2 if list_ else 1)


def test_layer_dropout_is_off_while_profiling() -> None:
    plain, dropping = build("translation", "admin"), build("translation", "admin", "--encoder-layerdrop", "0.9")
    inputs = batch("translation")
    assert measure(dropping, lambda: dropping(**inputs)) == measure(plain, lambda: plain(**inputs))
    assert stacks(dropping)[0].layerdrop == 0.9


def test_dropout_is_on() -> None:
    model, inputs = build("translation", "admin", "--dropout", "0.5"), batch("translation")
    first, second = (measure(model, lambda: model(**inputs)) for _ in range(2))
    assert first != second


def test_a_model_is_left_as_it_was() -> None:
    model, inputs = build("translation", "admin"), batch("translation")
    before = copy.deepcopy(model.state_dict())
    measure(model, lambda: model(**inputs))
    after = model.state_dict()
    # fairseq's _float_tensor is memory that was never written, and may be nan
    same = {name for name in before if torch.allclose(before[name], after[name], rtol=0, atol=0, equal_nan=True)}
    assert set(before) - same <= set(in_model(model))
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_a_stack_that_was_loaded_keeps_its_omegas() -> None:
    """As with --load-pretrained-encoder-from."""
    model, other, inputs = (
        build("translation", "admin"),
        build("translation", "admin", seed=2),
        batch("translation"),
    )
    profile(other, lambda: other(**inputs))
    model.encoder.load_state_dict(other.encoder.state_dict())
    assert list(unprofiled(model)) == ["decoder"]
    assert list(measure(model, lambda: model(**inputs))) == ["decoder"]
    for name, omega in in_model(other.encoder).items():
        assert torch.equal(in_model(model.encoder)[name], omega), name


def rows(omegas: list[dict[str, float]]) -> np.ndarray:
    return np.array([list(layer.values()) for layer in omegas])


def in_model(model: nn.Module) -> dict[str, Tensor]:
    """Every omega, by its name in a checkpoint."""
    return {name: value for name, value in model.state_dict().items() if name.endswith(".omega")}


def _residuals_and_outputs(
    model: nn.Module, inputs: dict[str, Tensor]
) -> Iterator[tuple[AdminConnection, Tensor, Tensor]]:
    """In the order of the pass: each connection, the residual before it, its sub-layer's output; without dropout."""
    outputs: dict[str, Tensor] = {}
    events: list[tuple[AdminConnection, Tensor, str]] = []
    for stack in stacks(model):
        for i in range(len(stack)):
            last = {"self": stack[i].self_attn, "ffn": stack[i].fc2}
            if "cross" in stack[i].kinds:
                last["cross"] = stack[i].encoder_attn
            connections = {"self": "self_attn_connection", "cross": "encoder_attn_connection", "ffn": "ffn_connection"}
            for kind in stack[i].kinds:
                connection, key = getattr(stack[i], connections[kind]), f"{stack.shape.stack} {i} {kind}"
                last[kind].register_forward_hook(lambda m, a, out, key=key: outputs.update({key: out}))
                if isinstance(connection, AdminConnection):
                    connection.register_forward_pre_hook(lambda m, a, key=key: events.append((m, a[0]["x"], key)))
    with torch.no_grad():
        model(**inputs)
    for connection, x, key in events:
        y = outputs[key]
        yield connection, x, y[0] if isinstance(y, tuple) else y
