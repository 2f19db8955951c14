"""Resume every variant in each task, precision and optimizer, and compare with the uninterrupted run to the last bit.

    PYTHONPATH=.:tests python tests/commands/exact_resume_campaign.py [--processes 2] [--only b2t mhc]

It prints each case before it and counts them in the end. If continuations differed, it names them and the status is 1.
In two processes (gloo) each has batches of its own.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from exact_pair import pair_flags
from fairseq.distributed import utils as distributed_utils
from test_exact_resume import OPTIMIZERS, PRECISIONS, assert_resumes_exactly, flags_of, tasks_of
from tiny_trainer import make_config

from fairseq_residuals.core.registry import VARIANTS


def try_all(variants: Sequence[str], folder: Path, pair: tuple[str, ...]) -> int:
    """Try them all, and return how many differed."""
    tried, differed, began = 0, [], time.monotonic()
    for variant in variants:
        for task, precision, optimizer in itertools.product(tasks_of(variant), PRECISIONS, OPTIMIZERS):
            case = f"{variant} {task} {precision} {optimizer}"
            print(f"{time.monotonic() - began:5.0f} s  {case}", flush=True)
            own = folder / case.replace(" ", "-")
            own.mkdir(exist_ok=True)
            try:
                assert_resumes_exactly(variant, (*flags_of(precision, optimizer), *pair), own, task)
            except AssertionError as error:
                differed.append(f"{case}: {error}")
            tried += 1
    print(f"{tried} cases, {tried - len(differed)} equal", *differed, sep="\n")
    return len(differed)


def main() -> int:
    """Try what was asked for, as one process or as both of two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--only", nargs="+", choices=sorted(VARIANTS), default=sorted(VARIANTS), metavar="VARIANT")
    parser.add_argument("--rank", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        pair = pair_flags(args.rank, args.folder)
        distributed_utils.distributed_init(make_config(*flags_of("fp32", "adam"), *pair))
        return int(try_all(args.only, args.folder, pair) > 0)
    with tempfile.TemporaryDirectory() as folder:
        if args.processes == 1:
            return int(try_all(args.only, Path(folder), ()) > 0)
        command = [sys.executable, __file__, "--only", *args.only, "--folder", folder, "--rank"]
        other = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
        status = subprocess.run([*command, "0"], check=False).returncode
        return status or other.wait()


if __name__ == "__main__":
    sys.exit(main())
