"""``fairseq-residuals bench``: what the variants cost beside stock fairseq and other libraries, measured in turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_residuals.lab.bench import growth
from fairseq_residuals.lab.bench.case import cases
from fairseq_residuals.lab.bench.contestants import CONTESTANTS, FLAVOURS, chosen
from fairseq_residuals.lab.bench.fairseq_models import settings_of
from fairseq_residuals.lab.bench.report import Report
from fairseq_residuals.lab.bench.rounds import Line, measure
from fairseq_residuals.lab.look.models import device_of
from fairseq_residuals.lab.look.output import MISTAKE_STATUS
from fairseq_residuals.lab.utils.tables import text_table
from fairseq_residuals.plugin.checkpoints.output_check import check_output
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from modern_fairseq.atomic_write import atomic_write

HELP = "measure speed and memory of the variants beside stock fairseq and other libraries, in turns"
TRAINED = ("stock", "stock-lean", "stock+kept", "torchscale", "x-transformers")
HALVES = ("fp32", "bf16", "fp16")
THEMES = {
    "train": "tokens per second of training, with forward and backward pass and optimizer apart",
    "generate": "tokens per second of beam search with hypotheses of one length",
    "memory": "the peak memory of training, with and without --checkpoint-activations",
    "scaling": "step time and memory against depth, with a straight line through them",
}
DEPTHS = {"train": [6], "generate": [6], "memory": [6, 18], "scaling": [6, 12, 24, 48, 100]}
REPEATS = {"train": 5, "generate": 5, "memory": 1, "scaling": 3}


def configure(parser: argparse.ArgumentParser) -> None:
    themes = parser.add_subparsers(dest="theme", required=True, metavar="THEME")
    for theme, words in THEMES.items():
        _configure(themes.add_parser(theme, help=words, description=words, allow_abbrev=False), theme)
    parser.set_defaults(mistake_status=MISTAKE_STATUS, further=[])


def _configure(parser: argparse.ArgumentParser, theme: str) -> None:
    generate = theme == "generate"
    beside = ("stock", "stock-lean", "ctranslate2") if generate else TRAINED
    flavours = "; ".join(f"NAME+{name}: {flavour.about}" for name, flavour in FLAVOURS.items())
    who = parser.add_argument_group("contestants", flavours)
    who.add_argument(
        "--variants",
        nargs="*",
        default=[name for name in VARIANTS if f"transformer_{name}" in ARCHITECTURES],
        metavar="NAME",
        help="of the plugin; NAME/k=v,... gives one its options (all)",
    )
    who.add_argument(
        "--beside",
        nargs="*",
        default=list(beside),
        metavar="NAME",
        help=f"of {', '.join(CONTESTANTS)} ({' '.join(beside)})",
    )
    who.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="'LABEL=NAME ...'",
        help="a NAME with variables of its process (VAR=value) and flags (--flag=value) of its own; NAME may also be"
        " MODULE:FUNCTION, which makes the model",
    )
    sizes = parser.add_argument_group("sizes", "every combination of --layers, --dims and --precision is measured")
    layers = " ".join(map(str, DEPTHS[theme]))
    sizes.add_argument("--layers", type=int, nargs="+", default=DEPTHS[theme], metavar="N", help=f"({layers})")
    sizes.add_argument(
        "--dims", nargs="+", default=["base"], metavar="SIZE", help="base, big, or 512x2048x8: dim, FFN, heads (base)"
    )
    precisions = (*HALVES, "int8") if generate else HALVES
    sizes.add_argument("--precision", nargs="+", choices=precisions, default=["fp32"], help="(fp32)")
    sizes.add_argument("--tokens", default="64x32", metavar="BxT", help="sentences x tokens a side (%(default)s)")
    sizes.add_argument("--vocabulary", type=int, default=32768, metavar="N", help="shared by both sides (%(default)s)")
    sizes.add_argument("--seed", type=int, default=1, metavar="N", help="of weights and batch (%(default)s)")
    if generate:
        sizes.add_argument("--beam", type=int, default=4, metavar="N", help="%(default)s")
    how = parser.add_argument_group("measuring")
    how.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    how.add_argument(
        "--repeats", type=int, default=REPEATS[theme], metavar="N", help="rounds, a process each (%(default)s)"
    )
    how.add_argument("--steps", type=int, default=3, metavar="N", help="timed in each process (%(default)s)")
    how.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before, not timed (%(default)s)")
    how.add_argument(
        "--timeout", type=float, default=3600, metavar="S", help="seconds that one process may take (%(default)g)"
    )
    files = parser.add_argument_group("files")
    files.add_argument("--csv", type=Path, metavar="FILE", help="everything that was measured")
    files.add_argument("--markdown", type=Path, metavar="FILE", help="the table for readers")
    if theme == "scaling":
        files.add_argument("--picture", type=Path, metavar="FILE", help="PNG: time and memory against depth")
    parser.set_defaults(**({} if generate else {"beam": 1}), picture=None)


def run(args: argparse.Namespace) -> int:
    """Exit status 0, also where some contestants could not be measured; 1 where none could.

    Raises:
        UserError: there is nothing of the kind to measure, or nowhere to write.
    """
    for path in filter(None, (args.csv, args.markdown, args.picture)):
        check_output(path, ())
    device = device_of(args.device)
    contestants = chosen(args)
    all_cases = cases(args, (False, True) if args.theme == "memory" else (False,))
    for contestant in contestants:
        # refused now, not after an hour
        settings_of(contestant, all_cases[0])
    # PyTorch's models do not compute in int8
    lines = [Line(c, case) for case in all_cases for c in contestants if case.precision != "int8" or not c.network]
    if not lines:
        raise UserError("there is nothing to measure: --precision int8 is for ctranslate2 alone")
    mode = "generate" if args.theme == "generate" else "train"
    report = Report(args.theme, lines, device)
    for _ in measure(lines, mode, args.repeats, args.timeout, limit=args.theme != "memory"):
        # a run of hours that is stopped keeps the rounds that it has made
        _write(args, report)
    print(report.text(), end="")
    if args.theme == "scaling":
        print(f"\n{_growth_table(lines)}")
    return 0 if any(line.found for line in lines) else 1


def _growth_table(lines: Sequence[Line]) -> str:
    return text_table(growth.HEAD, growth.table(growth.growths(lines)))


def _write(args: argparse.Namespace, report: Report) -> None:
    if args.csv:
        _write_file(args.csv, lambda path: path.write_text(report.csv(), encoding="utf-8"))
    if args.markdown:
        further = f"\n```\n{_growth_table(report.lines)}\n```\n" if args.theme == "scaling" else ""
        _write_file(args.markdown, lambda path: path.write_text(report.markdown() + further, encoding="utf-8"))
    if args.picture and (found := growth.growths(report.lines)):
        _write_file(args.picture, lambda path: growth.draw(found).savefig(path, format="png"))


def _write_file(path: Path, fill: Callable[[Path], object]) -> None:
    try:
        with atomic_write(path) as partial:
            fill(partial)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
