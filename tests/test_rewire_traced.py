"""Layers of models of one's own, which rewire recognises by running the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from fairseq_residuals import UserError, rewire
from fairseq_residuals.wirings.rewire.outputs import difference_of
from fairseq_residuals.wirings.rewire.traced import trace_blocks
from tests.models_of_transformers import PAIR, built, perturb, tiny, transformers
from tests.rotation import rotated
from tests.test_rewire import NanoBlock

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


class BlockModel(nn.Module):
    """Three blocks and a norm on top, which may be given the stream batch last, or less of it, as in OpenAI's CLIP."""

    def __init__(
        self, make: Any, name: str = "norm", norm: Any = nn.LayerNorm, hold: Any = nn.ModuleList, part: Any = None
    ) -> None:
        super().__init__()
        self.h, self.top, self.part = hold([make() for _ in range(3)]), name, part
        self.add_module(name, norm(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h.children():
            x = layer(x)
        x = x if self.part is None else x.transpose(0, 1)[:, self.part]
        return self.get_submodule(self.top)(x)  # type: ignore[no-any-return]


class NormWithoutEps(nn.Module):
    """With nanoGPT's attributes: no bias, and none that is the eps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width) + 0.5), None

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Named(nn.Module):
    """A layer with another library's names: of each sub-layer norm, map, and what else multiplies or drops."""

    def __init__(self, *sublayers: tuple[str, ...]) -> None:
        super().__init__()
        self.sublayers = sublayers
        for norm, *others in sublayers:
            self.add_module(norm, nn.LayerNorm(16))
            for name in others:
                self.add_module(name, nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        for names in self.sublayers:
            norm, inner, *others = (self.get_submodule(name) for name in names)
            y = inner(input=norm(x))
            for other in others:
                y = other(y)
            x = x + y
        return x


class Sizes(nn.Embedding):
    def forward(self, size: int) -> dict[str, Tensor]:
        return {"size": self.weight[size]}


class Own(nn.Module):
    """A layer that runs its modules as a function says, and one beside them that is given no tensor."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.run, self.drop, self.rate = run, nn.Dropout(0.1), 0.1
        self.attn, self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.cross, self.sizes = nn.MultiheadAttention(16, 2, batch_first=True), Sizes(6, 1)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.expert = Adding(nn.Linear(16, 16))

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        self.sizes(size=x.size(1))
        return self.run(self, x, *memory)


def one_dropout(layer: Any, x: Tensor, *memory: Tensor) -> Any:
    x = x + layer.drop(layer.attn(layer.norm1(x)))
    if memory:
        x = x + layer.cross(layer.norm3(x), *memory, *memory)[0]
    return x + layer.drop(layer.fc2(layer.fc1(layer.norm2(x)).relu()))


def norms_after(layer: Any, x: Tensor) -> Any:
    x = layer.norm1(x + layer.drop(layer.attn(x)))
    return layer.norm2(x + layer.drop(layer.fc2(layer.fc1(x).relu())))


def by_functions(layer: Any, x: Tensor, rate: float = 0.0) -> Any:
    x = x + dropout(layer.attn(layer.norm1(x)), rate or layer.rate, layer.training)
    return x + layer.rate * layer.fc2(layer.fc1(layer.norm2(x)).relu())


def attending(layer: Any, x: Tensor) -> Any:
    h = layer.attn(layer.norm1(x))
    x = x + layer.cross.out_proj(scaled_dot_product_attention(h, h, h, None, layer.rate if layer.training else 0.0))
    return x + layer.fc2(layer.fc1(layer.norm2(x)).relu())


def side_by_side(layer: Any, x: Tensor) -> Any:
    h = layer.norm1(x)
    return x + layer.attn(h) + layer.fc2(layer.fc1(h).relu())


def two_norms_above_attention(layer: Any, x: Tensor) -> Any:
    x = x + layer.attn(layer.norm1(x))
    return x + layer.cross(layer.norm2(x), *2 * [layer.norm2(x)])[0] + layer.fc2(layer.fc1(layer.norm3(x)).relu())


def side_by_side_below_a_norm(layer: Any, x: Tensor) -> Any:
    return layer.norm1(x + layer.drop(layer.attn(x)) + layer.drop(layer.fc2(layer.fc1(x).relu())))


def norms_of_keys(layer: Any, x: Tensor) -> Any:
    keys = layer.norm3(x)
    x = x + layer.cross(layer.norm1(x), keys, keys)[0]
    return x + layer.fc2(layer.fc1(layer.norm2(x)).relu())


def writing(layer: Any, x: Tensor) -> Any:
    y = layer.attn(layer.norm1(x))
    y += x
    return y + layer.fc2(layer.fc1(layer.norm2(y)).relu())


def routed(layer: Any, x: Tensor) -> Any:
    """No position is given to the expert."""
    return x + 0.3 * layer.attn(layer.norm1(x)) + layer.expert(x[x > 9].view(-1, 16)).sum()


class Adding(nn.Module):
    """A residual connection, and its norm, around what is inside."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(16), *inside)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + x  # type: ignore[no-any-return]


def wrapped() -> Own:
    layer = Own(lambda layer, x: layer.mlp(layer.attn(x)))
    layer.attn, layer.mlp = Adding(layer.attn), Adding(layer.fc1, nn.ReLU(), layer.fc2, layer.drop)
    return layer


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


@pytest.mark.parametrize(
    "names", ["token_mixer channel_mixer", "sequence_mixer mlp", "Attention frequency", "encoder mlp"]
)
def test_kinds_of_sublayers(names: str) -> None:
    (found,) = trace_blocks(BlockModel(partial(Named, *((f"norm_{name}", name) for name in names.split()))), X)
    assert [sub.kind for sub in found.sublayers] == ["self", "ffn"]


@pytest.mark.parametrize("names", ["time_attention space_attention mlp", "ff1 self_attn ff2"])
def test_other_kinds_of_sublayers_are_refused(names: str) -> None:
    """Two of attention, of which none reads a memory, and two FFNs."""
    with pytest.raises(UserError, match="are seen to compute x"):
        trace_blocks(BlockModel(partial(Named, *((f"norm_{name}", name) for name in names.split()))), X)


ALL = slice(None)
NAMES = [
    ((("ln_1", "attn", "dropout"), ("ln_2", "mlp")), "ln", ALL),
    ((("attn_ln", "attn"), ("mlp_ln", "mlp")), "ln_post", 0),
    ((("norm1", "attn", "ls1", "drop_path1"), ("norm2", "mlp", "ls2", "drop_path2")), "norm", ALL),
]
HELD = (
    nn.ModuleList,
    lambda blocks: nn.Sequential(*blocks),
    lambda blocks: nn.ModuleDict(zip("234", blocks, strict=True)),
)
"""What holds layers, the number of whose first need not be 0."""


MODELS = [
    ((partial(Own, one_dropout),), "mhc"),
    ((partial(Own, norms_after),), "post_ln"),
    ((partial(Own, by_functions),), "mhc"),
    ((wrapped,), "attention_residuals"),
    ((partial(Own, attending),), "mhc"),
    ((partial(Own, side_by_side),), "attention_residuals"),
    ((partial(Own, side_by_side_below_a_norm),), "post_ln"),
    ((NanoBlock, "ln_f"), "hyper_connections"),
    *(
        ((partial(NanoBlock, norm), "ln_f", norm), wiring)
        for norm in (NormWithoutEps, partial(nn.LayerNorm, elementwise_affine=False))  # OLMo's
        for wiring in ("hyper_connections", "gated_residual")
    ),
    *(
        ((partial(Named, *layer), norm, nn.LayerNorm, hold, part), "attention_residuals")
        for (layer, norm, part), hold in rotated(NAMES, HELD)
    ),
]


@pytest.mark.parametrize(("parts", "wiring"), MODELS)
def test_layers_of_ones_own(parts: tuple[Any, ...], wiring: str) -> None:
    torch.manual_seed(0)
    model = BlockModel(*parts).eval()
    perturb(model)
    before, state = model(X), copy.deepcopy(model.state_dict())
    rewire(model, wiring, batch=X)
    torch.testing.assert_close(model(X), before, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    if wiring != "post_ln":
        perturb(model, "wiring.")
        assert not torch.allclose(model(X), before, rtol=1e-2)


@pytest.mark.parametrize("less", [-torch.inf, torch.finfo(torch.float32).min, -1e4, 0.0])
def test_outputs_of_infinities_and_of_one_number(less: float) -> None:
    """Logits of words that are ruled out, also as Chameleon and TAPAS do it, and a number for a sentence."""
    model, first, added = BlockModel(NanoBlock), torch.tensor([0]), torch.full((2, 5, 1), less)
    model.register_forward_hook(lambda module, args, x: x.index_add(-1, first, added) if less else x[:1, 0, :1])
    before, other = model(X), copy.deepcopy(model)
    torch.testing.assert_close(rewire(model, "attention_residuals", batch=X)(X), before, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match=r"outputs differ by [\d.e+-]+ of"):
        rewire(other, "b2t", batch=X)
    assert difference_of([X], [X[:1]]) == difference_of([0 * X], [0 * X + 1]) == torch.inf


@pytest.mark.parametrize("variant", ["hyper_connections", "identity_hc", "mhc", "mhc_lite", "frac_connections"])
def test_positions_have_any_dimensions(variant: str) -> None:
    """As pictures, (B, H, W, C), and all positions in one row, (N, C), as in Qwen's vision towers."""
    perturb(model := rewire(BlockModel(lambda: Adding(nn.Linear(16, 16))), variant, batch=X[0], start="paper"))
    for y in (model(X.flatten(0, 1)).view_as(X), model(X[:, None])[:, 0]):
        torch.testing.assert_close(y, model(X), rtol=1e-4, atol=1e-5)


def test_half_precision_hides_no_other_structure() -> None:
    """Cohere's, with branches side by side, is about as close as rounding is to what the outputs show."""
    torch.manual_seed(0)
    model = BlockModel(partial(Named, ("input_layernorm", "self_attn"), ("norm2", "mlp"))).bfloat16()
    for parameter in model.h.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.2)
    assert [[sub.enter for sub in b.sublayers] for b in trace_blocks(model, X.bfloat16())] == [["self_attn", "mlp"]]
    with pytest.raises(UserError, match=r"post_ln cannot start .* and rounding explains .*: float32 would tell"):
        rewire(model, "post_ln", batch=X.bfloat16())
    rewire(model, "layer_scale", batch=X.bfloat16())
    assert sum(name.endswith("gain") for name, _ in model.named_parameters()) == 6


UNKNOWN = r"are seen to compute x .*: h has layers of drop, attn, fc1"
WRITTEN = r"what h\.0\.attn is given or returns is written into"
"""Attention Residuals keep that: they gave other numbers, and the gradients of other wirings failed."""


REFUSED = {
    two_norms_above_attention: UNKNOWN,
    partial(by_functions, rate=0.3): UNKNOWN,
    norms_of_keys: "or read x elsewhere",
    writing: WRITTEN,
    routed: UNKNOWN,
}


@pytest.mark.parametrize(("run", "message"), REFUSED.items())
def test_other_layers_are_refused(run: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rewire(BlockModel(partial(Own, run)), "attention_residuals", start="paper", batch=X)


class Looping(BlockModel):
    def forward(self, x: Tensor) -> Tensor:
        for sublayer in (part for parts in self.h.children() for part in parts.children()):
            x = x + sublayer(x)
        return self.norm(x)  # type: ignore[no-any-return,operator]


def test_sublayers_that_the_model_calls_itself_are_refused() -> None:
    model = Looping(lambda: nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)]))
    with pytest.raises(UserError, match=r"there is no module for a layer: put wrap\(variant, h, \.\.\.\)"):
        rewire(model, "mhc", batch=X)


def test_what_did_not_run_is_refused() -> None:
    model: Any = rewire(BlockModel(partial(Own, one_dropout)), "mhc", batch=X)
    with pytest.raises(UserError, match="norm3 of Own did not run when the model was rewired"):
        model.h[0](X, X.flip(1))
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), "encoder_hidden_states": torch.randn(2, 7, 32)}
    with pytest.raises(UserError, match=r"layer\.1 of T5Block did not run when the model was rewired"):
        rewire(tiny("t5").decoder, "mhc")(**batch)


