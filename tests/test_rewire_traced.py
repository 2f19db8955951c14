"""Layers of models of one's own, which rewire recognises by running the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_residuals import Blocks, SubLayerNames, UserError, rewire
from fairseq_residuals.wirings.rewire.traced import trace_blocks
from tests.models_of_transformers import perturb
from tests.test_rewire import BlockModel

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
Run = Callable[..., Tensor]


class Own(nn.Module):
    """A layer that runs its modules as a function says."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.drop = run, nn.Dropout(0.1)
        self.attn, self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        return self.run(self, x, *memory)


def one_dropout(layer: Any, x: Tensor, *memory: Tensor) -> Any:
    x = x + layer.drop(layer.attn(layer.norm1(x)))
    if memory:
        x = x + layer.cross(layer.norm3(x), *memory, *memory)[0]
    return x + layer.drop(layer.fc2(layer.fc1(layer.norm2(x)).relu()))


def norms_after(layer: Any, x: Tensor) -> Any:
    x = layer.norm1(x + layer.drop(layer.attn(x)))
    return layer.norm2(x + layer.drop(layer.fc2(layer.fc1(x).relu())))


def dropout_without_name(layer: Any, x: Tensor) -> Any:
    x = x + dropout(layer.attn(layer.norm1(x)), 0.1, layer.training)
    return x + layer.fc2(layer.fc1(layer.norm2(x)).relu())


def side_by_side(layer: Any, x: Tensor) -> Any:
    h = layer.norm1(x)
    return x + layer.attn(h) + layer.fc2(layer.fc1(h).relu())


def writing(layer: Any, x: Tensor) -> Any:
    y = layer.attn(layer.norm1(x))
    y += x
    return y + layer.fc2(layer.fc1(layer.norm2(y)).relu())


class Adding(nn.Module):
    """A residual connection, and its norm, around what is inside."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(16), *inside)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + x  # type: ignore[no-any-return]


class Wrapped(Own):
    def __init__(self) -> None:
        super().__init__(lambda layer, x: layer.mlp(layer.attn(x)))
        self.attn, self.mlp = Adding(self.attn), Adding(self.fc1, nn.ReLU(), self.fc2, self.drop)


class Pair(nn.Module):
    """An encoder and a decoder, whose layers are in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = (nn.ModuleList(Own(one_dropout) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        for layer in self.below:
            memory = layer(memory)
        for layer in self.above:
            x = layer(x, memory)
        return x


def model_of(make: Callable[[], nn.Module]) -> BlockModel:
    model = BlockModel(nn.ModuleList(make() for _ in range(2)), "norm", nn.LayerNorm(16))
    perturb(model)
    return model.eval()


DROPPED = (
    SubLayerNames("self", "attn", norm="norm1", dropout="drop", inner="attn"),
    SubLayerNames("ffn", "fc1", "fc2", norm="norm2", dropout="drop", inner="fc2"),
)
WRAPPED = (
    SubLayerNames("self", "attn.inside.1", norm="attn.inside.0", inner="attn.inside.1"),
    SubLayerNames("ffn", "fc1", "drop", norm="mlp.inside.0", inner="fc2"),
)


@pytest.mark.parametrize(
    ("make", "sublayers", "wiring"),
    [
        (lambda: Own(one_dropout), DROPPED, "mhc"),
        (lambda: Own(norms_after), DROPPED, "post_ln"),
        (Wrapped, WRAPPED, "attention_residuals"),
    ],
)
def test_layers_of_ones_own(make: Any, sublayers: tuple[SubLayerNames, ...], wiring: str) -> None:
    model = model_of(make)
    assert trace_blocks(model, X) == [Blocks("h", sublayers, "norm", post_norm=wiring == "post_ln")]
    before, state = model(X), copy.deepcopy(model.state_dict())
    torch.testing.assert_close(rewire(model, wiring, batch=X)(X), before, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())


@pytest.mark.parametrize("run", [dropout_without_name, side_by_side])
def test_other_sums_are_to_be_described(run: Run) -> None:
    with pytest.raises(UserError, match="no layers of a structure that is known: h has layers of drop, attn, fc1"):
        rewire(model_of(lambda: Own(run)), "mhc", batch=X)


def test_what_is_written_into_is_refused() -> None:
    """A wiring keeps it: Attention Residuals gave other numbers, and the gradients of others failed."""
    with pytest.raises(UserError, match=r"what h\.0\.attn is given or returns is written into"):
        rewire(model_of(lambda: Own(writing)), "attention_residuals", start="paper", batch=X)


def test_an_encoder_and_a_decoder_in_one_module() -> None:
    model, batch = Pair().eval(), (X, X.flip(1))
    before = model(*batch)
    torch.testing.assert_close(rewire(model, "hyper_connections", batch=batch)(*batch), before, rtol=1e-4, atol=1e-5)
    perturb(model)
    again = rewire(Pair().eval(), "hyper_connections", batch=batch)
    again.load_state_dict(model.state_dict())
    for other in (again, copy.deepcopy(model)):
        assert torch.equal(other(*batch), model(*batch))
