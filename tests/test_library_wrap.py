"""Wirings around sub-layers of one's own: what the library's own layers compute, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from fairseq_residuals import Connection, FeedForward, MultiheadAttention, UserError, build_stack, wrap
from fairseq_residuals.lab.look.contributions import contributions
from fairseq_residuals.lab.look.gradients import parts
from fairseq_residuals.lab.look.probes import ModelAndLoss
from fairseq_residuals.wirings.core.layer import Layer
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.parameter_groups import parameter_groups
from fairseq_residuals.wirings.wrap import SUBLAYER_NAMES

SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "ffn_dim": 32}
DEPTH = 2


class Attention(nn.Module):
    """A module of one's own, which shows nothing of its inside."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None) -> tuple[Tensor, None]:
        key = x if memory is None else memory
        return self.attention(x, key, key, attn_mask=mask, static_kv=memory is not None)[0], None


class MLP(nn.Module):
    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn(x)  # type: ignore[no-any-return]


def ours(task: str) -> list[list[nn.Module]]:
    attentions = 2 if task == "decoder" else 1
    return [[*(MultiheadAttention(16, 2) for _ in range(attentions)), FeedForward(16, 32)] for _ in range(DEPTH)]


def of_ones_own(layers: list[list[nn.Module]]) -> list[list[nn.Module]]:
    return [[*map(Attention, attentions), MLP(ffn)] for *attentions, ffn in layers]


def like(stack: Any, layers: list[list[nn.Module]], wrapped: Any) -> None:
    """Give wrapped sub-layers, and their wiring, the parameters of a built stack, moved away from their start."""
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    for i, (*attentions, ffn) in enumerate(layers):
        for module, own in zip(attentions, (stack[i].self_attn, stack[i].encoder_attn), strict=False):
            module.load_state_dict(own.state_dict())
        if "ffn" in stack[i].kinds:
            ffn.load_state_dict({k: v for k, v in stack[i].state_dict().items() if k.startswith(("fc1.", "fc2."))})
    missing, unexpected = wrapped.load_state_dict(wiring_of(stack), strict=False)
    assert not unexpected and all(name.split(".")[1] in SUBLAYER_NAMES.values() for name in missing)


def wiring_of(stack: nn.Module) -> dict[str, Tensor]:
    """The parameters of a stack but for those of its sub-layers."""
    own = (*SUBLAYER_NAMES.values(), "fc1", "fc2")
    return {k: v for k, v in stack.state_dict().items() if k.split(".")[1] not in own}


