"""Sub-layers of today's decoders: each acts for every wiring, with a cache and packed, or is refused in a sentence."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from perturbation import perturb
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals import DecoderCache, FeedForward, MultiheadAttention, UserError, build_stack, list_variants
from fairseq_residuals.wirings.blocks.attention import Rotary
from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.registry import VARIANTS

SIZES: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 4, "ffn_dim": 32}
TODAY: dict[str, Any] = {
    "rotary": 500.0,
    "kv_heads": 2,
    "ffn": "swiglu",
    "qk_norm": True,
    "norm_type": "rms",
    "bias": False,
    "window": 3,
}
NORMLESS = ("re_zero", "ngpt", "t_fixup", "b2t_no_ln")
"""Wirings whose only norms are those of queries and keys."""
REFUSED = {
    "depthwise_lstm": ("ffn", "this wiring takes the place of the FFN"),
    **{name: ("qk_norm", f"wiring '{name}' norms queries and keys itself") for name in ("hybrid_norm", "ngpt")},
}


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(3))


def built(variant: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """A decoder of today, its numbers moved, with its memory: alone where the wiring has a meaning there."""
    alone = not VARIANTS[variant].refusal(alone=True, topmost=True)
    torch.manual_seed(1)
    stack = build_stack(variant, **SIZES | {"task": "language_model" if alone else "decoder"} | settings)
    return perturb(stack).eval(), {} if alone else {"memory": vectors(4, 2)}


@pytest.mark.parametrize("variant", list_variants())
def test_today_s_layers_in_every_wiring(variant: str) -> None:
    settings = dict(TODAY)
    if variant in REFUSED:
        name, message = REFUSED[variant]
        with pytest.raises(UserError, match=message):
            built(variant, **settings)
        del settings[name]
        if variant in NORMLESS:
            del settings["norm_type"]
    stack, memory = built(variant, **settings)
    x = vectors(6, 2).requires_grad_()
    out = stack(x, **memory)
    cache = DecoderCache()
    steps = [stack(part, cache=cache, **memory) for part in x.split([3, 1, 1, 1])]
    torch.testing.assert_close(torch.cat(steps), out, rtol=1e-4, atol=1e-5)
    if not memory:
        packed = torch.cat([x[:, :1], x[:4, 1:]])
        row = stack(packed, cu_seqlens=torch.tensor([0, 6, 10]))
        torch.testing.assert_close(row, torch.cat([out[:, :1], out[:4, 1:]]), rtol=1e-4, atol=1e-5)
    weights = [x, stack[0].self_attn.k_proj.weight, stack[1].self_attn.q_proj.weight]
    assert all(g.isfinite().all() and g.any() for g in torch.autograd.grad(out.square().sum(), weights))
    # each by itself makes another function of the same numbers, or has other numbers
    for name in settings.keys() - {"kv_heads", "ffn", "bias"}:
        without = {name, "norm_type"} if name == "qk_norm" and variant in NORMLESS else {name}
        other, _ = built(variant, **{k: v for k, v in settings.items() if k not in without})
        assert (other(x, **memory) - out).abs().max() > 1e-4, name
    names = ("_proj", "fc1", "fc2")
    linear = [m for i in range(2) for n, m in stack[i].named_modules() if n.endswith(names)]
    assert linear and all(m.bias is None for m in linear)


def test_rotary_positions_are_relative_and_turn_by_complex_numbers() -> None:
    heads = torch.randn(2, 3, 5, 8)
    turned, given = (
        torch.view_as_complex(x.unflatten(-1, (2, -1)).mT.contiguous()) for x in (Rotary(100.0)(heads, 7), heads)
    )
    angles = torch.arange(7, 12)[:, None] * 100.0 ** (-torch.arange(4) / 4)
    torch.testing.assert_close(turned, given * torch.polar(torch.ones_like(angles), angles))
    stack, _ = built("pre_ln", rotary=True)
    x = vectors(5, 1)
    padded = torch.cat([torch.zeros(2, 1, 16), x])
    mask = torch.tensor([[True, True, False, False, False, False, False]])
    cache = DecoderCache()
    moved = stack(padded, padding_mask=mask, cache=cache)[2:]
    torch.testing.assert_close(moved, stack(x), rtol=1e-4, atol=1e-5)


def test_heads_of_keys_and_values_are_shared_by_neighbours() -> None:
    torch.manual_seed(1)
    shared, whole = MultiheadAttention(16, 4, kv_heads=2), MultiheadAttention(16, 4)
    state = perturb(shared).state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            rows = state[f"{name}.{part}"]
            state[f"{name}.{part}"] = rows.unflatten(0, (2, 1, 4)).repeat_interleave(2, 1).flatten(0, 2)
    whole.load_state_dict(state)
    x, mask = vectors(5, 2), torch.full((5, 5), -torch.inf).triu(1)
    torch.testing.assert_close(shared(x, x, x, attn_mask=mask)[0], whole(x, x, x, attn_mask=mask)[0])
    normed, _ = built("post_sublayer_norm", kv_heads=2, options={"qk_norm": True})
    assert normed(x).isfinite().all() and normed[0].self_attn_connection.k_norm.weight.shape == (8,)


def test_a_decoder_with_padding_does_nothing_deprecated() -> None:
    stack, padding = built("pre_ln")[0], torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = stack(vectors(5, 2), padding_mask=padding)
    # what is padded on the right, no decoder's word sees
    torch.testing.assert_close(out[:3], stack(vectors(5, 2)[:3]))


def test_the_fused_kernels_compute_what_open_attention_does() -> None:
    """Also while the attention trains and its dropout is switched off."""
    torch.manual_seed(1)
    today = perturb(MultiheadAttention(16, 4, kv_heads=1, bias=False, rotary=Rotary(), dropout=0.5))
    today.q_norm, today.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)
    x, mask, padding = vectors(5, 2), torch.full((5, 5), -torch.inf).triu(1), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, :2] = True  # on the left: two queries see padding alone
    for attention, hidden in ((today, padding), (MultiheadAttention(16, 4, dropout=0.5), None)):
        attention.dropout_module.eval()
        inputs = {"attn_mask": mask, "key_padding_mask": hidden}
        torch.testing.assert_close(attention(x, x, x, **inputs)[0], open_attention(attention, x, x, x, **inputs)[0])
    assert today(x, x, x, need_weights=True)[1].shape == (2, 5, 5)


@pytest.mark.parametrize(("name", "activation"), [("swiglu", F.silu), ("geglu", F.gelu)])
def test_gated_ffns(name: Any, activation: Any) -> None:
    torch.manual_seed(1)
    ffn, h = perturb(FeedForward(16, 24, name)), vectors(5, 2)
    gate, up = ffn.fc1.weight.chunk(2)
    gate_bias, up_bias = ffn.fc1.bias.chunk(2)
    expected = ffn.fc2(activation(h @ gate.T + gate_bias) * (h @ up.T + up_bias))
    torch.testing.assert_close(ffn(h), expected)


def test_a_window_hides_what_is_far() -> None:
    x = vectors(7, 1)
    changed = x.clone()
    changed[3] += 1
    for task, seen in (("language_model", [3, 4]), ("encoder", [2, 3, 4])):
        torch.manual_seed(1)
        stack = build_stack("post_ln", **SIZES | {"depth": 1}, task=task, window=2).eval()  # type: ignore[arg-type]
        moved = (stack(changed) - stack(x)).abs().amax((1, 2))
        assert moved.gt(1e-6).nonzero().flatten().tolist() == seen


def test_norms_of_queries_and_keys_forget_their_size() -> None:
    stack, _ = built("pre_ln", qk_norm=True, norm_type="rms", bias=False)
    x = vectors(5, 2)
    before = stack(x)
    with torch.no_grad():
        for i in range(2):
            stack[i].self_attn.q_proj.weight.mul_(100)
            stack[i].self_attn.k_proj.weight.mul_(100)
    torch.testing.assert_close(stack(x), before, rtol=1e-3, atol=1e-4)
    assert isinstance(stack[0].self_attn.q_norm, nn.RMSNorm)


def test_where_a_stack_goes_and_how_precise_it_is() -> None:
    torch.manual_seed(1)
    expected = build_stack("mhc", **SIZES, norm_eps=0.25)
    assert expected[0].ffn_connection.norm.eps == 0.25
    torch.manual_seed(1)
    stack = build_stack("mhc", **SIZES, norm_eps=0.25, dtype=torch.bfloat16)
    assert {p.dtype for p in stack.parameters()} == {torch.bfloat16}
    assert torch.equal(stack[0].fc1.weight, expected[0].fc1.weight.bfloat16())
    assert {p.device.type for p in build_stack("mhc", **SIZES, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("init", ["fairseq_0.8", "fairseq_0.9", "lipschitz", "ds_init", "xavier", "small"])
def test_every_rule_of_initialisation_draws_them(init: str) -> None:
    stack, _ = built("pre_ln", **TODAY, options={"init": init})
    assert stack(vectors(5, 2)).isfinite().all()


def test_initialisation_counts_no_channel_twice() -> None:
    """With fewer heads of keys and values, and gates beside what they gate: variances by the papers."""
    sizes: dict[str, Any] = {"depth": 1, "dim": 256, "heads": 4, "ffn_dim": 512, "kv_heads": 1, "ffn": "swiglu"}
    for variant, init, *variances in (
        ("pre_ln", "small", 2 / 1280, 2 / 1280, 2 / 768),
        ("pre_ln", "xavier", 2 / 320, 2 / 512, 2 / 768),
        ("pre_ln", "fairseq_0.8", 1 / 320, 1 / 512, 2 / 768),
        ("deepnet", "fairseq", 2 / 320, 2 / 512, 8**-0.5 * 2 / 768),
    ):
        layer = build_stack(variant, **sizes, options={"init": init})[0]
        for name, variance in zip(("self_attn.k_proj", "self_attn.q_proj", "fc1"), variances, strict=True):
            assert layer.get_parameter(f"{name}.weight").std().item() == pytest.approx(variance**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rotary": 0.5}, "rotary must be True, False or a base of rates larger than 1, not 0.5"),
        ({"rotary": "yes"}, "rotary must be True, False or a base"),
        ({"rotary": True, "dim": 12}, "rotary positions turn pairs of channels, and a head has 3"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide the 4 heads of queries"),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1, not 0"),
        ({"window": 0}, "window must be a whole number of at least 1, not 0"),
        ({"qk_norm": 1}, "qk_norm must be True or False, not 1"),
        ({"bias": "no"}, "bias must be True or False, not 'no'"),
        ({"norm_type": "rmsnorm"}, "'rmsnorm' is not valid for option 'norm_type'"),
        ({"norm_type": "rms", "options": {"norm_type": "rms"}}, "norm_type is an argument, so options must be"),
        ({"norm_eps": 0.1, "norm_type": "dyt"}, "norm_eps would do nothing: a norm of norm_type=dyt has no argument"),
        ({"variant": "re_zero", "norm_type": "rms"}, "this wiring has no norm, so norm_type would do nothing"),
        ({"ropary": True}, "there is no argument 'ropary' (did you mean rotary?)"),
        ({"activation": "gelu"}, "there is no argument 'activation'"),
    ],
    ids=str,
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_stack(**SIZES | {"variant": "b2t"} | settings)
    assert message in str(error.value)
