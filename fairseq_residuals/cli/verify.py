"""``fairseq-residuals verify FILE.npz...``: this plugin against what the authors' own code computed."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch

from fairseq_residuals.analysis.models import device_of
from fairseq_residuals.analysis.tables import markdown_table
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification import hosts
from fairseq_residuals.verification.golden_file import read_sidecar, variant_name
from fairseq_residuals.verification.golden_recipes import LackedVariant, OtherKind, refuse_other_kinds
from fairseq_residuals.verification.hosts.compare import compare as compare_newer
from fairseq_residuals.verification.parity import CPU, Parity, compare
from fairseq_residuals.verification.rebuild import read, rebuild

HELP = "compare with the authors' own code: rebuild the model of golden files and recompute everything in them"
HEAD = ("file", "variant", "activations", "logits", "loss", "gradients", "generation", "verdict")
EXPLANATION = """\
Largest errors, at positions that are not padding.
{}
An error beyond its tolerance that rounding to single precision explains is listed and is no failure."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE.npz",
        help="golden files, each with its description FILE.json beside it",
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    parser.add_argument("--per-layer", action="store_true", help="also list every error of every file")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if everything that was compared is within the tolerances, else 1. Files of other kinds are named,
    with what they are, and change nothing, unless there is nothing else.

    Raises:
        UserError: files that could not be compared, after the table of those that could.
    """
    # what a run prints before it trains says nothing here
    logging.disable(logging.INFO)
    try:
        return _verify(args.files, device_of(args.device), args.per_layer)
    finally:
        logging.disable(logging.NOTSET)


def _verify(files: list[Path], device: torch.device, per_layer: bool) -> int:
    rows: list[tuple[str, ...]] = []
    details: list[str] = []
    explanations: dict[str, None] = {}
    lacked: list[tuple[Path, str]] = []
    mistakes: list[str] = []
    for path in files:
        rows.append((path.name, *["-"] * 6, "not verified"))
        try:
            wiring, parity = compare_file(path, device)
        except OtherKind as reason:
            rows[-1] = (*rows[-1][:-1], "other kind")
            details.append(str(reason))
        except LackedVariant as mistake:
            lacked += mistake.files
        except UserError as mistake:
            mistakes.append(str(mistake))
        else:
            rows[-1] = _row(path, wiring, parity)
            explanations[parity.explanation] = None
            details += [f"{path.name}: {line}" for line in _details(parity, everything=per_layer)]
    if lacked:
        mistakes.append(str(LackedVariant(*lacked)))
    verdicts = {row[-1] for row in rows}
    if not mistakes and verdicts == {"other kind"}:
        raise UserError("; ".join(details))
    if verdicts & {"ok", "FAIL"}:
        table = markdown_table(HEAD, rows, left=len(HEAD))
        print("\n".join([table, "", EXPLANATION.format("\n".join(explanations)), *details]))
    if mistakes:
        raise UserError("; ".join(mistakes))
    return int("FAIL" in verdicts)


def compare_file(path: Path, device: torch.device = CPU) -> tuple[str, Parity]:
    """The wiring that a golden file of any kind is compared with, and its errors.

    Raises:
        LackedVariant: this plugin lacks its variant.
        OtherKind: it is no golden file, by its name.
        UserError: the file or its sidecar is missing or damaged, or it is not what its model needs.
    """
    refuse_other_kinds(path)
    sidecar = read_sidecar(path)
    recipe_of_newer = hosts.RECIPES.get(variant_name(path, sidecar))
    if recipe_of_newer is not None:
        return compare_newer(path, sidecar, recipe_of_newer, device)
    golden, recipe = read(path)
    return recipe.variant, compare(golden, rebuild(golden, recipe), device)


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
            line += f", beyond {parity.tolerances[name.split()[0]]:g}"
        if name in beyond and name not in failures:
            line += f", within the {parity.rounding[name]:.1e} of rounding"
        lines.append(line)
    return lines
