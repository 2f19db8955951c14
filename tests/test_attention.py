"""Attention with its insides open is fairseq's attention until a variant steps in."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_residuals.plugin.models.fairseq_stack import FairseqCache
from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.base import Connection, Site

T, S, B, C, H = 5, 7, 3, 16, 4


def make_attention(**kind: Any) -> MultiheadAttention:
    torch.manual_seed(0)
    attention = MultiheadAttention(C, H, **kind).eval()
    for parameter in attention.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return attention


def padding(length: int) -> Tensor:
    mask = torch.zeros(B, length, dtype=torch.bool)
    mask[1, -2:] = True
    mask[2, :1] = True
    return mask


@pytest.mark.parametrize("weights", [{}, {"need_weights": True}, {"need_head_weights": True}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention(masked: bool, weights: dict[str, bool]) -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    masks: dict[str, Any] = {}
    if masked:
        masks = {"key_padding_mask": padding(T), "attn_mask": torch.full((T, T), -torch.inf).triu(1)}
        masks["key_padding_mask"][:, 0] = False
    expected = attention(x, x, x, **masks, **({"need_weights": False} | weights))
    found = open_attention(attention, x, x, x, **masks, **weights)
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (weights == {})
    if weights:
        # fairseq averages over heads even where it was asked for each (its call of PyTorch's function)
        mean = found[1].mean(0) if "need_head_weights" in weights else found[1]
        torch.testing.assert_close(mean, expected[1])


def test_dropout_is_on_the_weights_of_the_values_alone() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    attention.dropout_module = nn.Dropout(1.0)
    out, weights = open_attention(attention, x, x, x, need_weights=True)
    torch.testing.assert_close(out, attention.out_proj.bias.expand_as(out))
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, T))


def test_self_attention_step_by_step() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for t in range(T):
        step = x[t : t + 1]
        mask = padding(T)[:, : t + 1] if t == T - 1 else None
        arguments = {"key_padding_mask": None if mask is None else mask[:, -1:]}
        expected, _ = attention(step, step, step, incremental_state=theirs, need_weights=False, **arguments)
        found, _ = open_attention(attention, step, step, step, cache=FairseqCache(ours), **arguments)
        torch.testing.assert_close(found, expected)
        order = torch.tensor([2, 0, 0])
        attention.reorder_incremental_state(theirs, order)
        attention.reorder_incremental_state(ours, order)
    (theirs_kept,), (ours_kept,) = theirs.values(), ours.values()
    assert theirs_kept.keys() == ours_kept.keys()


@pytest.mark.parametrize("beam", [1, 2])
def test_cross_attention_step_by_step(beam: int) -> None:
    attention = make_attention(encoder_decoder_attention=True)
    attention.set_beam_size(beam)
    memory, mask = torch.randn(S, B, C), padding(S)
    query = torch.randn(T, B * beam, C)
    per_hypothesis, mask = memory.repeat_interleave(beam, 1), mask.repeat_interleave(beam, 0)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for t in range(T):
        arguments = {"key_padding_mask": mask, "static_kv": True, "need_weights": True}
        step = query[t : t + 1]
        expected = attention(step, per_hypothesis, per_hypothesis, incremental_state=theirs, **arguments)
        found = open_attention(attention, step, per_hypothesis, per_hypothesis, cache=FairseqCache(ours), **arguments)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1])
        # a memory that has each sentence once is the same
        once = {"key_padding_mask": padding(S), "static_kv": True}
        single, _ = open_attention(attention, step, memory, memory, cache=FairseqCache({}), **once)
        torch.testing.assert_close(single, expected[0])
    # at rest one forward over all steps is the same
    whole, _ = open_attention(attention, query, per_hypothesis, per_hypothesis, key_padding_mask=mask)
    torch.testing.assert_close(whole[-1:], found[0])


def test_weights_are_given_back_as_their_queries_came() -> None:
    class Reversing(FairseqCache):
        """Has the sentences the other way around."""

        def ungroup(self, x: Tensor) -> Tensor:
            return x.flip(0)

    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    _, expected = open_attention(attention, x, x, x, need_weights=True)
    _, weights = open_attention(attention, x, x, x, need_weights=True, cache=Reversing({}))
    assert weights is not None and expected is not None
    torch.testing.assert_close(weights, expected.flip(0))


def test_edits_step_in_where_they_say() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    seen = {}

    def edit_scores(scores: Tensor) -> Tensor:
        seen["scores"] = scores
        return torch.zeros_like(scores)

    def edit_heads(heads: Tensor) -> Tensor:
        seen["heads"] = heads
        return 2 * heads

    out, _ = open_attention(attention, x, x, x, edit_scores=edit_scores, edit_heads=edit_heads)
    assert seen["scores"].shape == (B, H, T, T)
    # equal scores: every position is the mean of the values
    mean = attention.v_proj(x).mean(0, keepdim=True).expand(T, B, C)
    torch.testing.assert_close(seen["heads"], mean)
    torch.testing.assert_close(out, attention.out_proj(2 * mean))
    q, k = (p(x).unflatten(-1, (H, -1)) for p in (attention.q_proj, attention.k_proj))
    scores = torch.einsum("tbhd,sbhd->bhts", q, k) * (C // H) ** -0.5
    torch.testing.assert_close(seen["scores"], scores)


def edits_of_projections() -> dict[str, Any]:
    """A map of all channels per projection, so that the heads are mixed."""
    torch.manual_seed(3)
    matrices = {f"edit_{name}": torch.randn(C, C) / C**0.5 for name in ("query", "key", "value")}
    return {name: partial(torch.matmul, other=matrix) for name, matrix in matrices.items()}


def test_edits_of_projections_are_made_after_the_bias_and_before_the_heads() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    edits = edits_of_projections()
    found, _ = open_attention(attention, x, x, x, **edits)
    q, k, v = (
        edits[f"edit_{name}"](projection(x)).unflatten(-1, (H, -1))
        for name, projection in zip(
            ("query", "key", "value"), (attention.q_proj, attention.k_proj, attention.v_proj), strict=True
        )
    )
    weights = (torch.einsum("tbhd,sbhd->bhts", q, k) * (C // H) ** -0.5).softmax(-1)
    heads = torch.einsum("bhts,sbhd->tbhd", weights, v).flatten(-2)
    torch.testing.assert_close(found, attention.out_proj(heads))


def test_what_is_cached_is_edited_once() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    edits = edits_of_projections()
    causal = torch.full((T, T), -torch.inf).triu(1)
    full, _ = open_attention(attention, x, x, x, attn_mask=causal, **edits)
    state: dict[str, Any] = {}
    steps = [open_attention(attention, *[x[t : t + 1]] * 3, cache=FairseqCache(state), **edits)[0] for t in range(T)]
    torch.testing.assert_close(torch.cat(steps), full)
    cached = attention._get_input_buffer(state)["prev_value"].permute(2, 0, 1, 3).flatten(-2)
    torch.testing.assert_close(cached, edits["edit_value"](attention.v_proj(x)))


def test_edits_of_a_memory_are_made_once_and_for_one_hypothesis() -> None:
    attention = make_attention(encoder_decoder_attention=True)
    attention.set_beam_size(2)
    memory, query = torch.randn(S, B, C).repeat_interleave(2, 1), torch.randn(T, 2 * B, C)
    edits = edits_of_projections()
    whole, _ = open_attention(attention, query, memory, memory, **edits)
    edited = []

    def edit_key(k: Tensor) -> Tensor:
        edited.append(k.shape)
        return edits["edit_key"](k)

    arguments = edits | {"edit_key": edit_key, "cache": FairseqCache({}), "static_kv": True}
    steps = [open_attention(attention, query[t : t + 1], memory, memory, **arguments)[0] for t in range(T)]
    torch.testing.assert_close(torch.cat(steps), whole)
    assert edited == [(S, B, C)]


def test_a_memory_is_kept_once_and_apart_from_words() -> None:
    """Kept once a step, it would be longer each time; the output would still be the same."""
    attention, cache = make_attention(encoder_decoder_attention=True), DecoderCache()
    memory, query = torch.randn(S, B, C), torch.randn(2, B, C)
    for t in range(2):
        open_attention(attention, query[t : t + 1], memory, memory, cache=cache, static_kv=True)
    assert [kept.keys.shape for kept in cache.memories.values()] == [(B, H, S, C // H)]
    assert cache.words == {}


def test_a_connection_opens_attention_only_for_an_edit() -> None:
    attention, x = make_attention(self_attention=True), torch.randn(T, B, C)
    shape = {"depth": 1, "dim": C, "ffn_dim": C, "heads": H, "enc_depth": 1, "dec_depth": 1, "cross": True}
    connection = Connection(Site(**shape, stack="encoder", kind="self", layer=0, index=0, n_sub=2))  # type: ignore[arg-type]
    calls: list[str] = []
    attention.register_forward_hook(lambda *_: calls.append("module"))
    plain, _, _ = connection.attend(attention, x, x, x, {}, need_weights=False)
    assert calls == ["module"]
    same, _, _ = connection.attend(attention, x, x, x, {}, need_weights=False, edit_value=lambda v: v)
    assert calls == ["module"]
    torch.testing.assert_close(same, plain)
    twice, _, _ = connection.attend(attention, x, x, x, {}, edit_value=lambda v: 2 * v)
    torch.testing.assert_close(twice - attention.out_proj.bias, 2 * (plain - attention.out_proj.bias))
