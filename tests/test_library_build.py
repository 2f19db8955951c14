"""build_stack and what is around it: options, initialisation, the cache, packed and padded input, refusals."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_residuals import DecoderCache, LanguageModel, TokenEmbedding, UserError, build_stack, parameter_groups
from fairseq_residuals.wirings.admin_measurement import measure, unprofiled
from fairseq_residuals.wirings.blocks.embedding import sinusoids
from fairseq_residuals.wirings.core.packing import Packing
from fairseq_residuals.wirings.fairseq_weights import load_fairseq_weights
from fairseq_residuals.wirings.speed import cpu
from fairseq_residuals.wirings.wrap import wrap

SIZES: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32}


def language_model(variant: str = "b2t", **settings: Any) -> Any:
    torch.manual_seed(1)
    return build_stack(variant, **SIZES | {"task": "language_model"} | settings).eval()


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(3))


def test_init_reaches_the_embedding_that_it_is_given() -> None:
    tables = [nn.Embedding(11, 16, padding_idx=1) for _ in range(2)]
    before = tables[0].weight.clone()
    language_model("t_fixup", embed_tokens=tables[0])
    torch.testing.assert_close(tables[0].weight, before * (9 * 2) ** -0.25)
    language_model(options={"init": "lipschitz"}, embed_tokens=tables[1])
    bound = (2 / (11 + 16)) ** 0.5
    assert tables[1].weight.abs().max() <= bound and tables[1].weight.std() > bound / 3


def test_constants_of_a_pair_depend_on_the_other_stack() -> None:
    def alpha(**settings: Any) -> float:
        return build_stack("deepnet", **SIZES | settings)[0].ffn_connection.alpha  # type: ignore[no-any-return]

    assert alpha() == alpha(task="language_model") == (2 * 2) ** 0.25
    assert alpha(other_depth=6) == 0.81 * (2**4 * 6) ** (1 / 16)
    assert alpha(task="decoder") == (3 * 2) ** 0.25


def test_a_list_of_variants() -> None:
    stack = language_model("post_ln:0-0,pre_ln:1-1", options={"pre_ln.final_norm": False})
    assert {type(v).__name__ for v, _ in stack.segments()} == {"PostLN", "PreLN"}
    assert stack.wiring.variants[1].norm is None


def test_admin_is_profiled_by_the_first_batch_of_training() -> None:
    stack, x = language_model("admin", dropout=0.1), vectors(5, 3)
    assert stack.eval()(x).shape == stack.train()(x, cache=DecoderCache()).shape == x.shape and unprofiled(stack)
    expected = copy.deepcopy(stack)
    torch.manual_seed(8)
    omegas = measure(expected, lambda: expected(x))["decoder"]
    torch.manual_seed(8)
    stack.train()(x)
    assert not unprofiled(stack)
    values = [{kind: stack[i].connection(kind).omega[0].item() for kind in stack[i].kinds} for i in range(2)]
    assert values == [{kind: pytest.approx(omega) for kind, omega in layer.items()} for layer in omegas]
    assert len({omega for layer in values for omega in layer.values()}) == 4
    # once, and not where a checkpoint has them
    before = copy.deepcopy(stack.state_dict())
    stack(2 * x)
    assert all(torch.equal(value, before[name]) for name, value in stack.state_dict().items())
    loaded, averaged = language_model("admin"), language_model("admin")
    loaded.load_state_dict(before)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(stack.parameters()), averaged.parameters())
    for each in (loaded, averaged):
        each.train()(3 * x)
        assert torch.equal(each.state_dict()["1.ffn_connection.omega"], before["1.ffn_connection.omega"])


def test_admin_that_was_saved_before_training_is_profiled_when_it_trains(tmp_path: Path) -> None:
    LanguageModel("admin", vocab=20, **SIZES).save(tmp_path)
    model: Any = LanguageModel.load(tmp_path).train()
    model(torch.arange(10).view(2, 5))
    assert model.decoder.layers[1].connection("ffn").omega[0] > 1.1
    stack, x = language_model("admin"), vectors(5, 3)
    loaded = language_model("admin")
    loaded.load_state_dict(stack.state_dict())
    for each in (stack, loaded):
        each.train()(x)
    assert loaded[1].connection("ffn").omega[0] > 1.1
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in stack.state_dict().items())
    old = language_model("admin", options={"profile": "omegas.json"})
    with pytest.raises(UserError, match=r"profile=omegas\.json: files of omegas are read no more; valid: auto"):
        old.train()(x)


def test_settings_of_the_optimizer() -> None:
    stack = language_model("complete_p", options={"mup": True, "base_width": 8, "base_depth": 1, "gpas": "layer"})
    model = nn.ModuleDict({"words": nn.Embedding(5, 16), "stack": stack, "again": stack})
    groups = parameter_groups(model, lr=1.0, weight_decay=0.5, eps=0.1)
    settings = {p: (g["lr"], g["weight_decay"], g["eps"]) for g in groups for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    # m_L = m_N = 2: Table 1 of CompleteP, and no decay of vectors
    assert settings[stack[0].fc1.weight] == (0.5, 1.0, 0.025)
    assert settings[stack[0].fc1.bias] == settings[stack[1].gpas.gate] == (1.0, 0.0, 0.025)
    assert settings[model["words"].weight] == (1.0, 0.5, 0.1)
    with pytest.raises(UserError, match="leave out matrices"):
        parameter_groups(model, lr=1.0, matrices=True)
    with pytest.raises(UserError, match="no wired stack"):
        parameter_groups(nn.Linear(2, 2), lr=1.0)


@pytest.mark.parametrize("variant", ["b2t", "mhc", "realformer"])
def test_sentences_may_come_first(variant: str) -> None:
    torch.manual_seed(1)
    stack: Any = build_stack(variant, **SIZES, task="decoder").eval()
    first = copy.deepcopy(stack)
    first.batch_first = True
    assert build_stack(variant, **SIZES, batch_first=True).batch_first and not stack.batch_first
    x, memory, padding = vectors(5, 3), vectors(4, 3).flip(0), torch.zeros(3, 4, dtype=torch.bool)
    padding[1, 2:] = True
    expected = stack(x, memory=memory, memory_padding_mask=padding).transpose(0, 1)
    swapped = {"memory": memory.transpose(0, 1), "memory_padding_mask": padding}
    torch.testing.assert_close(first(x.transpose(0, 1), **swapped), expected)
    cache = DecoderCache()
    steps = [first(x[i : i + 1].transpose(0, 1), cache=cache, **swapped) for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-4, atol=1e-5)


def test_weights_of_another_stack_are_refused_in_a_sentence() -> None:
    state = {f"decoder.layers.{name}": value for name, value in language_model("layer_scale").state_dict().items()}
    stack = language_model("pre_ln")
    before = copy.deepcopy(stack.state_dict())
    with pytest.raises(UserError, match=r"are of another stack: .* missing.* more differ; build the stack") as error:
        load_fairseq_weights(stack, state)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in stack.state_dict().items())
    # an encoder's positions would see what comes later
    with pytest.raises(UserError, match="is of the decoder, this stack of the encoder: change prefix or task"):
        load_fairseq_weights(build_stack("layer_scale", **SIZES), state)


def test_the_order_of_sentences_and_positions_is_checked() -> None:
    stack, x, first = language_model(), vectors(5, 3), language_model(batch_first=True)
    mask = torch.zeros(5, 3).bool()
    refused(stack, "with batch_first=False x and memory are .positions, sentences, C", x, padding_mask=mask)
    refused(first, "with batch_first=True x and memory are .sentences, positions, C", x, padding_mask=mask.T)
    cache = DecoderCache()
    stack(x, cache=cache)
    refused(stack, "the cache holds 3 sentences, and x has 1", x.transpose(0, 1)[:, :1], cache=cache)
    refused(language_model(), "this cache holds the keys and values of another stack", x[:1], cache=cache)
    twice = language_model()(torch.cat([x, x]))[5:]  # words may come twice
    torch.testing.assert_close(stack(x, cache=cache), twice, rtol=1e-4, atol=1e-5)
    refused(first, "in no batch", x[:1], cu_seqlens=torch.tensor([0, 3]))


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.delta = base, nn.Linear(base.in_features, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.delta(x)  # type: ignore[no-any-return]


class Int8Linear(nn.Module):
    """A map whose weight is of bytes, as quantizing libraries have it: only its forward knows what they mean."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.scale, self.bias)


