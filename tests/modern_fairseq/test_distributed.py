"""Several processes on CPU."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import OmegaConf
from tiny_trainer import SGD, make_trainer, sample, update
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals_errors import UserError
from modern_fairseq.fixes import distributed


def configuration(**options):
    defaults = {
        "distributed_world_size": 2,
        "distributed_num_procs": 1,
        "distributed_rank": 0,
        "distributed_backend": "nccl",
        "distributed_init_method": None,
        "distributed_port": -1,
        "device_id": 0,
        "distributed_no_spawn": False,
        "pipeline_model_parallel": False,
        "tpu": False,
    }
    return OmegaConf.create(
        {
            "common": {"cpu": True, "tpu": False, "model_parallel_size": 1},
            "distributed_training": {**defaults, **options},
            "checkpoint": {"checkpoint_suffix": ""},
        }
    )


def threads_of_groups():
    """Names of the threads that still work for process groups; C++ aborts if it destroys one at exit."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if "gloo" in name)


def sum_of_ranks(cfg, folder):
    """Each rank writes the sum of (rank + 1) over all ranks, and the backend, to a file of its own."""
    rank = torch.distributed.get_rank()
    total = torch.tensor([rank + 1])
    torch.distributed.all_reduce(total)
    objects = distributed_utils.broadcast_object(
        {"cfg": OmegaConf.create({"from": rank}), "w": torch.full((2,), 7.0)} if rank == 0 else None,
        src_rank=0,
        group=distributed_utils.get_global_group(),
    )
    with open(os.path.join(folder, str(rank)), "w") as file:
        print(
            total.item(),
            torch.distributed.get_backend(),
            objects["cfg"]["from"],
            objects["w"].tolist(),
            file=file,
        )

    trained = DistributedDataParallel(torch.nn.Linear(1, 1))
    trained(torch.ones(1, 1)).sum().backward()

    def tell_whether_left():
        with open(os.path.join(folder, f"{rank}.group"), "w") as file:
            print("not left" if torch.distributed.is_initialized() else "left", *threads_of_groups(), file=file)

    atexit.register(tell_whether_left)


def fail_on_one_rank(cfg, error):
    if torch.distributed.get_rank() == 1:
        raise error
    time.sleep(300)  # the other one is ended by the parent; to wait for the first would be an error of its own


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch):
    for name in (
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
    ):
        monkeypatch.delenv(name, raising=False)


def test_two_processes_work_together(tmp_path):
    distributed_utils.call_main(configuration(), sum_of_ranks, folder=str(tmp_path))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {
        **{"0": "3 gloo 0 [7.0, 7.0]\n", "1": "3 gloo 0 [7.0, 7.0]\n"},
        **{"0.group": "left\n", "1.group": "left\n"},
    }


@pytest.fixture
def forks(monkeypatch):
    """Processes that need not import fairseq anew."""
    fork = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
    monkeypatch.setattr(torch.multiprocessing, "spawn", fork)


@pytest.mark.usefixtures("forks")
def test_a_users_mistake_on_any_rank_arrives_as_such():
    with pytest.raises(UserError, match=r"^no such thing as b3t$"):
        distributed_utils.call_main(configuration(), fail_on_one_rank, error=UserError("no such thing as b3t"))


@pytest.mark.usefixtures("forks")
def test_a_bug_on_any_rank_arrives_with_its_traceback():
    with pytest.raises(
        torch.multiprocessing.ProcessRaisedException, match=r"fail_on_one_rank(.|\n)*ZeroDivisionError: x"
    ):
        distributed_utils.call_main(configuration(), fail_on_one_rank, error=ZeroDivisionError("x"))


def test_one_process_is_not_spawned():
    calls = []
    distributed_utils.call_main(configuration(distributed_world_size=1), calls.append)
    assert len(calls) == 1
    assert not torch.distributed.is_initialized()


