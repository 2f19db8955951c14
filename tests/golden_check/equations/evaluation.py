"""Run equations along the depth of a stack, by its parameters and sub-layers but without its wiring."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.stack import Stack
from tests.golden_check.equations.expressions import Expressions
from tests.golden_check.equations.functions import Value
from tests.golden_check.equations.names import Owners
from tests.golden_check.equations.syntax import Comparison, Equations, Line, Place, Statement


def evaluate(equations: Equations, stack: Stack, x: Tensor, context: Context) -> Tensor:
    """Return the output of the stack (T, B, C) for the embeddings ``x`` (T, B, C), as the equations have it.

    Args:
        stack: whose parameters and sub-layers are used; none of its connections runs.

    Raises:
        EquationError: the text names what is not there.
    """
    run = _Run(equations, stack, context, {"x": x, "l": 0})
    run.place("start", Owners(stack))
    k = 0
    for i in range(len(stack)):
        run.variables |= {"x_in": run.variables["x"], "l": i + 1}
        for e, (j, kind) in itertools.product(range(int(run.variables.get("E", 1))), enumerate(stack[i].kinds, 1)):
            run.layer, run.kind = i, kind
            run.variables |= {"k": k + j, "e": e + 1}
            run.place("sublayer", Owners(stack, i, kind))
        k += len(stack[i].kinds)
        run.layer, run.kind = None, None
        run.place("after_layer", Owners(stack))
    run.place("output", Owners(stack))
    output: Tensor = run.variables["output" if "output" in run.variables else "x"]
    return output


class _Run(Expressions):
    """Run one pass along the depth."""

    def place(self, place: Place, owners: Owners) -> None:
        """Run the lines that belong to where the pass is."""
        lines = list(self._lines(place, owners))
        self.edits = tuple(e for line in lines for s in line.statements if s.target == "F" for e in s.edits)
        for statement in (s for line in lines for s in line.statements if s.target != "F"):
            self._assign(statement, owners)

    def _lines(self, place: Place, owners: Owners) -> Iterator[Line]:
        """Yield the lines whose conditions hold; of those that "else" joins, the first."""
        chosen = False
        for line in self.equations.lines:
            if line.place != place:
                continue
            chosen = chosen and line.otherwise
            if not chosen and all(self._holds(c, owners) for c in line.conditions):
                chosen = True
                yield line

    def _holds(self, condition: str | Comparison, owners: Owners) -> bool:
        if isinstance(condition, Comparison):
            return bool(self.operate(condition, owners))
        shape, kinds = self.stack.shape, self.stack[self.layer].kinds if self.layer is not None else []
        return {
            "encoder": shape.stack == "encoder",
            "decoder": shape.stack == "decoder",
            "pair": shape.cross,
            "alone": not shape.cross,
            "attention": self.kind in ("self", "cross"),
            "SA": self.kind == "self",
            "CA": self.kind == "cross",
            "FFN": self.kind == "ffn",
            "first of a layer": kinds[:1] == [self.kind],
            "last of a layer": kinds[-1:] == [self.kind],
        }[condition]

    def _assign(self, statement: Statement, owners: Owners) -> None:
        target = self.per_kind(statement.target)
        assert statement.value is not None
        if not statement.index:
            self.variables[target] = self.value(statement.value, owners, statement.edits)
            return
        entries: dict[tuple[int, ...], Value] = {}
        outer = self.variables
        names = [over.name for over in statement.over]
        for values in itertools.product(*(self.range(over, owners) for over in statement.over)):
            if names:
                self.variables = outer | dict(zip(names, values, strict=True))
            place = self.index(statement.index, owners)
            entries[place] = self.value(statement.value, owners, statement.edits)
        old = outer.get(target)
        outer[target] = (old if isinstance(old, dict) else {}) | entries
        self.variables = outer