class OfLinear(Tensor):
    """A weight that a linear map alone understands, as torchao's are."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function not in (nn.functional.multi_head_attention_forward, torch.equal)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize(("kind", "most"), [(LoRA, 9.0), (Int8Linear, 0.1)])
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_what_stands_for_a_projection_is_run(name: str, kind: Any, most: float) -> None:
    x = vectors(5, 3)
    stack, merged, hooked, replaced, plain, weighted, nested = (language_model("pre_ln") for _ in range(7))
    for i in range(len(stack)):
        stands, linear = (kind(getattr(stack[i].self_attn, name)), getattr(merged[i].self_attn, name))
        setattr(stack[i].self_attn, name, stands)
        setattr(nested[i].self_attn, name, nn.Sequential(stands))
        linear.weight.data = (stands(torch.eye(16)) - linear.bias).mT
        getattr(weighted[i].self_attn, name).weight = nn.Parameter(linear.weight.detach().as_subclass(OfLinear))
        getattr(hooked[i].self_attn, name).register_forward_hook(lambda _, inputs, out, run=stands: run(inputs[0]))
        getattr(replaced[i].self_attn, name).forward = stands.forward  # as accelerate does
    expected = merged(x)
    for each in (stack, hooked, replaced, weighted, nested):
        torch.testing.assert_close(each(x), expected)
    assert 1e-4 < (expected - plain(x)).abs().max() < most


def test_a_prompt_may_be_padded_on_the_left_and_rows_reordered() -> None:
    embed, stack = TokenEmbedding(20, 16), language_model()
    prompts, words = torch.tensor([[4, 5, 6], [1, 7, 8]]), torch.tensor([[9, 10], [11, 12]])
    cache = DecoderCache()
    stack(embed(prompts, cache=cache), padding_mask=prompts.eq(1), cache=cache)
    order = torch.tensor([1, 1])
    cache.reorder(order)
    steps = [stack(embed(word, cache=cache), cache=cache) for word in words.split(1, 1)]
    assert cache.positions == 5
    alone = stack(embed(torch.cat([prompts[order, 1:], words], 1)))
    torch.testing.assert_close(torch.cat(steps), alone[2:], rtol=1e-4, atol=1e-5)


def test_a_cache_keeps_the_memory_of_a_decoder() -> None:
    torch.manual_seed(1)
    stack = build_stack("b2t", **SIZES, task="decoder", memory_dim=8).eval()
    memory, x = torch.randn(4, 3, 8), vectors(2, 3)
    cache = DecoderCache()
    first = stack(x[:1], memory=memory, cache=cache)
    second = stack(x[1:], memory=torch.full_like(memory, torch.nan), cache=cache)
    torch.testing.assert_close(torch.cat([first, second]), stack(x, memory=memory))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_a_copied_cache_goes_on_by_itself(how: Any) -> None:
    stack, x = language_model(), vectors(4, 3)
    stack[0].self_attn.register_forward_hook(lambda _, inputs, out: (-out[0], None))  # which acts with a cache, too
    cache = DecoderCache()
    stack(x[:2], cache=cache)
    other = how(cache)
    stack(-x[2:3], cache=other)
    torch.testing.assert_close(stack(x[2:], cache=cache), stack(x)[2:], rtol=1e-4, atol=1e-5)
    changed = torch.cat([x[:2], -x[2:3], x[3:]])
    torch.testing.assert_close(stack(x[3:], cache=other), stack(changed)[3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["shared", "broken"])
def test_a_cache_that_lacks_positions_is_refused(case: str) -> None:
    stack, x, cache = language_model(), vectors(4, 1), DecoderCache()
    if case == "shared":
        stack[1].self_attn = stack[0].self_attn
    stack(x[:1], cache=cache)
    if case == "broken":
        handle = stack[1].ffn_connection.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stack(x[1:2], cache=cache)
        handle.remove()
    refused(stack, "this cache has not the same", x[2:3], cache=cache)


def test_packing() -> None:
    packing = Packing(torch.tensor([0, 2, 5]))
    x = torch.arange(5.0)[:, None, None]
    assert packing.unpack(x).squeeze(-1).tolist() == [[0, 2], [1, 3], [0, 4]]
    assert torch.equal(packing.pack(packing.unpack(x)), x)
    assert packing.padding_mask is not None
    assert packing.padding_mask.tolist() == [[False, False, True], [False, False, False]]
    assert packing.positions.tolist() == [0, 1, 0, 1, 2]
    assert Packing(torch.tensor([0, 2, 4])).padding_mask is None


def test_learned_positions_go_on_from_the_cache() -> None:
    torch.manual_seed(1)
    embed = TokenEmbedding(20, 16, positions="learned", scale=2.0, max_positions=4)
    tokens = torch.tensor([[4, 5, 1], [6, 7, 8]])
    table = embed.embed_positions
    assert table is not None
    out = embed(tokens).transpose(0, 1)
    torch.testing.assert_close(out[1], 2 * embed.embed_tokens.weight[[6, 7, 8]] + table.weight[[2, 3, 4]])
    assert out[0, 2].abs().sum() == 0
    cache = DecoderCache()
    cache.advance(2, None)
    torch.testing.assert_close(embed(tokens[1:, 2:], cache=cache)[0], out[1, 2:])
    with pytest.raises(UserError, match="a sentence has 5 positions, and max_positions is 4"):
        embed(torch.full((1, 5), 4))


def test_sinusoids_need_channels() -> None:
    with pytest.raises(UserError, match="need at least 4 channels, not 3"):
        TokenEmbedding(20, 3)
    # an odd number of channels ends in zeros
    table = sinusoids(torch.arange(9), 5)
    assert table[2:, 4].abs().sum() == table[1].abs().sum() == 0 < table[2:, :4].abs().amax(1).min()


def test_layerdrop_skips_layers_in_training() -> None:
    stack, x = language_model("pre_ln", layerdrop=1.0), vectors(5, 3)
    assert torch.equal(stack.train()(x), stack.wiring.norm(x))
    assert not torch.equal(stack.eval()(x), stack.wiring.norm(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "b2d"}, "unknown wiring 'b2d' (did you mean b2t?)"),
        ({"task": "speech"}, "task='speech' is unknown; valid are encoder, decoder, language_model"),
        ({"depth": 0}, "depth must be a whole number of at least 1, not 0"),
        ({"dim": 15}, "dim=15 is not divisible by heads=2"),
        ({"other_depth": 2}, "other_depth has no meaning for task=language_model"),
        ({"memory_dim": 8}, "memory_dim has no meaning for task=language_model"),
        ({"ffn": "geluu"}, "ffn='geluu' is unknown (did you mean gelu?)"),
        ({"dropout": 1.5}, "dropout=1.5 is no probability from 0 to 1"),
        ({"dropout": "0.1"}, "dropout='0.1' is no probability from 0 to 1"),
        ({"variant": "backout", "options": {"middle": 2}}, "middle=2: the layers of this decoder are 0 to 1"),
        ({"variant": "two_lane", "options": {"split": 2}}, "split=2: the layers of this decoder are 0 to 1"),
        ({"variant": "dense_former", "options": {"period": 3}}, "period=3: the layers of this decoder are 1 to 2"),
        (
            {"options": "norm_type=rms"},
            """options must be a dictionary such as {"norm_type": "rms"}, not 'norm_type=""",
        ),
        ({"options": {"alpha": 1}}, "wiring 'b2t' has no option 'alpha'"),
        ({"options": {"init_scale": -1}}, "'-1' is not valid for option 'init_scale'"),
        (
            {"options": {"init": "fairseq,init_scale=2"}},
            "'fairseq,init_scale=2' is not valid for option 'init'",
        ),
        ({"variant": "deepnet", "options": {"init": "xavier"}}, "it draws its weights by its own rule; leave it out"),
        ({"variant": "complete_p", "options": {"mup": True}, "qk_norm": True}, "mup has no effect where qk_norm"),
        ({"variant": "altup", "options": {"active": 4}}, "option active=4, for the streams are 0 to 3"),
        ({"variant": "transparent_attention"}, "wiring 'transparent_attention' cannot be used there"),
        ({"variant": "transparent_attention", "task": "encoder"}, "cannot be used there"),
        ({"variant": "post_ln:0-0"}, "ends at layer 0"),
        ({"variant": "re_zero", "options": {"norm": "rms"}}, "has no norm, so norm_type would do nothing"),
        ({"variant": "re_zero:0-0,pre_ln:1-1", "options": {"re_zero.norm_type": "rms"}}, "has no norm, so norm_type"),
    ],
    ids=str,
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        language_model(**{"variant": "b2t"} | settings)
    assert message in str(error.value)


