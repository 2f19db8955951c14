"""Wirings of released models: what they are at the start, and what their equations imply."""

from __future__ import annotations

import pytest
import torch
from tiny import TASKS, batch, build, logits, perturb, stacks
from torch import Tensor, nn
from wired_sublayers import assert_close, wired

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


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("depth_scaled=true", {"self": 0.5, "cross": 0.5, "ffn": 0.5}),
        ("depth_scaled=0.2", {"self": 0.1, "cross": 0.1, "ffn": 0.1}),
        ("depth_scaled=0.0", {"self": 0.0, "cross": 0.0, "ffn": 0.0}),
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


def test_partners_of_a_u_net() -> None:
    """The last in is the first out; of an odd number one has no partner: the middle, or the last as in the records."""
    assert [partner(i, 6, "middle") for i in range(6)] == [None, None, None, 2, 1, 0]
    assert [partner(i, 5, "middle") for i in range(5)] == [None, None, None, 1, 0]
    assert [partner(i, 5, "last") for i in range(5)] == [None, None, 1, 0, None]
    assert partner(0, 1, "middle") is None


def test_starts_of_learned_scalars() -> None:
    """The second lane's 1.5 for attention, cross-attention too, r = sqrt(1.1)."""
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
