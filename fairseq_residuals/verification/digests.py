"""Digests of short trainings: two runs with one seed are equal to the last bit.

``python -m fairseq_residuals.verification.digests FILE`` trains every variant and compares; ``--record`` records.
Processors and libraries round differently, so a file holds digests for each :func:`environment` in which it was
recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.models import build_model

from fairseq_residuals.checkpoints.fairseq_config import synthetic_dictionary
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.utils.documents import read_record
from fairseq_residuals.utils.tables import text_table
from modern_fairseq.atomic_write import atomic_write

WORDS, PAD, UPDATES, LETTERS = 24, 1, 3, 16
SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}

Digests = dict[str, str]
"""By variant, the first letters of a SHA-256."""


def environment() -> str:
    """Return what decides how numbers are rounded: PyTorch's build, the processor's maker, and its instructions."""
    try:
        maker = re.search(r"^vendor_id\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text(), re.M)
    except FileNotFoundError:  # no Linux
        maker = None
    processor = maker[1] if maker else platform.processor()
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()} {processor}, {instructions}"


def digest(variant: str, seed: int = 1) -> str:
    """Train a translation model of a variant for a few updates, with dropout, on one thread.

    Returns:
        a digest of the losses, of the parameters and of the random state afterwards.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(variant, seed)
    finally:
        torch.set_num_threads(threads)


def _train(variant: str, seed: int) -> str:
    torch.manual_seed(seed)
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SIZES.items()}
    words = synthetic_dictionary(WORDS)
    args = Namespace(arch=f"transformer_{variant}", dropout=0.1, share_all_embeddings=True, **sizes)
    model = build_model(args, Namespace(source_dictionary=words, target_dictionary=words)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total = hashlib.sha256()
    for _ in range(UPDATES):
        source, target = torch.randint(4, WORDS, (4, 7)), torch.randint(4, WORDS, (4, 6))
        source[1:, 5:] = target[2:, 4:] = PAD
        logits, _ = model(source, source.ne(PAD).sum(1), target.roll(1, 1))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total.update(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    total.update(torch.get_rng_state().numpy().tobytes())
    return total.hexdigest()[:LETTERS]


def read(path: Path) -> dict[str, Digests]:
    """Return the recorded digests by environment.

    Raises:
        UserError: the file is damaged.
    """
    return read_record(path)


def record(path: Path, digests: Digests) -> None:
    """Put digests into a file in place of those of the same environment; those of others stay."""
    recorded = read(path) if path.exists() else {}
    recorded[environment()] = dict(sorted(digests.items()))
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def _compare(recorded: Mapping[str, Digests], digests: Digests) -> int:
    known = recorded.get(environment())
    if known is None:
        raise UserError(f"no digests are recorded for {environment()}, but for {'; '.join(recorded)}: give --record")
    rows = [[name, value, known.get(name), value == known.get(name)] for name, value in digests.items()]
    print(
        text_table(["variant", "digest", "recorded", "same"], [[*row[:3], "yes" if row[3] else "NO"] for row in rows])
    )
    return 0 if all(row[3] for row in rows) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 if a digest is another than was recorded."""
    parser = argparse.ArgumentParser(prog="digests", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="such as tests/verification/digests.json")
    parser.add_argument("--record", action="store_true", help="record the digests of this environment")
    args = parser.parse_args(argv)
    try:
        recorded = {} if args.record else read(args.file)
        digests = {variant: digest(variant) for variant in sorted(VARIANTS)}
        if not args.record:
            return _compare(recorded, digests)
        record(args.file, digests)
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"recorded {len(digests)} digests for {environment()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
