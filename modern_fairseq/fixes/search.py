"""Beam search: flags that had no effect."""

import types
from typing import Any

import torch

from modern_fairseq.proxies import replaces


def ngrams_of_what_is_there(module: types.ModuleType) -> None:
    """Let ``--no-repeat-ngram-size`` compare the words so far (ngram_repeat_block.py:139).

    It compares the last n - 1 entries of a row that is as long as the longest hypothesis can be: padding, until then;
    of n = 1, all words with none. So nothing was ever forbidden (fairseq issues 4709 and 5206). What a prefix forces
    would be. Can go when fairseq > 0.12.2 takes the words before ``step``, and prefixes as they are.
    """

    @replaces(module.NGramRepeatBlock, "forward")
    def forward(
        original: Any, self: Any, tokens: torch.Tensor, lprobs: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        step = kwargs["step"] if "step" in kwargs else args[2]
        before = lprobs.clone()
        if self.no_repeat_ngram_size == 1:
            lprobs.scatter_(1, tokens[:, 1 : step + 1], -torch.inf)
        else:
            lprobs = original(self, tokens[:, : step + 1], lprobs, *args, **kwargs)
        # a word that is forced is the only one there is
        return before.where(before.isfinite().sum(1, keepdim=True).eq(1), lprobs)
