"""What each sub-layer adds to the output: the terms, and that their sum is the output or the stack is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rotation import rotated
from tiny import depth_for
from torch import Tensor

from fairseq_residuals import Connection, Site, Stack, UserError, build_stack, contributions
from fairseq_residuals.lab.look.probes import SUBLAYERS
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.registry import VARIANTS

SIZES: dict[str, Any] = {"depth": 3, "dim": 16, "heads": 2, "ffn_dim": 32}


def moved(variant: str, **settings: Any) -> Any:
    """A stack away from its initial values, in double precision."""
    torch.manual_seed(2)
    stack = build_stack(variant, **SIZES | {"depth": depth_for(variant, 3)} | settings).double().eval()
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return stack


def embeddings() -> Tensor:
    return torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(3), dtype=torch.double)


def sublayer_outputs(stack: Any, x: Tensor) -> list[Tensor]:
    """What the sub-layers of a stack give while it runs, seen from outside."""
    outputs: list[Tensor] = []

    def hook(connection: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
        def seen(h: Tensor, s: Any) -> Any:
            result = inputs[1](h, s)
            outputs.append(result[0])
            return result

        return inputs[0], seen

    for i in range(len(stack)):
        for kind in stack[i].kinds:
            stack[i].connection(kind).register_forward_pre_hook(hook)
    stack(x)
    return outputs


ALONE = sorted(name for name, v in VARIANTS.items() if not v.refusal(alone=True, topmost=True))


@pytest.mark.parametrize(("variant", "task"), rotated(ALONE, ["encoder", "language_model"]))
def test_the_sum_is_the_output_or_the_reason_is_said(task: str, variant: str) -> None:
    stack, x = moved(variant, task=task), embeddings()
    before = {name: value.clone() for name, value in stack.state_dict().items()}
    output = stack(x)
    try:
        found, reason = contributions(stack, x), ""
    except UserError as error:
        found, reason = None, str(error)
    if found is None:
        assert "the output of this stack is no sum of what its sub-layers add: " in reason
        assert any(type(m).__name__ in reason for m in stack.modules())
    else:
        torch.testing.assert_close(found.terms.sum(0), output, rtol=1e-4, atol=1e-6)
        kinds = [SUBLAYERS[kind] for kind in stack[0].kinds]
        # some wirings run a layer several times: "layer 1 FFN (2)"
        names = [name for name in found.names if not name.endswith(")")]
        terms = [f"layer {i} {kind}" for i in range(1, len(stack) + 1) for kind in kinds]
        assert names == ["embedding", *terms, "biases"]
    # nothing is left behind
    assert torch.equal(stack(x), output)
    assert all(torch.equal(value, before[name]) for name, value in stack.state_dict().items())


def scaled(term: Tensor, norm: Any, whole: Tensor) -> Tensor:
    """What a norm of the whole makes of a term, its bias left out."""
    deviation = (whole.var(-1, keepdim=True, correction=0) + norm.eps).sqrt()
    return (term - term.mean(-1, keepdim=True)) / deviation * norm.weight


def test_pre_ln_is_the_normalised_sum() -> None:
    stack, x = moved("pre_ln"), embeddings()
    found = contributions(stack, x)
    terms = torch.stack([x, *sublayer_outputs(stack, x)])
    norm = stack.wiring.norm
    torch.testing.assert_close(found.terms[:-1], scaled(terms, norm, terms.sum(0)))
    torch.testing.assert_close(found.terms[-1], norm.bias.expand_as(x))


def test_post_ln_is_scaled_by_every_norm_above() -> None:
    stack, x = moved("post_ln", depth=1), embeddings()
    found = contributions(stack, x)
    attention, ffn = sublayer_outputs(stack, x)
    lower, upper = stack[0].self_attn_connection.norm, stack[0].ffn_connection.norm

    whole = lower(x + attention) + ffn
    once = [scaled(term, lower, x + attention) for term in (x, attention)]
    expected = [scaled(term, upper, whole) for term in (*once, ffn)]
    biases = scaled(lower.bias.expand_as(x), upper, whole) + upper.bias
    torch.testing.assert_close(found.terms, torch.stack([*expected, biases]))


class LowRank(Connection):
    """Add a map of the sum of stream and branch, of two matrices."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.down, self.up = torch.nn.Linear(16, 3, bias=False), torch.nn.Linear(3, 16)

    def write(self, s: Stream, y: Tensor) -> Stream:
        x = s["x"] + y
        return s | {"x": x + self.up(self.down(x))}


def test_a_map_of_another_width_is_of_the_terms() -> None:
    torch.manual_seed(2)
    stack, x = build_stack(LowRank, **SIZES | {"depth": 1}).double().eval(), embeddings()
    lower, upper = stack[0].connections()
    first, second = (torch.eye(16).double() + m.up.weight @ m.down.weight for m in (lower, upper))
    attention, ffn = sublayer_outputs(stack, x)
    biases = (second @ lower.up.bias + upper.up.bias).expand_as(x)
    expected = [x @ first.T @ second.T, attention @ first.T @ second.T, ffn @ second.T, biases]
    torch.testing.assert_close(contributions(stack, x).terms, torch.stack(expected))


def test_a_matrix_of_the_streams_is_none_of_positions() -> None:
    stack, x = moved("identity_hc"), torch.randn(4, 4, 16).double()
    torch.testing.assert_close(contributions(stack, x).terms.sum(0), stack(x), rtol=1e-4, atol=1e-6)


def test_layer_scale_at_zero_leaves_the_embedding_alone() -> None:
    found = contributions(build_stack("re_zero", **SIZES).eval(), embeddings().float())
    sizes = found.sizes()
    assert sizes.pop("embedding") > 0 and set(sizes.values()) == {0.0}


def refused(stack: Stack, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as error:
        contributions(stack, *args, **kwargs)
    return str(error.value)


def test_what_is_not_additive_says_where() -> None:
    # the first sub-layer has one source, and reads it as it is
    assert "after layer 1 FFN, AttentionResidualsConnection" in refused(moved("attention_residuals"), embeddings())
    assert "DepthwiseLSTMConnection" in refused(moved("depthwise_lstm"), embeddings())
    # its last read gates what it read; as it was recorded, all of the output was one of the biases
    assert "GatedResidual" in refused(moved("gated_residual"), embeddings())
    # a branch of its own, with an activation inside; its output was one of the biases, too
    assert "ShortcutConnection makes something else" in refused(moved("scmoe"), embeddings())
    assert "PreLN makes something else" in refused(moved("pre_ln", options={"norm_type": "dyt"}), embeddings())
    assert "call eval() first" in refused(moved("pre_ln").train(), embeddings())
    assert "call float() first" in refused(moved("pre_ln").bfloat16(), embeddings().bfloat16())
    model: Any = torch.nn.Sequential(moved("pre_ln"))
    assert "give that of this Sequential" in refused(model, embeddings())


def test_of_a_decoder_and_with_padding() -> None:
    stack, x, memory = moved("b2t", task="decoder"), embeddings(), embeddings()[:4]
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    found = contributions(stack, x, memory=memory, padding_mask=padding)
    assert found.names[2] == "layer 1 cross-attention" and len(found.names) == 11
    torch.testing.assert_close(found.terms.sum(0), stack(x, memory=memory, padding_mask=padding))
