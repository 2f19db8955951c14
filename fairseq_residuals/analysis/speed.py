"""How fast a model generates: target tokens per second of beam search, timed several times."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_residuals.analysis.models import FairseqSubject
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.generation.beam_search import FasterSequenceGenerator, searchable

LONGEST = 200
"""Tokens of a translation, where the model is to end it by itself."""


@dataclass
class Timed:
    """One model, and what was timed of it."""

    label: str
    wiring: str
    encoder_layers: int
    decoder_layers: int
    generator: Any
    inputs: dict[str, torch.Tensor]
    model: Any
    tokens: int = 0
    """Of one run: those of the best hypothesis of every sentence, ends included."""
    seconds: list[float] = field(default_factory=list)

    def speeds(self) -> tuple[float, float, float]:
        """Return tokens per second: median, least, most."""
        found = [self.tokens / seconds for seconds in self.seconds]
        return statistics.median(found), min(found), max(found)


def prepare(
    subject: FairseqSubject, words: Any, label: str, depths: tuple[int, int], beam: int, target_tokens: int
) -> Timed:
    """Make a subject ready to be timed.

    Args:
        target_tokens: that every hypothesis has before its end; 0: as many as the model gives it.

    Raises:
        UserError: these are more than the decoder has positions for.
    """
    # as fairseq-generate does before it begins
    subject.model.make_generation_fast_(need_attn=False)
    longest, positions = target_tokens or LONGEST, subject.model.max_decoder_positions()
    if target_tokens >= positions:
        raise UserError(
            f"--target-tokens {target_tokens} and the end of a sentence do not fit into {label}, which has {positions}"
            " positions"
        )
    kind = FasterSequenceGenerator if searchable([subject.model]) else SequenceGenerator
    generator = kind(
        [subject.model], words, beam_size=beam, max_len_a=0, max_len_b=longest, min_len=max(1, target_tokens)
    )
    inputs = {k: v for k, v in subject.batch.sample["net_input"].items() if k != "prev_output_tokens"}
    return Timed(label, subject.wiring, *depths, generator, inputs, subject.model)


@torch.no_grad()
def generate(timed: Timed) -> tuple[int, float]:
    """Return tokens generated, and the seconds that it took."""
    _wait_for_device()
    began = time.perf_counter()
    found = timed.generator.generate([timed.model], {"net_input": timed.inputs})
    tokens = sum(len(hypotheses[0]["tokens"]) for hypotheses in found)
    _wait_for_device()
    return tokens, time.perf_counter() - began


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
