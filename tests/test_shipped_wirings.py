"""Wirings of released models: what they are at the start, and what their equations imply."""

from __future__ import annotations

import pytest
import torch
from tiny import TASKS, batch, build, logits, perturb, stacks
from torch import Tensor, nn
from wired_sublayers import Wired, assert_close, wired

from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.variants.unet_skip import partner
from tests.rotation import rotated

# at the start each computes what another does, whose parameters it has among others
STARTS = [
    ("x0_lambdas", "", "pre_ln"),
    ("backout", "start=0", "pre_ln"),
    ("two_lane", "start=pre_ln", "pre_ln"),
    ("complete_p", "base_depth=3", "pre_ln"),
]


def logits_with_values_of(other: nn.Module, task: str, name: str, args: str) -> Tensor:
    model = build(task, name, "--residual-args", args, layers=3)
    model.load_state_dict(model.state_dict() | other.state_dict())
    return logits(model, task, batch(task))


@torch.no_grad()
@pytest.mark.parametrize(("name", "args", "other", "task"), [(*start, task) for start, task in rotated(STARTS, TASKS)])
def test_start(task: str, name: str, args: str, other: str) -> None:
    """Bit for bit."""
    plain = perturb(build(task, other, layers=3))
    assert torch.equal(logits_with_values_of(plain, task, name, args), logits(plain, task, batch(task)))


@torch.no_grad()
def test_what_parallel_branches_read_stays_in_their_layer() -> None:
    streams: list[set[str]] = []
    for w in wired("parallel"):
        w.stack[0].register_forward_hook(lambda module, args, out: streams.append(set(out[0])))
        w.output()
    assert streams == [{"x"}, {"x"}]


@torch.no_grad()
@pytest.mark.parametrize("dropout", ["after_norm", "before_norm"])
def test_beam_computes_what_a_sandwich_does(dropout: str) -> None:
    """Of the same weights, but for eps; its stream is that of the sandwich over sqrt(k)."""
    options = f"dropout={dropout}"
    for beam, plain in zip(
        wired("beam_residual", options, eps=1e-12), wired("sandwich_ln", options, eps=1e-12), strict=True
    ):
        assert_close(beam.output(), plain.output())
        k = 1 + len(beam.sublayers())
        assert_close(k**0.5 * top_of(beam), top_of(plain))


def top_of(w: Wired) -> Tensor:
    """Return what the last layer gives."""
    seen: list[Tensor] = []
    w.stack[len(w.stack) - 1].register_forward_hook(lambda module, args, out: seen.append(out[0]["x"]))
    w.output()
    return seen[0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("depth_scaled=true", {"self": 0.5, "cross": 0.5, "ffn": 0.5}),
        ("depth_scaled=0.2", {"self": 0.1, "cross": 0.1, "ffn": 0.1}),
        ("depth_scaled=pangu", {"self": 0.283 / 2, "cross": 0.283 / 2, "ffn": 0.432 / 2}),
        ("", {"self": 1.0, "cross": 1.0, "ffn": 1.0}),
    ],
)
def test_depth_scaled_gains(args: str, expected: dict[str, float]) -> None:
    """c / sqrt(L) with 4 layers, which in the decoder have 12 sub-layers."""
    decoder = stacks(build("translation", "sandwich_ln", "--residual-args", args, layers=4))[1]
    for i in range(4):
        for kind, value in expected.items():
            connection = getattr(decoder[i], CONNECTIONS[kind])
            assert_close(connection.out_norm.weight, torch.full((16,), value))
            assert_close(connection.norm.weight, torch.ones(16))


def test_minicpms_rule() -> None:
    """1.4 / sqrt(L), L of each stack; at 40 layers Granite's 0.22 (Hu et al. 2024)."""
    model = build("translation", "residual_multiplier", "--residual-args", "multiplier=depth", layers=4)
    for stack in stacks(model):
        assert {stack[i].ffn_connection.multiplier for i in range(4)} == {0.7}
    assert round(1.4 / 40**0.5, 2) == 0.22


def test_partners_of_a_u_net() -> None:
    """The last in is the first out; of an odd number one has no partner: the middle, or the last as in the records."""
    assert [partner(i, 6, "middle") for i in range(6)] == [None, None, None, 2, 1, 0]
    assert [partner(i, 5, "middle") for i in range(5)] == [None, None, None, 1, 0]
    assert [partner(i, 5, "last") for i in range(5)] == [None, None, 1, 0, None]
    assert partner(0, 1, "middle") is None


@torch.no_grad()
@pytest.mark.parametrize(("layers", "embeddings"), [(4, 3.0), (6, 4.0)])
def test_u_net_of_layers_that_do_nothing(layers: int, embeddings: float) -> None:
    """With w = 1, as in modded-nanogpt, the top holds 1 + L/2 embeddings; with closed gates one."""
    for args, expected in (("gate=none", embeddings), ("gate=sigmoid", 1.0)):
        stack = stacks(build("translation", "unet_skip", "--residual-args", args, layers=layers))[0]
        seen: list[Tensor] = []
        for i in range(layers):
            connection = stack[i].self_attn_connection
            if args == "gate=sigmoid" and connection.skip_weight is not None:
                assert connection.skip_weight.item() == -1.5
                connection.skip_weight.fill_(-torch.inf)
            for matrix in (stack[i].self_attn.out_proj, stack[i].fc2):
                matrix.weight.zero_(), matrix.bias.zero_()
        stack[layers - 1].register_forward_hook(lambda module, inputs, out, seen=seen: seen.append(out[0]["x"]))
        x = torch.randn(5, 2, 16)
        stack(x)
        assert torch.equal(seen[0], expected * x)


def test_starts_of_learned_scalars() -> None:
    """nanochat's r and s over four layers; the second lane's 1.5 for attention, r = sqrt(1.1)."""
    decoder = stacks(build("translation", "x0_lambdas", "--residual-args", "start=nanochat", layers=4))[1]
    connections = [decoder[i].self_attn_connection for i in range(4)]
    kept, embedding = ([getattr(c, f"{name}_weight").item() for c in connections] for name in ("stream", "embedding"))
    assert kept == pytest.approx([1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05])
    assert embedding == pytest.approx([0.2, 0.15, 0.1, 0.05])
    layer = stacks(build("translation", "two_lane", layers=3))[1][2]
    others = [getattr(layer, CONNECTIONS[kind]).other_weight.item() for kind in layer.kinds]
    assert others == [1.5, 1.5, 1.0] and layer.ffn_connection.stream_weight.item() == pytest.approx(1.1**0.5)


@torch.no_grad()
def test_mup_divides_scores_and_output() -> None:
    """At m_N = 2 the output is half; scores are over the channels of a head, not their root."""
    for plain, mup in zip(
        wired("complete_p"), wired("complete_p", "mup=true,base_width=8", like="complete_p"), strict=True
    ):
        for i in range(3):
            for attention in (mup.stack[i].self_attn, mup.stack[i].encoder_attn):
                if attention is not None:
                    attention.q_proj.weight.mul_(attention.head_dim**0.5)
                    attention.q_proj.bias.mul_(attention.head_dim**0.5)
        assert_close(mup.output() * (2 if plain.stack.shape.stack == "decoder" else 1), plain.output())
