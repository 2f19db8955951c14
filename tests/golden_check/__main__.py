"""Compare with the authors' own code: rebuild the model of golden files and recompute everything in them.

::

    python -m tests.golden_check tests/golden/*.npz
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_residuals.lab.utils.tables import markdown_table
from fairseq_residuals.plugin.progress import quiet
from tests.golden_check.parity import Parity, compare_file
from tests.golden_check.recipes import OtherKind

HEAD = ("file", "variant", "activations", "logits", "loss", "gradients", "generation", "verdict")
EXPLANATION = """\
Largest errors, at positions that are not padding.
{}
An error beyond its tolerance that rounding to single precision explains is listed and is no failure."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; exit status 0 if something was compared, and all is within the tolerances, else 1.

    Files of other kinds are named, with what they are, and change nothing.
    """
    parser = argparse.ArgumentParser(prog="golden_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE.npz", help="golden files, each with its description FILE.json"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    parser.add_argument("--per-layer", action="store_true", help="also list every error of every file")
    args = parser.parse_args(argv)
    rows: list[tuple[str, ...]] = []
    details: list[str] = []
    explanations: dict[str, None] = {}
    for path in args.files:
        try:
            with quiet():
                wiring, parity = compare_file(path, torch.device(args.device))
        except OtherKind as reason:
            rows.append((path.name, *["-"] * 6, "other kind"))
            details.append(str(reason))
        except Exception as error:  # what one file lacks says nothing of the others
            rows.append((path.name, *["-"] * 6, "not read"))
            details.append(f"{path.name}: {type(error).__name__}: {error}")
        else:
            rows.append(_row(path, wiring, parity))
            explanations[parity.tolerances.explanation] = None
            details += [f"{path.name}: {line}" for line in _details(parity, everything=args.per_layer)]
    table = markdown_table(HEAD, rows, left=len(HEAD))
    print("\n".join([table, "", EXPLANATION.format("\n".join(explanations)), *details]))
    verdicts = {row[-1] for row in rows}
    return int("ok" not in verdicts or not verdicts <= {"ok", "other kind"})


def _row(path: Path, variant: str, parity: Parity) -> tuple[str, ...]:
    kinds = ("activations", "logits", "loss", "gradients")
    errors = [getattr(parity, kind).values() for kind in kinds]
    largest = [f"{max(values):.1e}" if values else "-" for values in errors]
    failures = parity.failures()
    agrees = not any(name.startswith("scores") for name in failures)
    generation = ("agrees" if agrees else "differs") if parity.scores else "not in the file"
    return (path.name, variant, *largest, generation, "FAIL" if failures else "ok")


def _details(parity: Parity, everything: bool) -> list[str]:
    beyond, failures = parity.beyond(), parity.failures()
    lines = parity.notes + [f"{name} not compared, nothing here computes it" for name in parity.not_compared]
    for name, error in (parity.errors() if everything else beyond).items():
        line = f"{name} {error:.1e}"
        if name in beyond:
            line += f", beyond {parity.limit(name):g}"
        if name in beyond and name not in failures:
            line += f", within the {parity.rounding[name]:.1e} of rounding"
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
