"""Continuation of a sentence: greedily, by drawing, or by beam search; whatever computes the logits."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.settings import StackSettings
from fairseq_residuals.wirings.core.errors import UserError


class Steps(Protocol):
    """A callable that goes on with rows of tokens, and keeps what it has read of them."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read new tokens, (rows, T), and return the logits behind the last of them, (rows, words)."""

    def reorder(self, rows: Tensor) -> None:
        """Go on with other rows: row i continues row ``rows[i]``, which is of the same sentence."""


class Hypothesis(NamedTuple):
    """A finished sentence."""

    tokens: list[int]
    """The tokens with the end, without what the search began with."""
    score: float
    """The sum of log-probabilities over the length to the power of the penalty."""


@torch.no_grad()
def beam_search(
    steps: Steps, prompts: Tensor, *, beam: int, longest: int, length_penalty: float, padding: int, end: int
) -> list[list[Hypothesis]]:
    """Search a beam for each sentence, as ``fairseq-generate`` does.

    Args:
        steps: with as many rows as there are sentences times ``beam``, those of a sentence side by side.
        prompts: (sentences, T), what the decoder begins with.
        beam: hypotheses at a time, and in the end.
        longest: tokens before the end.
        length_penalty: to which power of the length a score is divided.
        padding: a token that is never chosen; -1: none.
        end: the token that ends a sentence.

    Returns:
        The finished hypotheses of each sentence, the best first.
    """
    sentences, device = len(prompts), prompts.device
    first_row = torch.arange(sentences, device=device)[:, None] * beam
    tokens = prompts.repeat_interleave(beam, 0)
    words = tokens[:, :0]
    # all rows of a sentence are the same at first, so only one of them counts
    scores = torch.full((sentences, beam), -torch.inf, device=device)
    scores[:, 0] = 0
    finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]
    for step in range(longest + 1):
        lprobs = steps(tokens).log_softmax(-1, dtype=torch.float32)
        _forbid(lprobs, padding, end, first=step == 0, last=step == longest)
        totals = scores[..., None] + lprobs.unflatten(0, (sentences, beam))
        best, places = totals.flatten(1).topk(min(2 * beam, totals[0].numel() - 1))
        rows, new = first_row + places // totals.size(2), places % totals.size(2)
        ends = new.eq(end)
        for i, rank in (ends[:, :beam] & best[:, :beam].isfinite()).nonzero().tolist():
            if len(finished[i]) < beam:
                sentence = [*words[rows[i, rank]].tolist(), end]
                finished[i].append(Hypothesis(sentence, float(best[i, rank]) / len(sentence) ** length_penalty))
        if step == longest or all(len(found) == beam for found in finished):
            break
        go_on = ends.byte().argsort(dim=1, stable=True)[:, :beam]
        chosen = rows.gather(1, go_on).flatten()
        tokens = new.gather(1, go_on).flatten()[:, None]
        scores = best.masked_fill(ends, -torch.inf).gather(1, go_on)
        words = torch.cat([words[chosen], tokens], 1)
        steps.reorder(chosen)
    return [sorted(found, key=lambda hypothesis: -hypothesis.score) for found in finished]


def _forbid(lprobs: Tensor, padding: int, end: int, *, first: bool, last: bool) -> None:
    """fairseq's rules: no padding, an end at the last position, and no empty sentence where there is another."""
    if padding >= 0:
        lprobs[:, padding] = -torch.inf
    if last:
        lprobs[:, :end] = lprobs[:, end + 1 :] = -torch.inf
    elif first:
        lprobs[:, end] = -torch.inf


@torch.no_grad()
def sample(
    steps: Steps, prompts: Tensor, *, longest: int, temperature: float, top_k: int, top_p: float, padding: int, end: int
) -> list[list[int]]:
    """Draw a continuation of each sentence, or at temperature 0 take the most probable token each time.

    Args:
        steps: with as many rows as there are sentences.
        prompts: (sentences, T), what the decoder begins with.
        longest: tokens at most.
        temperature: what logits are divided by.
        top_k: tokens to draw from, the most probable ones; 0: all.
        top_p: probability, among these, of the fewest tokens to draw from that have as much (Holtzman et al. 2020).
        padding: a token that is never chosen; -1: none.
        end: the token behind which a sentence ends; -1: none.

    Returns:
        New tokens of each sentence, with its end if it has one.
    """
    tokens, words = prompts, prompts[:, :0]
    for _ in range(longest):
        logits = steps(tokens).float()
        if padding >= 0:
            logits[:, padding] = -torch.inf
        tokens = _draw(logits / temperature, top_k, top_p) if temperature else logits.argmax(-1, keepdim=True)
        words = torch.cat([words, tokens], 1)
        if words.eq(end).any(1).all():
            break
    return [row[: row.index(end) + 1] if end in row else row for row in words.tolist()]


def _draw(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """(rows, words) -> (rows, 1)"""
    ordered, order = logits.topk(min(top_k or logits.size(-1), logits.size(-1)))
    probs = ordered.softmax(-1)
    # the probability of those before is less than top_p
    out = probs.cumsum(-1) - probs >= top_p
    out[:, 0] = False
    return order.gather(1, probs.masked_fill(out, 0).multinomial(1))


def check_tokens(name: str, tokens: Tensor, stack: StackSettings, *, dims: int) -> None:
    """Check what a user gives, of which a model would say less.

    Args:
        name: of the argument.
        tokens: (T) of one sentence, or (B, T), as ``dims`` says.

    Raises:
        UserError: tokens have another shape, are not those of the model, or are too many.
    """
    if tokens.dim() != dims or tokens.is_floating_point() or not tokens.numel():
        what = "the numbers of one sentence's tokens in a row" if dims == 1 else "(sentences, tokens), whole numbers"
        raise UserError(f"{name} must be {what}, not {tuple(tokens.shape)}")
    if tokens.min() < 0 or tokens.max() >= stack.words:
        raise UserError(f"{name} has tokens {tokens.min()} to {tokens.max()}, and the model {stack.words} words")
    if stack.positions == "learned" and tokens.size(-1) > stack.max_positions:
        raise UserError(f"{name} has {tokens.size(-1)} tokens, and the model reads at most {stack.max_positions}")