def inputs(task: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Embeddings, and what a built stack, wrapped modules of one's own and wrapped ones of ours are given beside."""
    torch.manual_seed(4)
    x, memory = torch.randn(5, 3, 16), torch.randn(6, 3, 16)
    mask = torch.full((5, 5), -torch.inf).triu(1) if task != "encoder" else None
    if task != "decoder":
        return x, {}, {"attention": {"mask": mask}}, {"attention": {"attn_mask": mask}}
    cross = {"key": memory, "value": memory, "static_kv": True}
    own = {"attention": {"mask": mask}, "cross_attention": {"memory": memory}}
    return x, {"memory": memory}, own, {"attention": {"attn_mask": mask}, "cross_attention": cross}


def attempt(
    variant: str, layers: list[list[nn.Module]], x: Tensor, beside: dict[str, Any], **settings: Any
) -> tuple[Any, str]:
    """A wrapped stack that runs on x, or the reason why there is none."""
    try:
        stack = wrap(variant, layers, **SIZES | settings).eval()
        stack(x, **beside)
    except UserError as error:
        return None, str(error)
    return stack, ""


def cases(*tasks: str) -> list[tuple[str, str]]:
    """Each variant in one of the tasks that it has a meaning in, these in turn."""
    meant = {
        variant: [task for task in tasks if not VARIANTS[variant].refusal(alone=task != "decoder", topmost=True)]
        for variant in sorted(VARIANTS)
    }
    return [(found[i % len(found)], variant) for i, (variant, found) in enumerate(meant.items()) if found]


@pytest.mark.parametrize(("task", "variant"), cases("decoder", "language_model"))
def test_wrapped_layers_are_the_librarys(task: str, variant: str) -> None:
    stack = build_stack(variant, depth=DEPTH, task=task, **SIZES).eval()  # type: ignore[arg-type]
    x, beside, for_own, for_ours = inputs(task)
    layers = ours(task)
    wrapped = wrap(variant, layers, task=task, **SIZES).eval()  # type: ignore[arg-type]
    like(stack, layers, wrapped)
    expected = stack(x, **beside)
    torch.testing.assert_close(wrapped(x, **for_ours), expected, rtol=1e-4, atol=1e-5)
    apply_activation_checkpointing(wrapped, check_fn=lambda m: isinstance(m, MultiheadAttention | FeedForward | Layer))
    torch.testing.assert_close(wrapped(x, **for_ours), expected, rtol=1e-4, atol=1e-5)
    own, reason = attempt(variant, of_ones_own(layers), x, for_own, task=task)
    if own is None:
        # and indeed it steps in there, and the table in the document has it
        assert f"`{variant}`" in (Path(__file__).parents[1] / "docs" / "PYTHON.md").read_text(encoding="utf-8")
        assert "has to see" in reason and "which a module of your own does not show" in reason
        connections = [type(m) for m in stack.modules() if isinstance(m, Connection)]
        assert any(c.attend is not Connection.attend or c.inner is not Connection.inner for c in connections)
        return
    own.load_state_dict(wiring_of(wrapped), strict=False)
    torch.testing.assert_close(own(x, **for_own), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "options", "place"),
    [
        ("realformer", {}, "the scores before the softmax of attention"),
        (
            "normformer",
            {"heads": "before_projection", "scale_fc": False},
            "the outputs of the heads before their projection of attention",
        ),
        ("hybrid_norm", {}, "the queries after their projection and the keys after their projection and the values"),
        ("normformer", {}, "the activations before the second matrix of the FFN"),
        ("b2t", {"value_residual": "identity"}, "the values after their projection of attention"),
    ],
)
def test_what_a_wiring_has_to_see(variant: str, options: dict[str, Any], place: str) -> None:
    with pytest.raises(UserError, match=f"wiring '{variant}' has to see {place}"):
        wrap(variant, of_ones_own(ours("encoder")), options=options, **SIZES)(torch.randn(5, 3, 16))


def test_a_size_that_the_wiring_uses_is_not_guessed() -> None:
    options = {"scale_fc": False}
    with pytest.raises(UserError, match="normformer has parameters for each of the heads of your"):
        wrap("normformer", of_ones_own(ours("encoder")), dim=16, options=options)
    assert wrap("normformer", of_ones_own(ours("encoder")), dim=16, heads=2, options=options)
    # those of a stack within a sub-layer are not asked for
    stacks = [wrap("pre_ln", [[nn.Linear(16, 16)]], dim=16, kinds=("self",)) for _ in range(2)]
    assert wrap("hyper_connections", [[stack, nn.Linear(16, 16)] for stack in stacks], dim=16)
    with pytest.raises(UserError, match="depthwise_lstm has parameters for each of the ffn_dim of your"):
        wrap("depthwise_lstm", [[nn.Linear(16, 16)]] * 2, dim=16)


@pytest.mark.parametrize("variant", [variant for _, variant in cases("encoder")])
def test_positions_and_sentences_may_change_places(variant: str) -> None:
    """A wiring does nothing across positions, so that sub-layers may expect either first."""

    class Sum(nn.Module):
        def forward(self, x: Tensor, along: int) -> Tensor:
            return x.cumsum(along)

    torch.manual_seed(1)
    x = torch.randn(5, 3, 16)
    stack, reason = attempt(variant, [[Sum(), nn.Linear(16, 16)] for _ in range(DEPTH)], x, {"attention": {"along": 0}})
    if stack is None:
        assert "has to see" in reason
        return
    batch_first = stack(x.transpose(0, 1), attention={"along": 1}).transpose(0, 1)
    torch.testing.assert_close(batch_first, stack(x, attention={"along": 0}))


