"""``fairseq-residuals bench``: what the wirings cost beside stock fairseq and other libraries, measured in turns.

The report for readers, a table in Markdown, goes to stdout; ``--csv`` keeps all that was measured.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fairseq_residuals.lab.bench import library as stacks
from fairseq_residuals.lab.bench.entries import Case, Entry, cases, chosen
from fairseq_residuals.lab.bench.fairseq_models import ENTRIES, STOCK, settings_of
from fairseq_residuals.lab.bench.rounds import Line, measure
from fairseq_residuals.lab.bench.worker import PARSE
from fairseq_residuals.lab.look.output import MISTAKE_STATUS
from fairseq_residuals.lab.look.subjects import device_of
from fairseq_residuals.lab.utils.machine import machine
from fairseq_residuals.lab.utils.tables import Cell, csv_text, markdown_table
from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_output
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.registry import VARIANTS
from modern_fairseq.atomic_write import atomic_write

HELP = "measure speed and memory of the wirings beside stock fairseq and other libraries, in turns"
WIRINGS = [name for name in VARIANTS if f"transformer_{name}" in ARCHITECTURES]


@dataclass(frozen=True)
class Theme:
    """Choices that one kind of measuring offers, and its defaults."""

    help: str
    entries: Mapping[str, Entry]
    """Entries beside wirings."""
    beside: Sequence[str]
    """Entries beside wirings that are measured unless others are named."""
    wirings: Sequence[str]
    precisions: Sequence[str]
    layers: str
    tokens: str
    baseline: str
    """The entry that the others are multiples of."""
    refuse: Callable[[Entry, Case], object] = settings_of


_TRAIN = Theme(
    "tokens per second and memory of training, with forward and backward pass and optimizer apart",
    ENTRIES,
    ("stock", "stock-lean"),
    WIRINGS,
    ("fp32", "bf16", "fp16"),
    "6",
    "64x32",
    STOCK.name,
)
THEMES = {
    "train": _TRAIN,
    "generate": replace(
        _TRAIN,
        help="tokens per second of beam search with hypotheses of one length",
    ),
    "library": Theme(
        f"training of stacks without fairseq, beside those of other libraries; flags are {', '.join(stacks.FLAGS)}",
        stacks.ENTRIES,
        tuple(stacks.ENTRIES),
        stacks.WIRINGS,
        ("fp32", "bf16"),
        "12",
        "8x128",
        stacks.WIRINGS[0],
        stacks.check,
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    themes = parser.add_subparsers(dest="theme", required=True, metavar="THEME")
    for name, theme in THEMES.items():
        _configure(themes.add_parser(name, help=theme.help, description=theme.help, allow_abbrev=False), name, theme)
    parser.set_defaults(mistake_status=MISTAKE_STATUS, further=[])


def _configure(parser: argparse.ArgumentParser, name: str, theme: Theme) -> None:
    parser.set_defaults(beam=1, vocabulary=5)
    who = parser.add_argument_group("entries")
    who.add_argument(
        "--wirings",
        "--variants",
        dest="variants",
        nargs="*",
        default=theme.wirings,
        metavar="NAME",
        help=f"NAME/k=v,... gives one its options ({'all' if theme.wirings is WIRINGS else ' '.join(theme.wirings)})",
    )
    who.add_argument(
        "--beside",
        nargs="*",
        default=theme.beside,
        metavar="NAME",
        help=f"of {', '.join(theme.entries)} ({' '.join(theme.beside)})",
    )
    who.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="'LABEL=NAME ...'",
        help="a NAME with variables of its process (VAR=value) and flags of its own",
    )
    sizes = parser.add_argument_group("sizes", "every combination of --layers, --dims and --precision is measured")
    sizes.add_argument(
        "--layers",
        nargs="+",
        default=[theme.layers],
        metavar="N",
        help=f"of each stack, or 12-6 for encoder and decoder ({theme.layers})",
    )
    sizes.add_argument(
        "--dims", nargs="+", default=["base"], metavar="SIZE", help="base, big, or 512x2048x8: dim, FFN, heads (base)"
    )
    sizes.add_argument("--precision", nargs="+", choices=theme.precisions, default=["fp32"], help="(fp32)")
    sizes.add_argument("--tokens", default=theme.tokens, metavar="BxT", help="sentences x tokens a side (%(default)s)")
    sizes.add_argument("--seed", type=int, default=1, metavar="N", help="of weights and batch (%(default)s)")
    if name != "library":
        sizes.add_argument("--vocabulary", type=int, default=32768, metavar="N", help="of both sides (%(default)s)")
    if name == "generate":
        sizes.add_argument("--beam", type=int, default=4, metavar="N", help="%(default)s")
    how = parser.add_argument_group("measuring")
    how.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    for flag, default, words in (
        ("repeats", 5, "rounds, a process each"),
        ("steps", 3, "timed in each process"),
        ("warmup", 2, "steps before, not timed"),
        ("timeout", 3600, "seconds that one process may take"),
    ):
        how.add_argument(f"--{flag}", type=int, default=default, metavar="N", help=f"{words} (%(default)s)")
    how.add_argument("--csv", type=Path, metavar="FILE", help="write everything that was measured, after each round")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, also where some entries could not be measured; 1 where none could.

    Raises:
        UserError: there is nothing of the kind to measure, or nowhere to write.
    """
    if args.csv:
        check_output(args.csv, (), overwrite=True)
    device = device_of(args.device)
    theme = THEMES[args.theme]
    entries = chosen(args, PARSE[args.theme])
    all_cases = cases(args)
    for entry in entries:
        # refused now, not after an hour
        for case in all_cases:
            theme.refuse(entry, case)
    lines = [Line(entry, case) for case in all_cases for entry in entries]
    report = Report(args.theme, lines, device)
    for _ in measure(lines, args.theme, args.repeats, args.timeout):
        # a run of hours that is stopped keeps the rounds that it has made
        if args.csv:
            with atomic_write(args.csv) as partial:
                partial.write_text(report.csv(), encoding="utf-8")
    print(report.markdown(), end="")
    return 0 if any(line.found for line in lines) else 1


