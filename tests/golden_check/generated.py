"""What a model generates, beside what the authors' generator did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq.sequence_generator import SequenceGenerator

from tests.golden_check.fixtures import Generation


def score_errors(generation: Generation, model: Any) -> Iterator[float]:
    """Yield for each sentence the largest error of its hypotheses' scores; infinity if their tokens differ."""
    words = model.decoder.dictionary
    generator = SequenceGenerator(
        [model],
        words,
        beam_size=generation.tokens.size(1),
        max_len_a=0,
        max_len_b=generation.max_len,
        min_len=generation.min_len,
        len_penalty=generation.lenpen,
    )
    source = generation.prefix if generation.src_tokens is None else generation.src_tokens
    assert source is not None
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(words.pad()).sum(-1)}}
    sentences = generator.generate([model], sample, prefix_tokens=generation.prefix, bos_token=words.eos())
    for i, hypotheses in enumerate(sentences):
        lengths = [n for n in generation.tokens[i].ne(words.pad()).sum(-1).tolist() if n]
        if [h["tokens"].tolist() for h in hypotheses] != [
            generation.tokens[i, rank, :n].tolist() for rank, n in enumerate(lengths)
        ]:
            yield float("inf")
            continue
        by_score = (abs(float(h["score"]) - generation.scores[i, rank].item()) for rank, h in enumerate(hypotheses))
        by_position = (
            (h["positional_scores"] - generation.positional_scores[i, rank, :n]).abs().max().item()
            for rank, (h, n) in enumerate(zip(hypotheses, lengths, strict=True))
        )
        yield max(*by_score, *by_position)