def refused(stack: Any, message: str, x: Tensor, **inputs: Any) -> None:
    with pytest.raises(UserError, match=message):
        stack(x, **inputs)


def test_inputs_that_a_stack_cannot_have() -> None:
    stack, encoder, x = language_model(), build_stack("b2t", **SIZES), vectors(5, 3)
    decoder = build_stack("b2t", **SIZES, task="decoder")
    refused(stack, r"x must be \(positions, sentences, 16\), not \(5, 3, 8\)", x[..., :8])
    refused(stack, "only a decoder of a pair reads a memory", x, memory=x)
    refused(decoder, "a decoder of a pair needs memory", x)
    refused(encoder, r"padding_mask must be .* here \(3, 5\), not \(5, 3\)", x, padding_mask=torch.zeros(5, 3).bool())
    refused(encoder, "padding_mask must be of torch.bool", x, padding_mask=torch.ones(3, 5))
    refused(decoder, "memory_padding_mask must be of torch.bool", x, memory=x, memory_padding_mask=torch.ones(3, 5))
    sentences = r"memory must be \(positions, sentences, channels\), here \(S, 3, 16\), not"
    refused(decoder, rf"{sentences} \(5, 2, 16\)", x, memory=x[:, :2])
    refused(decoder, rf"{sentences} \(5, 2, 16\)", x, memory=x[:, :2], cache=DecoderCache())
    refused(decoder, rf"{sentences} \(5, 3, 8\)", x, memory=x[..., :8])
    mask = torch.zeros(5, 3).bool()
    refused(decoder, r"memory_padding_mask must be .*\(3, 5\)", x, memory=x, memory_padding_mask=mask)
    refused(encoder, "an encoder's positions see later ones", x, cache=DecoderCache())
    bounds = torch.tensor([0, 5])
    refused(stack, "give cu_seqlens alone", x[:, :1], cu_seqlens=bounds, cache=DecoderCache())
    refused(stack, r"a packed x must be \(5, 1, C\), as its lengths say, not \(5, 3, 16\)", x, cu_seqlens=bounds)
    refused(decoder, "a packed memory must be", x, memory=x, memory_cu_seqlens=bounds)
    row, packed = x[:, :1], {"cu_seqlens": torch.arange(6), "memory": x[:, :1]}
    refused(decoder, "memory has 1 packed sentences, and x has 5", row, **packed, memory_cu_seqlens=bounds)
    refused(decoder, r"here \(S, 5, 16\), not \(5, 1, 16\)", row, **packed)
    refused(decoder, "not packed", row, **packed, memory_cu_seqlens=bounds, memory_padding_mask=mask)
    refused(encoder, "memory_padding_mask is of a memory", x, memory_padding_mask=mask.T)
    alone = decoder(x[:1].transpose(0, 1), cu_seqlens=torch.arange(4), memory=x)  # a memory that is not packed
    torch.testing.assert_close(alone.transpose(0, 1), decoder(x[:1], memory=x))
    refused(stack, "must begin at 0 and grow with each sentence", x[:, :1], cu_seqlens=torch.tensor([0, 5, 5]))


