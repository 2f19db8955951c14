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
GROUP = """
import tempfile, torch
import fairseq.distributed.utils
folder = tempfile.mkdtemp()
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("size", (1, 100_000), ids=("waiting for a place", "loading"))
def test_background_loading_does_not_abort_the_end(size: int) -> None:
    run = subprocess.run([sys.executable, "-c", LOADING.format(size=size)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_process_group_is_left() -> None:
    # exit handlers run last in, first out: this one, registered before fairseq's, sees what that one has left
    first = "import atexit, torch; atexit.register(lambda: print(torch.distributed.is_initialized()))"
    run = subprocess.run([sys.executable, "-c", first + GROUP], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "False\n", "")
