"""A process that is done ends with status 0, whatever its threads were doing."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADING = """
import torch
from fairseq.data.iterators import BufferedIterator
class Source:
    def __len__(self): return 10**6
    def __iter__(self):
        x = torch.randn(200, 200)
        while True:
            for _ in range(20): y = x @ x  # inside PyTorch nearly all the time
            yield y
batches = BufferedIterator({size}, Source())
next(batches)
"""


@pytest.mark.parametrize("size", (1, 100_000), ids=("waiting for a place", "loading"))
def test_background_loading_does_not_abort_the_end(size: int) -> None:
    run = subprocess.run([sys.executable, "-c", LOADING.format(size=size)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
