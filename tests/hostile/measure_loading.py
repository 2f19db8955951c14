"""Measures what checking a checkpoint of 500 MB costs: ``python tests/hostile/measure_loading.py``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from modern_fairseq.loading import checkpoints, safe_zip, tensor_digest


def fastest(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        state = {"model": {f"{n}.weight": torch.randn(1_250_000) for n in range(100)}, "args": None, "cfg": {}}
        torch.save(state, path)
        with path.open("rb") as file:
            print(f"checksums    {fastest(lambda: safe_zip.check(file, os.path.getsize(path))):.2f} s")
        print(f"whole load   {fastest(lambda: checkpoints.load_fairseq(path)):.2f} s")
        print(f"torch.load   {fastest(lambda: torch.load(path, weights_only=True)):.2f} s")
        print(f"digest       {fastest(lambda: tensor_digest.digest(state)):.2f} s")


if __name__ == "__main__":
    main()