@pytest.mark.parametrize("variant", [variant for _, variant in cases("encoder")])
def test_the_wiring_follows_its_sublayers(variant: str) -> None:
    layers = [[module.eval().to("meta", torch.bfloat16) for module in layer] for layer in ours("encoder")]
    options = {"gpas": "layer", "value_residual": "learnable"} if variant == "pre_ln" else {}
    stack = wrap(variant, layers, options=options, **SIZES)
    assert {(p.device.type, p.dtype) for p in stack.parameters()} == {("meta", torch.bfloat16)}
    assert not any(module.training for module in stack.modules())
    assert wrap(variant, ours("encoder"), **SIZES).training


def test_statistics_stay_as_they_are() -> None:
    """To look whether a sub-layer adds a residual of its own is no batch of its training."""
    norm = nn.BatchNorm1d(8)
    wrap("pre_ln", [(norm, nn.Linear(8, 8))], dim=8)
    assert norm.training and norm.num_batches_tracked == 0


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("task", ["encoder", "decoder"])
def test_layers_of_pytorch(task: str, norm_first: bool, batch_first: bool) -> None:
    """Taken apart and wired as they were, with their norms, they compute what they computed."""
    torch.manual_seed(1)
    kind = nn.TransformerEncoderLayer if task == "encoder" else nn.TransformerDecoderLayer
    settings = {"norm_first": norm_first, "batch_first": batch_first}
    layers = [kind(16, 2, 32, dropout=p, **settings).eval() for p in (0.1, 0.5)]
    for p in nn.ModuleList(layers).parameters():
        p.data.add_(0.1 * torch.randn(p.shape))
    x, memory = torch.randn(5, 5, 16), torch.randn(5, 5, 16)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    cross = {} if task == "encoder" else {"cross_attention": {"key": memory, "value": memory}}
    variant, options = ("pre_ln", {"final_norm": False}) if norm_first else ("post_ln", {})
    stack = wrap(variant, layers, dim=16, task=task, norms="move", options=options)  # type: ignore[arg-type]
    expected = x
    for layer in layers:
        expected = layer(expected, mask) if task == "encoder" else layer(expected, memory, mask)
    torch.testing.assert_close(stack(x, attention={"attn_mask": mask}, **cross), expected, rtol=1e-4, atol=1e-5)
    assert [*(stack[i].dropout_module.p for i in range(2)), stack.shape.heads, stack.shape.ffn_dim] == [0.1, 0.5, 2, 32]


@pytest.mark.parametrize(("task", "variant"), cases("encoder"))
def test_attention_of_pytorch(task: str, variant: str) -> None:
    """What the library's attention computes, of the same weights, in a batch first; or a reason why not."""
    layers = ours(task)
    stack = wrap(variant, layers, **SIZES).eval()
    for p in stack.parameters():
        p.data.add_(0.1 * torch.randn(p.shape))
    theirs = []
    for attention, ffn in layers:
        own, attn = nn.MultiheadAttention(16, 2, batch_first=True).eval(), attention
        projections = (attn.q_proj, attn.k_proj, attn.v_proj)
        own.in_proj_weight.data = torch.cat([p.weight.data for p in projections])  # type: ignore[union-attr,misc]
        own.in_proj_bias.data = torch.cat([p.bias.data for p in projections])  # type: ignore[union-attr,misc]
        own.out_proj.load_state_dict(attn.out_proj.state_dict())  # type: ignore[union-attr,operator]
        theirs.append([own, ffn])
    x = torch.randn(5, 3, 16)
    other, reason = attempt(variant, theirs, x.transpose(0, 1), {})
    if other is None:
        assert f"wiring '{variant}' has to see" in reason and "of attention" in reason
        return
    other.load_state_dict(wiring_of(stack), strict=False)
    apply_activation_checkpointing(other, check_fn=lambda m: isinstance(m, nn.MultiheadAttention))
    torch.testing.assert_close(other(x.transpose(0, 1)).transpose(0, 1), stack(x), rtol=1e-4, atol=1e-5)


