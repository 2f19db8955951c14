"""The pieces of a session on a device, the most valuable first."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.experiments.job import PLUGIN
from fairseq_residuals.experiments.runner import program
from fairseq_residuals.utils.checkout import ROOT

PER_PIECE = 6
"""Wirings whose cost is measured in one piece."""
IN_BLOCKS = "attention_residuals/block=6"
"""The form for which the paper states a cost; at 18 layers six blocks in the encoder, nine in the decoder."""


@dataclass(frozen=True)
class Piece:
    """Something to do on the device that ends within minutes and leaves its log."""

    name: str
    about: str
    """What it shows, for readers of the results."""
    minutes: float
    """What it is expected to take on a GPU; it is stopped after nine."""
    command: Sequence[str]


@dataclass(frozen=True)
class Sizes:
    """How large the work is."""

    updates: int
    bench: tuple[str, ...]
    """Of a training step."""
    rounds: tuple[str, ...]
    flavours: tuple[str, ...]
    """What is put after a wiring's name in the benchmark, the fastest last."""
    precisions: tuple[str, ...]
    tokens: int
    """Of a batch of real lengths."""
    big: tuple[str, ...]
    """A wide model."""
    batches: tuple[str, ...]
    """For it, sentences x tokens: which is best is to be found out."""
    searched: tuple[str, ...]
    """What is searched with."""
    deep: int
    """Layers of the deepest model."""
    kernels: tuple[str, ...]
    """Of what is timed op by op."""


GPU = Sizes(
    updates=200,
    bench=("--tokens", "112x32", "--layers", "18"),
    rounds=("--repeats", "3", "--steps", "10", "--warmup", "5"),
    flavours=("+graphs", "+graphs+fused"),
    precisions=("bf16", "fp16"),
    tokens=3584,
    big=("--layers", "6", "--dims", "big"),
    batches=("112x32", "448x32"),
    searched=("--tokens", "64x32", "--layers", "6", "--beam", "4"),
    deep=100,
    kernels=(),
)
CPU = Sizes(
    updates=4,
    bench=("--tokens", "2x8", "--layers", "1", "--dims", "32x64x2", "--vocabulary", "64"),
    rounds=("--repeats", "1", "--steps", "1", "--warmup", "1"),
    flavours=("",),
    precisions=("bf16",),
    tokens=400,
    big=("--layers", "1", "--dims", "64x128x2", "--vocabulary", "64"),
    batches=("2x8", "4x8"),
    searched=("--tokens", "2x8", "--layers", "1", "--dims", "32x64x2", "--vocabulary", "64"),
    deep=3,
    kernels=("--tokens", "8", "--dim", "16", "--precision", "fp32", "--times", "1", "--rounds", "1"),
)
"""For trying the session out where there is no GPU: every piece runs, and its figures mean nothing."""


def pieces(device: str, out: Path, data: Path) -> list[Piece]:
    """Return everything there is to do, the most valuable first.

    Args:
        out: the folder of the session's results.
        data: a binarized corpus with the languages "source" and "target".
    """
    sizes = CPU if device == "cpu" else GPU
    return [
        *_correctness(device),
        *_fairseqs_commands(device, out, data, sizes),
        *_real_lengths(device, out, sizes),
        *_figures(device, out, sizes),
        *_costs(device, out, sizes),
        *_searches(device, out, sizes),
    ]


def _correctness(device: str) -> Iterator[Piece]:
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "test_on_gpu.py")]
    yield Piece("tests", "every wiring in every task against a CPU, bf16, fp16, search, graphs", 4, tests)
    kernels = sorted(map(str, (ROOT / "tests" / "ops").glob("test_*.py")))
    yield Piece("kernels", "each kernel beside its reference", 3, [*tests[:-1], *kernels])
    verify = shlex.join([program("fairseq-residuals"), "verify", "--device", device])
    goldens = f"{shlex.quote(str(ROOT / 'tests' / 'golden'))}/*_S.npz"
    yield Piece("goldens", "the numbers of the authors' own code", 3, ["bash", "-c", f"{verify} {goldens}"])