MIB = 2**20
WHO = ("entry", "layers", "dims", "precision")
PHASES = ("forward", "backward", "optimizer")
LEGEND = {
    "tokens/s": "target tokens per second: those of the median round, with the least and the most of any round",
    "step s": "the median round's median step (a search is one), and the phases of that same step",
    "peak MiB": "the most memory of its process (on a GPU: of PyTorch's tensors)",
    "x stock": "speed, as a multiple of stock fairseq's in the same precision",
    "x pre_ln": "speed, as a multiple of pre_ln's in the same precision",
    "x memory": "the peak memory, as a multiple of that same entry's",
}


def cells(line: Line, lines: Sequence[Line], baseline: str) -> dict[str, Cell]:
    """Return the numbers of a line by column; a column that is not there has none.

    Args:
        lines: those of the table, among which ``baseline`` at the same case is looked for.
    """
    row: dict[str, Cell] = dict(
        zip(WHO, (str(line.entry), line.case.layers, line.case.dimensions, line.case.precision), strict=True)
    )
    if not line.found:
        return row
    middle, peak = line.middle(), line.median("peak_bytes")
    steps = {"tokens/s": middle["step"], "least": max(m["step"] for m in line.found)}
    steps["most"] = min(m["step"] for m in line.found)
    row |= {name: middle["tokens"] / step for name, step in steps.items()}
    row |= {"step s": middle["step"], "parameters": middle.get("parameters")}
    row |= {f"{phase} s": middle.get(phase) for phase in PHASES}
    if peak:
        row["peak MiB"] = round(peak / MIB, 1)
    base = next((x for x in lines if str(x.entry) == baseline and x.case == line.case), None)
    if base is not None and base.found:
        row[f"x {baseline}"] = base.middle()["step"] / middle["step"]
        if peak and (theirs := base.median("peak_bytes")):
            row["x memory"] = peak / theirs
    return row


class Report:
    """Report on a run of the benchmark."""

    def __init__(self, theme: str, lines: Sequence[Line], device: torch.device) -> None:
        self.theme, self.lines = theme, lines
        timed = ("step s",) if theme == "generate" else ("step s", *(f"{phase} s" for phase in PHASES))
        sized = ("peak MiB",) if theme == "generate" else ("peak MiB", "parameters")
        ratios = (f"x {THEMES[theme].baseline}", "x memory")
        self.columns = (*WHO, "tokens/s", "least", "most", *timed, *sized, *ratios)
        self.machine = machine(device) | {"date": datetime.date.today().isoformat()}

    def head(self) -> list[str]:
        """Return on what, when and how it was measured."""
        first = self.lines[0].case
        work = f"{first.sentences} sentences of {first.tokens} tokens"
        work += "" if self.theme == "library" else f" a side, vocabulary {first.vocabulary}"
        beam = f", beam {first.beam}" if self.theme == "generate" else ""
        rounds = max(len(line.found) for line in self.lines)
        how = f"rounds: {rounds}, each of {first.steps} timed steps after {first.warmup} that are not"
        head = [
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            f"{work}{beam}; {how}",
            f"command: {shlex.join(['fairseq-residuals', *sys.argv[1:]])}",
        ]
        if not torch.cuda.is_available():
            head.append("This machine has no GPU that PyTorch can use: none was measured.")
        return head

    def remarks(self) -> list[str]:
        """Return what the columns mean, what is not in the table, and why."""
        remarks = [f"{name}: {words}." for name, words in LEGEND.items() if name in self.columns]
        for entry in {str(line.entry): line.entry for line in self.lines}.values():
            if about := "; ".join(filter(None, (entry.about, entry.own))):
                remarks.append(f"{entry}: {about}.")
        failures: dict[tuple[str, str], list[str]] = {}
        for line in self.lines:
            if line.failure:
                failures.setdefault((str(line.entry), line.failure), []).append(str(line.case))
        return remarks + [f"{name} ({'; '.join(where)}): {why}." for (name, why), where in failures.items()]

    def rows(self) -> list[list[Cell]]:
        """Return the cells of every line, None where there is no number."""
        found = [cells(line, self.lines, THEMES[self.theme].baseline) for line in self.lines]
        return [[row.get(column) for column in self.columns] for row in found]

    def markdown(self) -> str:
        """Return the table for readers, between how it was measured and what its columns mean."""
        # of large numbers no fractions
        shown = [[round(c) if isinstance(c, float) and c >= 1000 else c for c in row] for row in self.rows()]
        table = markdown_table(self.columns, shown)
        listed = [[f"- {line}" for line in lines] for lines in (self.head(), self.remarks())]
        return "\n".join([f"# bench {self.theme}", "", *listed[0], "", table, "", *listed[1]]) + "\n"

    def csv(self) -> str:
        """Return every cell with all its digits, and with what the head and the remarks tell of its line."""
        sizes = [asdict(line.case) for line in self.lines]
        more = [[len(line.found), line.failure or None, line.entry.own or None] for line in self.lines]
        head = [*self.columns, "rounds", "failure", "environment and flags"]
        head += [*(f"case {key}" for key in sizes[0]), *self.machine]
        rows = zip(self.rows(), more, sizes, strict=True)
        return csv_text(head, [[*row, *own, *size.values(), *self.machine.values()] for row, own, size in rows])