def test_sublayers_in_any_number() -> None:
    """A block of the Macaron kind, and one without attention."""
    torch.manual_seed(1)
    block = [nn.Linear(16, 16) for _ in range(3)]
    stack = wrap("pre_ln", [block] * 2, dim=16, kinds=("ffn", "self", "ffn"), options={"final_norm": False}).eval()
    x = torch.randn(5, 3, 16)
    expected = x
    for module in [*block, *block]:
        expected = expected + module(nn.functional.layer_norm(expected, (16,)))
    torch.testing.assert_close(stack(x), expected)
    names = [name for name, _ in stack[0].named_children()]
    assert names[:4] == ["ffn", "ffn_connection", "self_attn", "self_attn_connection"]
    streams = wrap("hyper_connections", [[nn.Linear(16, 16)]] * 3, dim=16, kinds=("self",))
    assert [streams[i].self_attn_connection.site.n_sub for i in range(3)] == [1, 1, 1]
    assert streams(x).shape == x.shape
    assert wrap("depthwise_lstm", [[nn.Linear(16, 16)]], dim=16, ffn_dim=32)(x).shape == x.shape
    twice = [[MultiheadAttention(64, 2), MultiheadAttention(64, 2)]]
    layer: Any = wrap("pre_ln", twice, dim=64, kinds=("self", "self"), options={"init": "small"})[0]
    for attention in (layer.self_attn, layer.self_attn2):
        assert attention.q_proj.weight.std().item() == pytest.approx((2 / (5 * 64)) ** 0.5, rel=0.1)
    mixed = wrap("mudd", twice * 2, dim=64, kinds=("self", "self"))
    torch.autograd.grad(mixed(torch.randn(5, 3, 64)).square().sum(), list(mixed[1].parameters()))  # each has one


def test_two_sub_layers_of_a_kind_are_two() -> None:
    torch.manual_seed(1)
    x, blocks = torch.randn(5, 3, 16), [[nn.Linear(16, 16) for _ in range(3)] for _ in range(2)]
    stack = wrap("pre_ln", blocks, dim=16, kinds=("ffn", "self", "ffn")).eval()
    found = contributions(stack, x)
    assert found.names[1:4] == ["layer 1 FFN", "layer 1 self-attention", "layer 1 FFN (2)"]
    torch.testing.assert_close(found.terms.sum(0), stack(x))
    points = [p.point for p in parts(ModelAndLoss(stack, lambda: stack(x).square().mean())) if p.layer == 1]
    assert "FFN (2)" in points
    admin = wrap("admin", blocks, dim=16, kinds=("ffn", "self", "ffn")).train()
    admin[1].ffn.eval()
    admin(3 * x)
    omegas = [p for name, p in admin.named_parameters() if name.endswith("omega")]
    assert [bool((omega == 1).all()) for omega in omegas] == [True] + 5 * [False]
    assert not admin[1].ffn.training
    gated = wrap("residual_gate", blocks, dim=16, kinds=("ffn", "self", "ffn"))
    (spared,) = (g["params"] for g in parameter_groups(gated, lr=0.1, weight_decay=0.1) if not g["weight_decay"])
    assert set(spared) == {p for name, p in gated.named_parameters() if name.endswith(".gate")}
    pairs = wrap("scmoe", blocks, dim=16, ffn_dim=32, kinds=("ffn", "self", "ffn"))
    torch.autograd.grad(pairs(x).sum(), list(pairs.parameters()))  # each of which has a gradient