def test_nothing_is_said_where_nothing_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        language_model()
    assert not caplog.records


def test_loading_restores_positions_that_were_built_without_memory() -> None:
    embed = TokenEmbedding(20, 16)
    with torch.device("meta"):
        empty = TokenEmbedding(20, 16)
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(embed.state_dict())
    tokens = torch.tensor([[4, 5, 1], [6, 1, 1]])
    torch.testing.assert_close(empty(tokens), embed(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("variant", ["b2t", "dlcl_pre"])
def test_fast_paths_serve_a_stack(variant: str, mixed: bool) -> None:
    """Those of attention, which need no GPU; and under autocast all, where masked scores are in single precision."""
    torch.manual_seed(1)
    stack: Any = build_stack(variant, **SIZES, task="decoder").train()
    fast: Any = copy.deepcopy(stack)
    cpu.attach(fast, fast=mixed, keep_memory=False)
    backends = [type(run[1].self_attn_connection.attention) for run in (stack, fast)]
    assert backends[0] is not backends[1]
    results = []
    for run in (stack, fast):
        x = vectors(4, 3).requires_grad_()
        with cpu.tuned(run), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            out = run(x, memory=vectors(5, 3))
        # the squares of what a norm gives have one mean, whatever the weights
        gradients = torch.autograd.grad(out.pow(3).mean(), [x, *run.parameters()])
        results.append((out.detach(), *gradients))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=2e-2 if mixed else 1e-5)


def test_fast_paths_leave_sub_layers_of_others_and_what_is_frozen() -> None:
    model = LanguageModel("pre_ln", vocab=20, **SIZES)
    model.decoder.embed_tokens.requires_grad_(False)
    model.decoder.layers[0].self_attn.register_forward_hook(lambda _, inputs, out: (-out[0], None))
    model.decoder.embed_tokens.register_forward_hook(lambda _, inputs, out: -2 * out)
    wrapped = wrap("post_ln", [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)] * 2, dim=16)
    for stack, x in ((wrapped, vectors(4, 3)), (model, torch.arange(6).view(2, 3))):
        expected = stack(x)
        for fast in (False, True):
            cpu.attach(stack, fast=fast)
        with cpu.tuned(stack):
            torch.testing.assert_close(stack(x), expected)