def test_a_later_rank_has_to_start_itself():
    with pytest.raises(UserError, match="--distributed-no-spawn"):
        distributed_utils.call_main(configuration(distributed_rank=1), print)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}, {}),
        ({"SLURM_JOB_NODELIST": "node[1-2]"}, {"distributed_port": 9999}),
    ],
    ids=["torchrun", "Slurm"],
)
def test_what_a_launcher_has_started_is_left_to_fairseq(monkeypatch, environment, options):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr(distributed_utils, "infer_init_method", lambda cfg: seen.append(cfg.distributed_init_method))
    distributed_utils.call_main(
        configuration(**options), lambda cfg: seen.append(cfg.distributed_training.distributed_backend)
    )
    assert seen == [None, "gloo"]


def test_ddp_gets_no_device_for_a_module_on_cpu(monkeypatch):
    monkeypatch.setattr(
        torch.nn.parallel.DistributedDataParallel, "__init__", lambda self, *a, **k: seen.update(k, args=a)
    )
    seen = {}
    linear = torch.nn.Linear(1, 1)
    distributed_fairseq_model.DistributedDataParallel(module=linear, device_ids=[0], output_device=0, bucket_cap_mb=3)
    assert seen == {"args": (linear,), "device_ids": None, "output_device": None, "bucket_cap_mb": 3}
    seen.clear()
    meta = types.SimpleNamespace(parameters=lambda: iter([torch.empty(1, device="meta")]))
    distributed_fairseq_model.DistributedDataParallel(module=meta, device_ids=[0], output_device=0)
    assert seen == {"args": (meta,), "device_ids": [0], "output_device": 0}


def test_an_update_counts_its_batches_beside_an_empty_one():
    alone, filled_up = (make_trainer(*SGD, "--update-freq", "2") for _ in range(2))
    for trainer in (alone, filled_up):
        trainer._dummy_batch = sample(2)
    expected = update(alone, sample(1, sentences=4))
    found = update(filled_up, sample(1, sentences=4), {})
    assert found["bsz"] == 4
    assert (found["loss"], found["gnorm"]) == (expected["loss"], expected["gnorm"])
    torch.testing.assert_close(filled_up.get_model().state_dict(), alone.get_model().state_dict())


TWO_PROCESSES = """
import os, sys, time, types
from modern_fairseq.fixes import distributed

def train(rank, main, cfg, kwargs):
    with open(f"{sys.argv[1]}/{os.getpid()}", "w"):
        pass
    while True:
        time.sleep(0.01)

if __name__ == "__main__":
    settings = types.SimpleNamespace
    cfg = settings(common=settings(cpu=True, tpu=False), distributed_training=settings(distributed_world_size=2))
    distributed._spawn(train, (None, cfg, {}), nprocs=2)
"""


def is_running(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_the_one_that_started_them(number, tmp_path):
    script, folder = tmp_path / "two.py", tmp_path / "pids"
    script.write_text(TWO_PROCESSES)
    folder.mkdir()
    workers = []
    # a session of its own: whoever presses Ctrl-C in a terminal sends SIGINT to all processes; and tests that run in
    # the background of a shell would pass on that SIGINT is ignored
    parent = subprocess.Popen(
        [sys.executable, script, folder],
        start_new_session=True,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(os.listdir(folder)) == 2)
        workers = [int(name) for name in os.listdir(folder)]
        parent.send_signal(number)
        assert parent.wait(120) == -number
        wait_for(lambda: not any(map(is_running, workers)))
    finally:
        for pid in filter(is_running, [parent.pid, *workers]):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("version", "chosen", "expected"), [((3, 14), None, ["fork"]), ((3, 14), "spawn", []), ((3, 13), None, [])]
)
def test_data_is_loaded_by_forks_as_before_python_3_14(version, chosen, expected, monkeypatch):
    """Unless the user has chosen: a server of processes would import fairseq anew in each epoch."""
    found = []
    monkeypatch.setattr(distributed.sys, "version_info", version)
    monkeypatch.setattr(distributed.sys, "platform", "linux")
    monkeypatch.setattr(torch.multiprocessing, "get_start_method", lambda allow_none: chosen)
    monkeypatch.setattr(torch.multiprocessing, "set_start_method", found.append)
    distributed.fork_to_load_data(types.ModuleType("fairseq_cli.train"))
    assert found == expected