@pytest.mark.parametrize(
    ("variant", "options", "settings"),
    [
        ("pre_ln", {}, {}),
        ("pre_ln", {}, {"kv_heads": 1}),
        ("post_sublayer_norm", {"qk_norm": True}, {"kv_heads": 1}),
        ("pre_ln", {}, {"bias": False}),
        ("pre_ln", {"value_residual": "identity"}, {}),
        ("sub_ln", {}, {}),
    ],
)
def test_a_mask_of_booleans_hides(variant: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """As in PyTorch's attention, by whichever way the library's runs."""
    torch.manual_seed(1)
    layers = [(MultiheadAttention(16, 2, **settings), FeedForward(16, 32)) for _ in range(2)]
    stack = wrap(variant, layers, dim=16, options=options).eval()
    x, hidden = torch.randn(6, 2, 16), torch.ones(6, 6, dtype=torch.bool).triu(1)
    added = torch.zeros(6, 6).masked_fill(hidden, -torch.inf)
    found, expected = (stack(x, attention={"attn_mask": mask}) for mask in (hidden, added))
    torch.testing.assert_close(found, expected)


def test_arguments_of_each_layer() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor, number: float = 0.0) -> Tensor:
            return torch.full_like(x, number)

    stack = wrap("pre_ln", [[Add(), Add()]] * 2, dim=16, options={"final_norm": False})
    x = torch.randn(5, 3, 16)
    torch.testing.assert_close(stack(x, attention=[{"number": 1.0}, {"number": 2.0}], ffn={"number": 10.0}), x + 23)
    with pytest.raises(UserError, match="arguments of attention are for 1 layers, and the stack has 2"):
        stack(x, attention=[{"number": 1.0}])


def test_a_residual_connection_inside_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Residual(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.ffn, self.norm = nn.Linear(16, 16), norm

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x + self.ffn(x))  # type: ignore[no-any-return]

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x * mask

    for norm in (nn.Identity(), nn.LayerNorm(16)):
        caplog.clear()
        wrap("pre_ln", [[nn.Linear(16, 16), Residual(norm)]], dim=16)
        assert [record.getMessage().split(",")[0] for record in caplog.records] == ["the FFN of layer 0"]
    caplog.clear()
    first = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))
    for wiring in ("b2t", "re_zero"):
        wrap(wiring, [[nn.Linear(16, 16), first]], dim=16)
    (told,) = caplog.records  # by the one that has norms
    assert "by a norm of its own, 0, and the wiring has a norm too" in told.getMessage()
    caplog.clear()
    wrap("pre_ln", [[Masked(), nn.Linear(16, 16)], [nn.Linear(16, 16)] * 2], dim=16)
    wrap("hyper_connections", of_ones_own(ours("encoder")), dim=16)
    assert not caplog.records


def test_weights_of_ones_own_stay(caplog: pytest.LogCaptureFixture) -> None:
    layers = of_ones_own(ours("encoder"))
    before = {name: p.clone() for name, p in nn.ModuleList(map(nn.ModuleList, layers)).named_parameters()}
    wrap("deepnet", layers, **SIZES)
    assert "wiring deepnet also scales the weights of sub-layers at initialisation" in caplog.text
    after = dict(nn.ModuleList(map(nn.ModuleList, layers)).named_parameters())
    assert all(torch.equal(after[name], p) for name, p in before.items())
    with pytest.raises(UserError, match="option init_scale draws the weights of sub-layers"):
        wrap("b2t", layers, options={"init_scale": 0.5}, **SIZES)
    with torch.device("meta"):
        assert all(p.is_meta for p in wrap("b2t", of_ones_own(ours("encoder")), **SIZES).parameters())


