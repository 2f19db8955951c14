"""A stack that the library builds computes what fairseq's model with the same weights computes, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fairseq_residuals import DecoderCache, TokenEmbedding, build_stack, contributions
from fairseq_residuals.wirings.core.config import options_of
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.fairseq_weights import load_fairseq_weights

SIZES: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "ffn_dim": 32}
DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
FLAGS = [f"--{name.replace('_', '-')}={p}" for name, p in DROPOUTS.items()]

TASKS = {
    variant: [t for t in ("translation", "language_modeling") if not v.refusal(alone=t != "translation", topmost=True)]
    for variant, v in sorted(VARIANTS.items())
}


def in_turn(first: int) -> list[tuple[str, str]]:
    """Each variant in one of its tasks, these in turn."""
    return [(tasks[(i + first) % len(tasks)], variant) for i, (variant, tasks) in enumerate(TASKS.items())]


def some_choices() -> list[tuple[str, str]]:
    """A choice of each variant that is for language models, in turn the first, the second, ..."""
    found = {variant: tiny.choices(variant) for variant, tasks in TASKS.items() if "language_modeling" in tasks}
    return [(variant, choices[i % len(choices)]) for i, (variant, choices) in enumerate(found.items()) if choices]


class Ours(nn.Module):
    """What a user of the library writes around the stacks, with the weights of a model of fairseq."""

    def __init__(self, task: str, variant: str, model: Any, **settings: Any) -> None:
        super().__init__()
        self.pair = task == "translation"
        state = model.state_dict()
        if self.pair:
            self.encoder = build_stack(variant, task="encoder", other_depth=2, **SIZES, **settings)
            self.encoder_embedding = embedding(model.encoder, settings)
            load_fairseq_weights(self.encoder, state, "encoder.")
        decoder = "decoder" if self.pair else "language_model"
        self.decoder = build_stack(variant, task=decoder, **SIZES, **settings)  # type: ignore[arg-type]
        self.decoder_embedding = embedding(model.decoder, settings)
        load_fairseq_weights(self.decoder, state, "decoder.")
        self.projection = model.decoder.output_projection

    def encode(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.pair:
            return {}
        padding = inputs["src_tokens"].eq(tiny.PAD)
        x = self.encoder_embedding(inputs["src_tokens"])
        x = x * ~padding.T.unsqueeze(-1)
        return {"memory": self.encoder(x, padding_mask=padding), "memory_padding_mask": padding}

    def logits(self, task: str, inputs: dict[str, Tensor]) -> Tensor:
        previous = tiny.target_tokens(task, inputs)
        padding = previous.eq(tiny.PAD)
        memory = self.encode(inputs)  # first, as under fairseq: dropout draws in this order
        out = self.decoder(self.decoder_embedding(previous), padding_mask=padding, **memory)
        return self.projection(out.transpose(0, 1))[~padding]  # type: ignore[no-any-return]

    def step_by_step(self, task: str, inputs: dict[str, Tensor], steps: Callable[[int], list[int]]) -> Tensor:
        previous, memory, cache, outputs = tiny.target_tokens(task, inputs), self.encode(inputs), DecoderCache(), []
        for positions in previous.split(steps(previous.size(1)), 1):
            padding = positions.eq(tiny.PAD) if positions.eq(tiny.PAD).any() else None
            x = self.decoder_embedding(positions, cache=cache)
            out = self.decoder(x, padding_mask=padding, cache=cache, **memory)
            outputs.append(self.projection(out.transpose(0, 1)))
        return torch.cat(outputs, 1)[previous.ne(tiny.PAD)]

    def packed(self, task: str, inputs: dict[str, Tensor]) -> Tensor:
        memory = {}
        if self.pair:
            x, cu_seqlens = pack(inputs["src_tokens"], self.encoder_embedding)
            memory = {"memory": self.encoder(x, cu_seqlens=cu_seqlens), "memory_cu_seqlens": cu_seqlens}
        x, cu_seqlens = pack(tiny.target_tokens(task, inputs), self.decoder_embedding)
        return self.projection(self.decoder(x, cu_seqlens=cu_seqlens, **memory)).squeeze(1)  # type: ignore[no-any-return]


def pack(tokens: Tensor, embed: TokenEmbedding) -> tuple[Tensor, Tensor]:
    """Embeddings of sentences end to end, and their cumulative lengths."""
    cu_seqlens = nn.functional.pad(tokens.ne(tiny.PAD).sum(1).cumsum(0), (1, 0))
    return embed(tokens[tokens.ne(tiny.PAD)][None], cu_seqlens=cu_seqlens), cu_seqlens


def embedding(owner: Any, settings: dict[str, Any]) -> TokenEmbedding:
    words, dim = owner.embed_tokens.weight.shape
    embed = TokenEmbedding(words, dim, padding_idx=tiny.PAD, dropout=settings.get("dropout", 0.0))
    embed.embed_tokens.load_state_dict(owner.embed_tokens.state_dict())
    return embed


def gradients(owner: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in owner.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("task", "variant"), in_turn(0))
def test_evaluation_decoding_and_packed_sentences(task: str, variant: str) -> None:
    model, inputs = tiny.perturb(tiny.build(task, variant)), tiny.batch(task)
    ours = Ours(task, variant, model).eval()
    with torch.no_grad():
        expected = tiny.logits(model, task, inputs)
        assert torch.equal(ours.logits(task, inputs), expected)
        assert torch.equal(ours.step_by_step(task, inputs, lambda n: [1] * n), tiny.step_by_step(model, task, inputs))
        # what fairseq cannot do: a prompt at once, and sentences end to end
        for other in (ours.step_by_step(task, inputs, lambda n: [3, *[1] * (n - 3)]), ours.packed(task, inputs)):
            torch.testing.assert_close(other, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("variant", "choice"),
    some_choices() + [("b2t", choice) for choice in ("norm_type=rms", "norm_type=dyt", "value_residual=learnable")],
)
def test_options(variant: str, choice: str) -> None:
    task, (name, _, text) = "language_modeling", choice.partition("=")
    model, inputs = tiny.perturb(tiny.build(task, variant, "--residual-args", choice)), tiny.batch(task)
    option = options_of(VARIANTS[variant].Config)[name]
    ours = Ours(task, variant, model, options={name: option.parse(text)}).eval()
    with torch.no_grad():
        assert torch.equal(ours.logits(task, inputs), tiny.logits(model, task, inputs))


def test_a_list_of_variants() -> None:
    task, wiring = "language_modeling", "post_ln:0-0,dlcl_pre:1-1"
    model, inputs = tiny.perturb(tiny.build(task, "pre_ln", "--residual", wiring)), tiny.batch(task)
    ours = Ours(task, wiring, model).eval()
    with torch.no_grad():
        assert torch.equal(ours.logits(task, inputs), tiny.logits(model, task, inputs))


@pytest.mark.parametrize(("task", "variant"), in_turn(1))
def test_training(task: str, variant: str) -> None:
    """Dropout draws the same numbers, so that logits and gradients are equal too."""
    model, inputs = tiny.perturb(tiny.build(task, variant, *FLAGS)).train(), tiny.batch(task)
    ours = Ours(task, variant, model, **DROPOUTS).train()
    torch.manual_seed(3)
    expected = tiny.logits(model, task, inputs)
    torch.manual_seed(3)
    logits = ours.logits(task, inputs)
    assert torch.equal(logits, expected)
    weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
    (expected * weights).sum().backward()
    stack: Any = model.decoder.layers
    (logits * weights).sum().backward()
    torch.testing.assert_close(gradients(ours.decoder), gradients(stack), rtol=0, atol=0)


@pytest.mark.parametrize(("task", "variant"), [(task, v) for task, v in in_turn(0) if not VARIANTS[v].draws_weights])
def test_the_same_seed_draws_fairseqs_weights(task: str, variant: str) -> None:
    """Of attention and FFN, in the stack whose weights fairseq draws first.

    What comes after them differs: fairseq draws other things (the output projection) before the wiring draws its own.
    """
    model: Any = tiny.build(task, variant, "--residual-args", "init=fairseq")
    torch.manual_seed(1)
    pair = task == "translation"
    embedding, *_ = [TokenEmbedding(40, 16, padding_idx=tiny.PAD) for _ in range(1 + pair)]
    owner = model.encoder if pair else model.decoder
    own = {"task": "encoder", "other_depth": 2} if pair else {"task": "language_model"}
    stack = build_stack(variant, options={"init": "fairseq"}, embed_tokens=embedding.embed_tokens, **SIZES, **own)
    assert torch.equal(embedding.embed_tokens.weight, owner.embed_tokens.weight)
    theirs = dict(owner.layers.named_parameters())
    drawn = [name for name in theirs if "_proj." in name or ".fc" in name]
    assert drawn
    for name in drawn:
        assert torch.equal(stack.get_parameter(name), theirs[name]), name


def test_contributions_in_a_model_of_fairseq() -> None:
    encoder, decoder = tiny.stacks(tiny.perturb(tiny.build("translation", "b2t")))
    x, memory = torch.randn(5, 3, 16), torch.randn(6, 3, 16)
    for stack, beside in ((encoder, ()), (decoder, (memory,))):
        out = stack(x, *beside)
        terms = contributions(stack, x, *beside).terms
        torch.testing.assert_close(terms.sum(0), out[0] if beside else out, rtol=1e-4, atol=1e-5)