def _fairseqs_commands(device: str, out: Path, data: Path, sizes: Sizes) -> Iterator[Piece]:
    for precision in sizes.precisions:
        folder = out / "work" / precision
        half, last = _train(device, data, folder, precision, sizes), folder / "checkpoint_last.pt"
        search = f"--user-dir {PLUGIN} --beam 4 --gen-subset valid --max-tokens 4000 --{precision}".split()
        steps = [
            [*half, "--max-update", str(sizes.updates // 2)],
            [*half, "--max-update", str(sizes.updates)],
            [program("fairseq-generate"), str(data), "--path", str(last), *search, *_where(device)],
        ]
        about = f"fairseq-train in {precision}, stopped half-way and resumed, and fairseq-generate with its model"
        yield Piece(f"commands-{precision}", about, 3, _one_after_the_other(steps))
    alone = _train(device, data, out / "work" / "two", sizes.precisions[0], sizes)
    rendezvous = ["--distributed-world-size", "2", "--distributed-init-method", "tcp://localhost:29511"]
    rendezvous += ["--distributed-backend", "gloo", "--distributed-no-spawn", "--max-update", str(sizes.updates // 2)]
    ranks = [[*alone, *rendezvous, "--distributed-rank", str(rank), "--device-id", "0"] for rank in (0, 1)]
    both = f"{shlex.join(ranks[1])} & other=$!; {shlex.join(ranks[0])} && wait $other"
    yield Piece("two-processes", "fairseq-train by two processes on one device", 2, ["bash", "-c", both])


def _real_lengths(device: str, out: Path, sizes: Sizes) -> Iterator[Piece]:
    module = "fairseq_residuals.experiments.device_session.real_lengths"
    rounds = "1" if device == "cpu" else "2"

    def piece(name: str, precision: str, tokens: int) -> Piece:
        flags = ["--out", str(out / name), "--precision", precision, "--max-tokens", str(tokens)]
        about = f"fairseq-train in {precision}, {tokens} tokens of all lengths: stock, by default, packed"
        return Piece(name, about, 7, [sys.executable, "-m", module, *flags, "--device", device, "--rounds", rounds])

    for precision in sizes.precisions:
        yield piece(f"real-lengths-{precision}", precision, sizes.tokens)
    yield piece("real-lengths-large", sizes.precisions[0], 4 * sizes.tokens)


def _figures(device: str, out: Path, sizes: Sizes) -> Iterator[Piece]:
    pair = ("--beside", "stock", "--variants", *(f"post_ln{flavour}" for flavour in sizes.flavours))
    for precision in sizes.precisions:
        command = _bench("train", device, out, f"train-{precision}", *sizes.bench, *sizes.rounds, *pair)
        yield Piece(
            f"train-{precision}", f"a step in {precision} beside stock", 5, [*command, "--precision", precision]
        )
    times = [sys.executable, "-m", "fairseq_residuals.benchmark.kernels", "--device", device, *sizes.kernels]
    about = "each kernel beside PyTorch, forward and backward, in turns"
    yield Piece("kernel-times", about, 2, [*times, "--markdown", str(out / "kernel-times.md")])
    yield _big(device, out, sizes)
    deep = ("--layers", str(sizes.deep), "--repeats", "1", "--beside", "--variants", f"post_ln{sizes.flavours[-1]}")
    command = _bench("train", device, out, "deep", *sizes.bench, *sizes.rounds, *deep)
    yield Piece("deep", f"a step of {sizes.deep} layers", 4, [*command, "--precision", sizes.precisions[0]])


def _big(device: str, out: Path, sizes: Sizes) -> Piece:
    who = ("--beside", "stock", "--variants", f"post_ln{sizes.flavours[-1]}", "--precision", sizes.precisions[0])
    commands = [
        _bench("train", device, out, f"big-{tokens}", *sizes.big, "--tokens", tokens, *sizes.rounds, *who)
        for tokens in sizes.batches
    ]
    return Piece("big", "a step of Transformer-big in batches of several sizes", 6, _one_after_the_other(commands))


def _costs(device: str, out: Path, sizes: Sizes) -> Iterator[Piece]:
    others = [wiring for wiring in sorted([*VARIANTS, IN_BLOCKS]) if wiring != "post_ln"]
    parts = [others[start : start + PER_PIECE] for start in range(0, len(others), PER_PIECE)]
    for number, names in enumerate(parts, 1):
        contestants = [f"{name}{sizes.flavours[-1]}" for name in ("post_ln", *names)]
        command = _bench("train", device, out, f"costs-{number}", *sizes.bench, *sizes.rounds, "--beside")
        about = f"a step of {', '.join(names)} beside Post-LN's"
        yield Piece(
            f"costs-{number}", about, 6, [*command, "--precision", sizes.precisions[0], "--variants", *contestants]
        )


def _searches(device: str, out: Path, sizes: Sizes) -> Iterator[Piece]:
    sides = ("--beside", "stock", *(() if device == "cpu" else ("ctranslate2",)), "--variants", "pre_ln")
    command = _bench("generate", device, out, "search", *sizes.searched, *sizes.rounds, *sides)
    precision = "fp32" if device == "cpu" else "fp16"
    yield Piece("search", "beam search beside stock and CTranslate2", 6, [*command, "--precision", precision])


def _train(device: str, data: Path, folder: Path, precision: str, sizes: Sizes) -> list[str]:
    every = str(sizes.updates // 2)
    flags = "--arch transformer_b2t_6l --task translation --optimizer adam --adam-betas (0.9,0.98) --lr 5e-4"
    flags += " --lr-scheduler inverse_sqrt --warmup-updates 100 --criterion label_smoothed_cross_entropy"
    flags += " --label-smoothing 0.1 --max-tokens 3584 --share-all-embeddings --no-epoch-checkpoints --log-format json"
    flags += " --log-interval 10 --seed 1 --num-workers 0"
    if device == "cpu":
        flags += " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2"
        flags += " --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 2"
    saved = ["--save-interval-updates", every, "--save-dir", str(folder), f"--{precision}", *_where(device)]
    return [program("fairseq-train"), str(data), "--user-dir", str(PLUGIN), *flags.split(), *saved]


def _where(device: str) -> list[str]:
    return ["--cpu"] if device == "cpu" else []


def _bench(theme: str, device: str, out: Path, name: str, *flags: str) -> list[str]:
    files = ["--csv", str(out / f"{name}.csv"), "--markdown", str(out / f"{name}.md")]
    return [program("fairseq-residuals"), "bench", theme, "--device", device, *flags, *files]


def _one_after_the_other(commands: Sequence[Sequence[str]]) -> list[str]:
    return ["bash", "-c", " && ".join(map(shlex.join, commands))]
