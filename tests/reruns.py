"""In place of CUDA graphs, where there may be no GPU: what a graph would replay runs again, and writes its results to
where they were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_residuals.plugin.search import word_graph
from fairseq_residuals.plugin.speed import cuda_graphs

LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_consecutive", "bincount"}
"""Operations whose result, or its size, depends on values: a program waits for the device to know them."""


class NoLook(TorchDispatchMode):
    """Within it, looking at the values of a tensor is an error, as it is while a CUDA graph is recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        chosen = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in LOOKS or any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in chosen):
            raise RuntimeError(f"{name} looks at values while a graph is recorded")
        return func(*args, **(kwargs or {}))


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


class RerunWithoutLooks(Rerun):
    """In place of the graph of a word. Of a training step fairseq asks for shapes as tensors, whose values it looks at;
    on a CPU these cannot be told from others."""

    def __init__(self, work: Callable[[], Any], device: torch.device, pool: Any) -> None:
        with NoLook():
            super().__init__(work, device, pool)


def instead_of_graphs(monkeypatch: pytest.MonkeyPatch, graph: type[Rerun] = Rerun) -> None:
    monkeypatch.setattr(cuda_graphs, "Graph", graph)
    monkeypatch.setattr(word_graph, "_LATEST", {})
    monkeypatch.setattr(cuda_graphs, "warm_up", lambda work, device: work())
    monkeypatch.setattr(cuda_graphs, "aside", lambda device: nullcontext())
    monkeypatch.setattr(cuda_graphs, "new_pool", lambda: None)
    monkeypatch.setattr(cuda_graphs, "taken_bytes", lambda device: 0)
    monkeypatch.setattr(cuda_graphs, "device_bytes", lambda device: 1)
