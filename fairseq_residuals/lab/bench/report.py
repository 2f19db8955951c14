"""The lines of a benchmark as tables: for the terminal, as Markdown, and as CSV with all that was measured."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import torch

from fairseq_residuals.lab.bench.contestants import STOCK
from fairseq_residuals.lab.bench.rounds import Line
from fairseq_residuals.lab.utils.machine import machine
from fairseq_residuals.lab.utils.tables import Cell, csv_text, markdown_table, text_table

MIB = 2**20
Column = Callable[[Line, Sequence[Line]], Cell]


def _of_middle(key: str) -> Column:
    return lambda line, _: line.middle().get(key) if line.found else None


def _mebibytes(key: str) -> Column:
    def column(line: Line, _: Sequence[Line]) -> Cell:
        value = line.median(key)
        return None if value is None else round(value / MIB, 1)

    return column


def _whole(key: str) -> Column:
    def column(line: Line, _: Sequence[Line]) -> Cell:
        value = line.median(key)
        return None if value is None else int(value)

    return column


def _speed(choose: Callable[[list[float]], float]) -> Column:
    """Return tokens per second, from the step that ``choose`` takes."""

    def column(line: Line, _: Sequence[Line]) -> Cell:
        return line.found[0]["tokens"] / choose([found["step"] for found in line.found]) if line.found else None

    return column


def _middle_step(line: Line, _: Sequence[Line]) -> Cell:
    return line.middle()["step"] if line.found else None


def _to_stock(key: str, faster: bool) -> Column:
    """Return the ratio to stock fairseq at the same case; ``faster``: of the inverse, so that more is better."""

    def column(line: Line, lines: Sequence[Line]) -> Cell:
        case = replace(line.case, precision="fp32") if line.case.precision == "int8" else line.case
        stock = next((x for x in lines if x.contestant.name == STOCK.name and x.case == case), None)
        if stock is None or not (stock.found and line.found):
            return None
        own, theirs = (x.middle()[key] if faster else x.median(key) for x in (line, stock))
        if not (own and theirs):
            return None
        return theirs / own if faster else own / theirs

    return column


def _share(line: Line, _: Sequence[Line]) -> Cell:
    return line.limit / line.middle()["step"] if line.limit and line.found else None


def _rate(line: Line, _: Sequence[Line]) -> Cell:
    return line.flops / line.middle()["step"] / 1e12 if line.flops and line.found else None


WHO: dict[str, Column] = {
    "contestant": lambda line, _: line.contestant.name,
    "layers": lambda line, _: line.case.layers,
    "dims": lambda line, _: line.case.dimensions,
    "precision": lambda line, _: line.case.precision,
}
SPEED: dict[str, Column] = {
    "tokens/s": lambda line, _: line.middle()["tokens"] / line.middle()["step"] if line.found else None,
    "least": _speed(max),
    "most": _speed(min),
}
AGAINST: dict[str, Column] = {"x stock": _to_stock("step", faster=True), "of matmul": _share, "TFLOP/s": _rate}
TRAINING: dict[str, Column] = {
    **SPEED,
    "step s": _middle_step,
    **{f"{phase} s": _of_middle(phase) for phase in ("forward", "backward", "optimizer")},
    "peak MiB": _mebibytes("peak_bytes"),
    "parameters": _whole("parameters"),
    **AGAINST,
}
COLUMNS: dict[str, dict[str, Column]] = {
    "train": TRAINING,
    "scaling": TRAINING,
    "generate": {**SPEED, "seconds": _middle_step, "peak MiB": _mebibytes("peak_bytes"), **AGAINST},
    "memory": {
        "recomputed": lambda line, _: "yes" if line.case.checkpoint_activations else "no",
        "peak MiB": _mebibytes("peak_bytes"),
        "before MiB": _mebibytes("bytes_before"),
        "parameters": _whole("parameters"),
        "parameters MiB": _mebibytes("parameter_bytes"),
        "x stock": _to_stock("peak_bytes", faster=False),
    },
}
LEGEND = {
    "tokens/s": "target tokens per second: those of the median round, with the least and the most of any round",
    "step s": "the median round's median step, and the phases of that same step",
    "peak MiB": "the most memory of its process (on a GPU: of PyTorch's tensors)",
    "before MiB": "of it, what the libraries took before the model was made",
    "recomputed": "activations are recomputed in the backward pass (--checkpoint-activations)",
    "of matmul": "the share of the step that its own matrix products take by torch.matmul, measured in the same rounds"
    " (in fp32 on a CPU through MKL or oneDNN, whichever is faster); - where its kernels hide them",
    "TFLOP/s": "of these products, which over the device's peak is the share of it that a step reaches",
}
STOCK_LEGEND = {
    True: "speed, as a multiple of stock fairseq's (int8: of its fp32)",
    False: "memory, as a multiple of stock fairseq's",
}


class Report:
    """What a run of the benchmark tells."""

    def __init__(self, theme: str, lines: Sequence[Line], device: torch.device) -> None:
        self.theme, self.lines = theme, lines
        self.columns = WHO | COLUMNS[theme]
        self.machine = machine(device) | {"date": datetime.date.today().isoformat()}

    def head(self) -> list[str]:
        """Return on what, when and how it was measured."""
        first = self.lines[0].case
        work = f"{first.sentences} sentences of {first.tokens} tokens a side, vocabulary {first.vocabulary}"
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
        remarks.append(f"x stock: {STOCK_LEGEND[self.theme != 'memory']}.")
        for contestant in {line.contestant.name: line.contestant for line in self.lines}.values():
            if about := "; ".join(filter(None, (contestant.about, contestant.own))):
                remarks.append(f"{contestant.name}: {about}.")
        return remarks + self._failures()

    def _failures(self) -> list[str]:
        """Return each failure once, with its cases unless it holds for all of its contestant's."""
        found: dict[tuple[str, str], list[str]] = {}
        for line in self.lines:
            if line.failure:
                found.setdefault((line.contestant.name, line.failure), []).append(str(line.case))
        cases = len({line.case for line in self.lines})
        return [
            f"{name}: {failure}." if len(where) == cases > 1 else f"{name} ({'; '.join(where)}): {failure}."
            for (name, failure), where in found.items()
        ]

    def rows(self) -> list[list[Cell]]:
        return [[column(line, self.lines) for column in self.columns.values()] for line in self.lines]

    def _shown(self) -> list[list[Cell]]:
        """Return a cell for readers: of large numbers no fractions."""
        return [[round(c) if isinstance(c, float) and c >= 1000 else c for c in row] for row in self.rows()]

    def text(self) -> str:
        return "\n".join([*self.head(), "", text_table([*self.columns], self._shown()), "", *self.remarks()]) + "\n"

    def markdown(self) -> str:
        table = markdown_table([*self.columns], self._shown())
        listed = [[f"- {line}" for line in lines] for lines in (self.head(), self.remarks())]
        return "\n".join([f"# bench {self.theme}", "", *listed[0], "", table, "", *listed[1]]) + "\n"

    def csv(self) -> str:
        """Return every cell with all its digits, and with what the head and the remarks tell of its line."""
        sizes = [asdict(line.case) for line in self.lines]
        more = [
            [line.limit, line.flops, len(line.found), line.failure or None, line.contestant.own or None]
            for line in self.lines
        ]
        head = [*self.columns, "matmul seconds", "flops", "rounds", "failure", "environment and flags"]
        head += [*(f"case {key}" for key in sizes[0]), *self.machine]
        rows = zip(self.rows(), more, sizes, strict=True)
        return csv_text(head, [[*row, *own, *size.values(), *self.machine.values()] for row, own, size in rows])
