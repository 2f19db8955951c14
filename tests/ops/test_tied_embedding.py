"""The gradient of an embedding that is tied to the output projection: the same, in another way."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import PAD, build
from tiny_trainer import SGD, make_trainer, sample, update
from torch import Tensor, nn
from torch.nn.functional import embedding

from fairseq_residuals.wirings.ops.tied_embedding import TiedEmbedding

TIED = {
    "translation": ("--share-all-embeddings",),
    "language_modeling": ("--share-decoder-input-output-embed",),
}


def tied(words: int = 9, width: int = 4) -> tuple[TiedEmbedding, Tensor]:
    """One, and a copy of its weight."""
    torch.manual_seed(1)
    embed = TiedEmbedding(nn.Embedding(words, width, PAD))
    return embed, embed.weight.detach().clone().requires_grad_()


def loss(words: Tensor, embedded: Tensor, weight: Tensor) -> Tensor:
    """Of a model that embeds twice and projects."""
    return ((embedded.tanh() @ weight.t()).logsumexp(-1) * words).sum() + embedded.square().sum()


WORDS = torch.tensor([[3, 5, 3, 3], [7, 5, PAD, PAD]])


def test_gradient() -> None:
    embed, weight = tied()
    for times in (1, 2):  # the second pass adds to the first one's
        loss(WORDS, embed(WORDS) + embed(WORDS.flip(0)), embed.weight).backward()
        plain = embedding(WORDS, weight, PAD) + embedding(WORDS.flip(0), weight, PAD)
        loss(WORDS, plain, weight).backward()
        assert embed.weight.grad is not None and weight.grad is not None
        torch.testing.assert_close(embed.weight.grad, weight.grad, rtol=1e-6, atol=1e-7 * times)
    (found,) = torch.autograd.grad(loss(WORDS, embed(WORDS), embed.weight), embed.weight)
    (wanted,) = torch.autograd.grad(loss(WORDS, embedding(WORDS, weight, PAD), weight), weight)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_gradient_without_a_projection() -> None:
    """Padding has none, nor have words that are not there."""
    embed, weight = tied()
    embed(WORDS).square().sum().backward()
    embedding(WORDS, weight, PAD).square().sum().backward()
    assert embed.weight.grad is not None and weight.grad is not None
    assert torch.equal(embed.weight.grad, weight.grad) and embed.weight.grad.is_contiguous()
    assert embed.weight.grad[[0, PAD, 2]].eq(0).all()


def test_a_gradient_that_another_has_too() -> None:
    """What autograd hands to two weights is not changed for one of them."""
    embed, _ = tied()
    other = torch.zeros_like(embed.weight).requires_grad_()
    ((embed.weight + other).sum() + embed(WORDS).sum()).backward()
    assert other.grad is not None and other.grad.eq(1).all()
    assert embed.weight.grad is not None and embed.weight.grad[:, 0].tolist() == [1, 1, 1, 4, 1, 3, 1, 2, 1]


def test_a_pass_that_was_broken_off() -> None:
    embed, weight = tied()

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, _: Tensor) -> Tensor:  # type: ignore[override]
            raise ArithmeticError

    broken = Broken.apply(embed.weight)  # older than the embedding, so that its gradient comes after
    with pytest.raises(ArithmeticError):
        loss(WORDS, embed(WORDS), broken).backward()
    assert embed.weight.grad is None
    embed(WORDS).sum().backward()
    embedding(WORDS, weight, PAD).sum().backward()
    assert embed.weight.grad is not None and weight.grad is not None and torch.equal(embed.weight.grad, weight.grad)


def test_frequent_words_in_bf16() -> None:
    """A thousand terms of 0.01: one by one in bf16 they would add up to 4, where the next is less than half a step."""
    embed = tied()[0].bfloat16()
    (embed(torch.full((1000,), 3)) * 0.01).sum().backward()
    assert embed.weight.grad is not None
    torch.testing.assert_close(embed.weight.grad[3].float(), torch.full((4,), 10.0), rtol=0.005, atol=0)


@pytest.mark.parametrize("how", (copy.deepcopy, lambda embed: pickle.loads(pickle.dumps(embed))), ids=("", "pickled"))
def test_a_copy(how: Callable[[TiedEmbedding], TiedEmbedding]) -> None:
    embed, weight = tied()
    again = how(embed)
    loss(WORDS, again(WORDS), again.weight).backward()
    loss(WORDS, embedding(WORDS, weight, PAD), weight).backward()
    assert again.weight.grad is not None and weight.grad is not None
    torch.testing.assert_close(again.weight.grad, weight.grad, rtol=1e-6, atol=1e-7)
    assert embed.weight.grad is None


@pytest.mark.parametrize("task", TIED)
def test_where_it_is(task: str) -> None:
    """In fast models of which it is the output projection too, under the same name."""
    for flags, kind in ((("--fast-on-cpu",), TiedEmbedding), ((), nn.Embedding)):
        model = build(task, "post_ln", *flags, *TIED[task])
        embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        assert embeddings and all(type(m) is kind for m in embeddings)
        assert all(m.weight is model.decoder.output_projection.weight for m in embeddings)
    apart = build(task, "post_ln", "--fast-on-cpu")
    assert all(type(m) is nn.Embedding for m in apart.modules() if isinstance(m, nn.Embedding))
    assert build(task, "post_ln", *TIED[task]).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("criterion", ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"))
def test_training(monkeypatch: pytest.MonkeyPatch, criterion: str) -> None:
    """Updates of two batches each."""
    flags = (*SGD, "--fast-on-cpu", "--share-all-embeddings", "--update-freq", "2", "--criterion", criterion)

    def trained() -> dict[str, Tensor]:
        trainer = make_trainer(*flags)
        for _ in range(3):
            update(trainer, sample(), sample())
        return dict(trainer.get_model().named_parameters())

    found = trained()
    monkeypatch.setattr(TiedEmbedding, "forward", nn.Embedding.forward)
    torch.testing.assert_close(found, trained(), rtol=1e-5, atol=1e-6)