@pytest.mark.parametrize("family", ["Detr", "TableTransformer"])
def test_a_decoder_may_be_fed_zeros(family: str) -> None:
    """Its first layer, with norms after sums or before sub-layers, adds to nothing."""
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], out_features=["stage1"])
    own = PAIR | {"backbone_config": backbone, "use_timm_backbone": False}
    perturb(model := built(f"{family}Model", f"{family}Config", **own)())
    assert [blocks.crosses for blocks in trace_blocks(model, torch.randn(1, 3, 32, 32))] == [False, True]


def test_an_encoder_and_a_decoder_in_one_module() -> None:
    model, batch = Pair().eval(), (X, X.flip(1))
    before = model(*batch)
    torch.testing.assert_close(rewire(model, "hyper_connections", batch=batch)(*batch), before, rtol=1e-4, atol=1e-5)
    perturb(model)
    again = rewire(Pair().eval(), "hyper_connections", batch=batch)
    again.load_state_dict(model.state_dict())
    for other in (again, copy.deepcopy(model)):
        assert torch.equal(other(*batch), model(*batch))
    # norms of TrOCR's decoder follow the sums
    pair = nn.Transformer(16, 2, 2, 2, 32, 0.0, norm_first=True)
    pair.decoder = nn.Transformer(16, 2, 2, 2, 32, 0.0).decoder
    rewire(pair, "b2t", start="paper", batch=(X, X))
