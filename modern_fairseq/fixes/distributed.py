"""Several processes: on CPU as well as on GPUs, with one sentence for an error in any of them."""

import functools
import importlib
import logging
import os
import sys
import tempfile
import types
from typing import Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq import mistakes
from modern_fairseq.proxies import ModuleProxy, override, replaces

_SPAWN_LOG = logging.getLogger("torch.multiprocessing.spawn")

_FOR_DATA = "fork" if sys.platform == "linux" else None
"""Start method of processes that load data: PyTorch's choice, which on Linux was a fork before Python 3.14."""


def _on_cpu(cfg: Any) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def _worker(rank: int, function: Any, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Run ``function`` in a spawned process; a user's mistake leaves it as a UserError."""
    if _on_cpu(cfg):
        # a spawned process spawns in turn: data workers would import fairseq anew in every epoch
        torch.multiprocessing.set_start_method(_FOR_DATA, force=True)
    try:
        function(rank, main, cfg, kwargs)
    except Exception as error:
        raise mistakes.explain(error) or error from error


def fork_to_load_data(module: types.ModuleType) -> None:
    """Fork the processes that load data on Linux, as before Python 3.14, unless the user has chosen otherwise.

    Python 3.14 has a server of processes start them, which imports fairseq anew. Can go when fairseq > 0.12.2 says how
    they start (data/iterators.py:499).
    """
    if sys.version_info >= (3, 14) and torch.multiprocessing.get_start_method(allow_none=True) is None:
        torch.multiprocessing.set_start_method(_FOR_DATA)


def _join(context: Any) -> None:
    """Wait for all processes; end them if this one is to end (Ctrl-C), which would wait for them otherwise."""
    try:
        while not context.join():
            pass
    except BaseException:
        for process in context.processes:
            process.terminate()
        raise


def _spawn(fn: Any, args: tuple[Any, Any, dict[str, Any]], nprocs: int, join: bool = True) -> None:
    cfg = args[1]
    if _on_cpu(cfg):
        nprocs = cfg.distributed_training.distributed_world_size
    _SPAWN_LOG.setLevel(logging.ERROR)  # that the other processes are ended too goes without saying
    try:
        _join(torch.multiprocessing.spawn(_worker, (fn, *args), nprocs=nprocs, join=False))
    except torch.multiprocessing.ProcessRaisedException as error:
        if UserError.NAME not in str(error):
            raise
        raise UserError(str(error)) from None  # of the traceback it keeps the sentence


def spawn_workers(module: types.ModuleType) -> None:
    """Spawn as many processes as asked for, and bring a user's mistake back from them.

    distributed/utils.py:347 spawns ``min(cuda.device_count(), world_size)`` processes: none on CPU, with
    exit status 0.  Can go when fairseq > 0.12.2 counts processes without CUDA; the error report can stay.
    """
    override(module, "torch", multiprocessing=ModuleProxy(torch.multiprocessing, spawn=_spawn))


def train_on_cpu(module: types.ModuleType) -> None:
    """Let ``--cpu --distributed-world-size 2`` find its processes (distributed/utils.py:71, :131, :335).

    fairseq asserts as many CUDA devices, and NCCL, its default backend, has no CPU.  The processes meet in a
    temporary file, so there is no port that another program could take, unless ``--distributed-port`` or
    ``--distributed-init-method`` says otherwise.  torchrun and Slurm start the processes themselves.
    Can go when fairseq > 0.12.2 supports several processes on CPU.
    """

    @replaces(module, "call_main")
    def call_main(original: Any, cfg: Any, main: Any, **kwargs: Any) -> Any:
        distributed = cfg.distributed_training
        if not _on_cpu(cfg):
            return original(cfg, main, **kwargs)
        if distributed.distributed_backend == "nccl":
            distributed.distributed_backend = "gloo"
        spawns = not (distributed.distributed_no_spawn or _launched(distributed))
        if spawns and distributed.distributed_rank not in (0, None):
            raise UserError(
                "on CPU, a --distributed-rank above 0 needs --distributed-no-spawn and one process per rank"
            )
        if not spawns or distributed.distributed_world_size <= 1 or distributed.distributed_init_method is not None:
            return original(cfg, main, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            distributed.distributed_init_method = (
                f"tcp://localhost:{distributed.distributed_port}"
                if distributed.distributed_port > 0
                else f"file://{folder}/rendezvous"
            )
            return original(cfg, main, **kwargs)


def _launched(distributed: Any) -> bool:
    """Return whether torchrun or Slurm has started this process as one of several (the tests that fairseq makes)."""
    torchrun = all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"))
    slurm = "SLURM_STEP_NODELIST" in os.environ or "SLURM_JOB_NODELIST" in os.environ
    return torchrun or (distributed.distributed_port > 0 and slurm)


def leave_when_done(module: types.ModuleType) -> None:
    """Leave the process group once training is done (distributed/utils.py:315-331 never does).

    Threads of the group may still run when C++ destroys them at exit, and a finished run ends with "terminate called
    without an active exception".  They end with the last reference to their group: fairseq keeps its second group for
    good, and torch.distributed.nn, which DistributedDataParallel imports, the default group of the time of its import
    (as the default value of arguments).  A process that fails does not wait for this: its error is the one to report.
    Can go when fairseq > 0.12.2 destroys its process groups.
    """

    @replaces(module, "distributed_main")
    def distributed_main(original: Any, *args: Any, **kwargs: Any) -> None:
        importlib.import_module("torch.distributed.nn")  # while there is no group yet
        original(*args, **kwargs)
        vars(module.get_global_group).pop("_global_group", None)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def ddp_on_cpu(module: types.ModuleType) -> None:
    """Hand no device to DistributedDataParallel for a module on CPU (models/distributed_fairseq_model.py:62).

    It raises "device_ids ... only work with single-device GPU modules" otherwise.
    Can go when fairseq > 0.12.2 leaves ``device_ids`` out on CPU.
    """
    original = module.DistributedDataParallel

    @functools.wraps(original, updated=())
    def distributed_data_parallel(module: torch.nn.Module, **kwargs: Any) -> torch.nn.Module:
        if next(module.parameters()).device.type == "cpu":
            kwargs |= {"device_ids": None, "output_device": None}
        return original(module, **kwargs)

    module.DistributedDataParallel = distributed_data_parallel  # type: ignore[attr-defined]


def leave_out_what_fills_up(module: types.ModuleType) -> None:
    """Count all batches of an epoch's last update (trainer.py:873, :895).

    Without a partner for its last batch, a process gets an empty one. With ``--update-freq`` that made it count none of
    the update's batches, in the log and in the mean that is the gradient. Fully sharded models need as many passes in
    each process. Can go when fairseq > 0.12.2 counts batch by batch.
    """

    @replaces(module.Trainer, "train_step")
    def train_step(original: Any, self: Any, samples: list[Any], raise_oom: bool = False) -> Any:
        whole = samples if self.is_fsdp else [sample for sample in samples if sample]
        return original(self, whole or samples[:1], raise_oom)


def use_in_one_process(module: types.ModuleType) -> None:
    """Use a model in one process, where fairseq would start one for each device (validate.py:147, interactive.py:313).

    fairseq-eval-lm printed the perplexity of the first process's share. fairseq-validate ended in a KeyError where a
    process had no partner for its last batch, and on CPU always. fairseq-interactive translated nothing, for its
    processes cannot read the standard input. Can go when fairseq > 0.12.2 brings the results together.
    """

    def call_main(cfg: Any, main: Any, **kwargs: Any) -> None:
        cfg.distributed_training.distributed_world_size = 1
        main(cfg, **kwargs)

    override(module, "distributed_utils", call_main=call_main)
