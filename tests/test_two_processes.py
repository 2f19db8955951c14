"""Two processes train a wiring of each shape as one does that takes two batches per update.

What does not depend on the wiring, and whole trainings, are in ``commands/test_processes.py``. Here both processes go
through them: PyTorch's DistributedDataParallel, as fairseq wraps a model in it, has to find a gradient for every
parameter, and in the same order in both.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fairseq.models.distributed_fairseq_model import DistributedFairseqModel
from tiny import build, perturb
from tiny_trainer import make_config, sample
from torch import Tensor, nn

from fairseq_residuals import build_stack
from tests.rotation import SHAPES_OF_CODE

PROCESSES = 2
SAMPLES = [sample(1, sentences=4), sample(2, sentences=3)]


def loss_of(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return (model(**batch["net_input"])[0].log_softmax(-1) ** 2).sum()


def wrong_gradient(variant: str, rank: int, group: Any, settings: Any) -> str:
    """Which parameter has another gradient than by one process; empty if none has."""
    alone, model = (perturb(build("translation", variant)).train() for _ in range(PROCESSES))
    together = DistributedFairseqModel(settings, model, group, torch.device("cpu"))
    for _ in range(2):  # the second forward pass complains of what the first has left without a gradient
        alone.zero_grad()
        model.zero_grad()
        sum(loss_of(alone, batch) for batch in SAMPLES).backward()  # type: ignore[union-attr]
        (loss_of(together, SAMPLES[rank]) * PROCESSES).backward()  # it takes the mean
    found = dict(model.named_parameters())
    for name, p in alone.named_parameters():
        ours = found[name].grad
        if p.grad is None or ours is None:
            return f"{name} has no gradient"
        if (ours - p.grad).abs().max() > 1e-5 * (1 + p.grad.abs().max()):
            return name
    return ""


def omegas_of_admin(rank: int, parallel: bool) -> list[float]:
    """What a stack of the library starts from, whose first batch is this process's."""
    torch.manual_seed(1)
    stack = build_stack("admin", depth=2, dim=8, heads=2, ffn_dim=16)
    run = nn.parallel.DistributedDataParallel(stack) if parallel else stack
    run(torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(rank)))
    return [omega.mean().item() for name, omega in stack.named_parameters() if name.endswith("omega")]


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch.distributed.nn")  # as fixes/distributed.py has it, before there is a group
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES)
    settings, found = make_config().distributed_training, {}
    for variant in SHAPES_OF_CODE:
        try:
            found[variant] = wrong_gradient(variant, rank, dist.group.WORLD, settings)
        except RuntimeError as error:  # in both processes alike
            found[variant] = str(error)
    found["omegas"] = omegas_of_admin(rank, True)
    (folder / str(rank)).write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two_processes")
    context = torch.multiprocessing.get_context("fork")
    processes = [context.Process(target=process, args=(rank, folder), daemon=True) for rank in range(PROCESSES)]
    for started in processes:
        started.start()
    for started in processes:
        started.join(300)
    assert [started.exitcode for started in processes] == [0] * PROCESSES
    return [json.loads((folder / str(rank)).read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize("variant", SHAPES_OF_CODE)
def test_gradients_are_those_of_one_process(variant: str, results: list[dict[str, Any]]) -> None:
    assert [found[variant] for found in results] == [""] * PROCESSES


def test_admin_starts_from_the_first_process_in_both(results: list[dict[str, Any]]) -> None:
    assert [found["omegas"] for found in results] == [omegas_of_admin(0, False)] * PROCESSES
    assert omegas_of_admin(0, False) != omegas_of_admin(1, False)
