"""Time steps or searches of contestants of `fairseq-residuals bench`, and profile one of each.

They run one after the other in this process: no rounds in turns, as that command has.

    python results/bench/h100-2026-11-22/measure.py train|generate PRECISION LAYERS SENTENCES CONTESTANT...
"""

import collections
import gc
import sys
import time

import torch
from fairseq_residuals.bench import worker
from fairseq_residuals.bench.case import Case
from fairseq_residuals.bench.contestants import parse, parse_also
from fairseq_residuals.bench.fairseq_models import Training
from fairseq_residuals.bench.products import now
from torch.profiler import ProfilerActivity, profile

GPU = torch.device("cuda")


def profiled(work):
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        work()
        torch.cuda.synchronize()
    taken, count = collections.Counter(), collections.Counter()
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken[event.name] += event.device_time
            count[event.name] += 1
    print(f"    gpu busy {sum(taken.values()) / 1e3:.2f} ms in {sum(count.values())} kernels", flush=True)
    for name, microseconds in taken.most_common(12):
        print(f"      {microseconds / 1e3:8.3f} ms {count[name]:5d} {name[:90]}")


def train(contestant, case):
    began = time.time()
    training = Training(worker._maker(contestant.network, "")(contestant, case), case)
    torch.cuda.synchronize()
    made = time.time()
    torch.cuda.reset_peak_memory_stats()
    while worker._step(training, GPU) is None:
        pass
    first = time.time()
    for _ in range(4):
        worker._step(training, GPU)
    timed = sorted(taken for _ in range(15) if (taken := worker._step(training, GPU)) is not None)
    torch.cuda.synchronize()
    start = time.time()
    for _ in range(10):
        training.backward(training.forward())
        training.update()
    torch.cuda.synchronize()
    free = (time.time() - start) / 10
    step, forward, backward, optimizer = (1e3 * seconds for seconds in timed[len(timed) // 2])
    print(
        f"{contestant.name} {case}: step {step:.1f} ms (fwd {forward:.1f} bwd {backward:.1f} opt {optimizer:.1f}),"
        f" unsynced {1e3 * free:.1f}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB,"
        f" made {made - began:.0f} s, first step {first - made:.1f} s",
        flush=True,
    )
    profiled(lambda: worker._step(training, GPU))


def generate(contestant, case):
    run = worker._maker(contestant.search, "")(contestant, case)
    for _ in range(2):
        tokens = run()
    times = []
    for _ in range(5):
        began = now(GPU)
        run()
        times.append(now(GPU) - began)
    middle = sorted(times)[2]
    print(
        f"{contestant.name} {case}: {tokens} tokens, {1e3 * middle:.1f} ms, {tokens / middle:.0f} tokens/s", flush=True
    )
    profiled(run)


mode, precision, layers, sentences, *names = sys.argv[1:]
for text in names:
    case = Case(int(layers), 512, 2048, 8, 32768, int(sentences), 32, precision, "cuda", 3, 10, 1, False, 4)
    {"train": train, "generate": generate}[mode](parse_also(text) if "=" in text else parse(text), case)
    gc.collect()
    torch.cuda.empty_cache()
