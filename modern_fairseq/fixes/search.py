"""Beam search: flags that had no effect."""

import types
from typing import Any

import torch

from modern_fairseq.proxies import replaces


def ngrams_of_what_is_there(module: types.ModuleType) -> None:
    """Let ``--no-repeat-ngram-size`` compare the words so far (ngram_repeat_block.py:139).

    It compares the last n - 1 entries of a row that is as long as the longest hypothesis can be: padding, until then.
    So nothing was ever forbidden (fairseq issues 4709 and 5206).
    Can go when fairseq > 0.12.2 takes the words before ``step``.
    """

    @replaces(module.NGramRepeatBlock, "forward")
    def forward(
        original: Any, self: Any, tokens: torch.Tensor, lprobs: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        step = kwargs["step"] if "step" in kwargs else args[2]
        blocked: torch.Tensor = original(self, tokens[:, : step + 1], lprobs, *args, **kwargs)
        return blocked