@pytest.mark.parametrize(("task", "variant"), cases("encoder", "decoder"))
def test_modules_of_the_library_are_initialised(task: str, variant: str) -> None:
    torch.manual_seed(1)
    built = build_stack(variant, depth=DEPTH, task=task, **SIZES)  # type: ignore[arg-type]
    torch.manual_seed(1)
    wrapped = wrap(variant, ours(task), task=task, **SIZES).state_dict()  # type: ignore[arg-type]
    wrapped = {name.replace(".ffn.fc", ".fc"): value for name, value in wrapped.items()}
    assert wrapped.keys() == built.state_dict().keys()
    assert [name for name, value in built.state_dict().items() if not torch.equal(wrapped[name], value)] == []


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        ([[nn.Identity()]], {}, "a layer with task=encoder has 2 sub-layers, attention, the FFN; layer 0 has 1"),
        ([], {}, "depth must be a whole number of at least 1, not 0"),
        ([[nn.Identity()] * 2], {"heads": 3}, "dim=16 is not divisible by heads=3"),
        ([[nn.Identity()] * 2], {"dropout": 2}, "dropout=2 is no probability from 0 to 1"),
        ([[nn.Identity()] * 2], {"layerdrop": -1}, "layerdrop=-1 is no probability from 0 to 1"),
        ([[nn.Identity(), torch.relu]], {}, "the FFN of layer 0 must be a torch.nn.Module, not <built-in"),
        ([type("Mine", (nn.TransformerEncoderLayer,), {})(16, 2)], {}, "a layer is a sequence of its sub-layers"),
        ([nn.Linear(16, 16)], {}, "a layer is a sequence of its sub-layers, nn.TransformerEncoderLayer or"),
        ([[nn.Identity()] * 2], {"kinds": ("mixer",)}, "kinds has 'mixer'; valid are self, cross, ffn"),
        ([[nn.Identity()]], {"kinds": ("ffn",), "variant": "depthwise_lstm"}, "a layer must have a sub-layer to wire"),
        ([[nn.Identity()] * 2], {"norms": "old"}, "norms='old' is unknown; valid are new, move"),
        ([[nn.Identity()] * 2], {"norms": "move"}, 'norms="move" takes those of PyTorch\'s own layers'),
        ([[nn.LayerNorm(16)] * 2], {"variant": "re_zero", "options": {"norm_type": "rms"}}, "has no norm, so"),
        ([[nn.Identity()] * 2], {"options": {"norm_type": "dyt", "norm_eps": 0.1}}, "norm_eps would do nothing"),
        (
            [nn.TransformerEncoderLayer(16, 2)],
            {"variant": "post_ln", "norms": "move", "options": {"norm_eps": 0.1}},
            "this wiring has no norm of its own, so norm_eps would do nothing",
        ),
        ([[nn.Identity()] * 2], {"task": "speech"}, "task='speech' is unknown; valid are encoder, decoder,"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(layers: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        wrap(**{"variant": "b2t", "layers": layers} | SIZES | settings)
    assert message in str(error.value)


def test_inputs_of_another_shape_or_without_memory_are_refused() -> None:
    stack = wrap("b2t", [[nn.Identity(), nn.Identity()]], **SIZES)
    with pytest.raises(UserError, match=r"x must have three dimensions, the last of 16, not \(5, 16\)"):
        stack(torch.randn(5, 16))
    with pytest.raises(UserError, match="give the stack cross_attention="):
        wrap("pre_ln", ours("decoder"), dim=16, task="decoder")(torch.randn(5, 3, 16))


@pytest.mark.parametrize(
    ("output", "returned"), [(lambda h: h[:1], r"\(1, 3, 16\)"), (lambda h: None, "NoneType"), (lambda h: [h], "list")]
)
def test_an_output_of_another_shape_is_refused(output: Any, returned: str) -> None:
    class Mistaken(nn.Module):
        def forward(self, h: Tensor) -> Any:
            return output(h)

    message = rf"return the shape that it is fed, \(5, 3, 16\), .* Mistaken returned {returned}"
    for layer in ([Mistaken(), nn.Identity()], [nn.Identity(), Mistaken()]):
        with pytest.raises(UserError, match=message):
            wrap("pre_ln", [layer], **SIZES)(torch.randn(5, 3, 16))
