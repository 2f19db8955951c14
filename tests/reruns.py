"""In place of CUDA graphs, where there may be no GPU: what a graph would replay runs again, and writes its results to
where they were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fairseq_residuals.generation import cuda_graph_cache
from fairseq_residuals.performance import cuda_graphs


class Rerun:
    """In place of a graph."""

    def __init__(self, work: Callable[[], Any], device: torch.device, pool: Any) -> None:
        self.work, self.result = work, work()
        self.with_gradients = torch.is_grad_enabled()
        self.graph = self

    def pool(self) -> None:
        """There is no memory of its own."""

    def replay(self) -> None:
        with torch.set_grad_enabled(self.with_gradients):
            made = self.work()
        for old, new in zip(tree_leaves(self.result), tree_leaves(made), strict=True):
            if old is not None:
                old.copy_(new)


def instead_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", Rerun)
    monkeypatch.setattr(cuda_graph_cache, "_LATEST", {})
    monkeypatch.setattr(cuda_graphs, "warm_up", lambda work, device: work())
    monkeypatch.setattr(cuda_graphs, "aside", lambda device: nullcontext())
    monkeypatch.setattr(cuda_graphs, "new_pool", lambda: None)
    monkeypatch.setattr(cuda_graphs, "taken_bytes", lambda device: 0)
    monkeypatch.setattr(cuda_graphs, "device_bytes", lambda device: 1)
