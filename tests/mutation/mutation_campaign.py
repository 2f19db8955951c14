"""Make mutants of ``core`` and ``variants``, and see which checks kill them.

    python tests/mutation/mutation_campaign.py --results mutants.jsonl [--count 300] [--only variants/b2t]

Each mutant lives in a process of its own, forked from one that has imported everything; a run that was broken off goes
on where it ended. The last lines are a table by kind of mistake (docs/VERIFICATION.md). The
status is 1 if a mutant survives that the list of equivalent ones does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from equivalent import EQUIVALENT
from mutants import Mutant, all_mutants
from mutation_checks import Check, contract_checks, drawn_checks, equation_checks, file_checks, golden_checks

from fairseq_residuals.core.registry import VARIANTS

LIMIT = 240
"""Seconds for one mutant; one that runs on is killed by that."""
DRAWN, GOLDENS, CONTRACTS = 3, 6, 2
"""The most variants, files, and variants again, that a mutant of what all share is tried on."""
Touched = dict[str, list[str]]
"""By the name of a check, the functions of ``core`` and ``variants`` that it runs, as module:function."""


def in_child(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns in a forked process, as JSON has it; None if that process does not end well."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if status == 0 else None


def trace(checks: Iterable[Check]) -> Touched:
    """Run checks that must hold, and note what they touch."""
    touched: Touched = {}
    for check in checks:
        functions: set[str] = set()

        def note(frame: Any, event: str, argument: Any, functions: set[str] = functions) -> None:
            place = frame.f_code.co_filename.partition("fairseq_residuals/")[2]
            if event == "call" and place.startswith(("core/", "variants/")):
                functions.add(f"{place[:-3]}:{frame.f_code.co_qualname.partition('.<locals>')[0]}")

        sys.setprofile(note)
        try:
            check.run()
        finally:
            sys.setprofile(None)
        touched[check.name] = sorted(functions)
    return touched


class Campaign:
    """Try mutants on the checks that concern them, in processes of their own."""

    def __init__(self, modules: set[str]) -> None:
        """Trace what the printed equations of the variants run.

        Args:
            modules: those that have mutants.
        """
        self.equations = equation_checks(sorted(v for v in VARIANTS if _is_needed(v, modules)))
        touched: Touched | None = in_child(lambda: trace(self.equations))
        assert touched is not None, "a check fails without any mutant"
        self.touched = touched
        self.sound = set(touched)
        """The names of checks that hold without a mutant."""

    def checks_of(self, mutant: Mutant) -> Iterator[Check]:
        """Yield what may kill it, the cheapest first."""
        function = f"{mutant.module}:{mutant.function}"
        near = [check for check in self.equations if function in self.touched[check.name]]
        yield from near
        if not near:
            module = f"{mutant.module}:"
            near = [c for c in self.equations if any(f.startswith(module) for f in self.touched[c.name])]
        variants = list(dict.fromkeys(name for check in near for name in check.variants))
        yield from drawn_checks(variants[:DRAWN])
        own, others = file_checks(mutant.module, variants)
        yield from own
        yield from islice((check for check in golden_checks() if check.variants & set(variants)), GOLDENS)
        yield from contract_checks(variants[:CONTRACTS])
        yield from others

    def killer(self, mutant: Mutant) -> str:
        """Return the name of the check that fails first, which holds without the mutant; empty if none fails."""
        name = in_child(lambda: self._first_failure(mutant))
        for check in self.checks_of(mutant):
            if check.name == name and name not in self.sound:
                assert in_child(lambda check=check: check.run() or True), f"{name} fails without any mutant"
                self.sound.add(name)
        return "the process ends" if name is None else name

    def _first_failure(self, mutant: Mutant) -> str:
        try:
            mutant.install()
        except (SyntaxError, ValueError) as error:
            return f"Python: {error}"
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  lives as long as this process
        for check in self.checks_of(mutant):
            try:
                check.run()
            except BaseException:
                return check.name
        return ""


def run(mutants: list[Mutant], results: Path, seconds: float) -> dict[str, str]:
    """Try the mutants that ``results`` does not have yet, for so long; return who killed each."""
    known: dict[str, str] = {}
    if results.exists():
        known = {line["name"]: line["killer"] for line in map(json.loads, results.read_text().splitlines())}
    waiting = [mutant for mutant in mutants if mutant.name not in known]
    if not waiting:
        return known
    campaign = Campaign({m.module.rpartition("/")[2] for m in waiting})
    end = time.monotonic() + seconds
    with results.open("a") as file:
        for i, mutant in enumerate(waiting):
            begin = time.monotonic()
            if begin > end:
                break
            known[mutant.name] = campaign.killer(mutant)
            line = vars(mutant) | {"name": mutant.name, "killer": known[mutant.name]}
            print(json.dumps(line), file=file, flush=True)
            end_of_it, took = known[mutant.name] or "SURVIVES", time.monotonic() - begin
            print(f"{i + 1} of {len(waiting)}: {mutant.name} {end_of_it} ({took:.1f} s)", flush=True)
    return known


def _is_needed(variant: str, modules: set[str]) -> bool:
    """Whether mutants of only a few variants' modules concern it; those of ``core`` concern all."""
    lineage = {cls.__module__.rpartition(".")[2] for cls in VARIANTS[variant].__mro__}
    own = {path.stem for path in Path(sys.modules[VARIANTS[variant].__module__].__file__ or "").parent.glob("*.py")}
    return not modules <= own or bool(modules & lineage) or any(m.startswith("_") for m in modules)


def table(mutants: list[Mutant], killers: dict[str, str]) -> str:
    """Mutants by kind, and how they ended."""
    rows, tried = [], [mutant for mutant in mutants if mutant.name in killers]
    for kind in [*sorted({mutant.kind for mutant in tried}), "all"]:
        ends = Counter(_end(m, killers[m.name]) for m in tried if kind in (m.kind, "all"))
        rows.append(f"| {kind} | {ends.total()} | " + " | ".join(str(ends[end]) for end in ENDS) + " |")
    head = ["| Mistake | Mutants | " + " | ".join(ENDS) + " |", "|---|" + "--:|" * (len(ENDS) + 1)]
    return "\n".join([*head, *rows])


ENDS = ("printed equations", "authors' numbers", "contract", "other tests", "equivalent", "survive")


def _end(mutant: Mutant, killed_by: str) -> str:
    if not killed_by:
        return "equivalent" if _key(mutant) in EQUIVALENT else "survive"
    by = {"equations": ENDS[0], "golden": ENDS[1], "test_": ENDS[2]}
    return next((end for start, end in by.items() if killed_by.startswith(start)), ENDS[3])


def _key(mutant: Mutant) -> tuple[str, str, str]:
    return f"{mutant.module}:{mutant.function}", mutant.before, mutant.after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="a line for each mutant that was tried")
    parser.add_argument("--count", type=int, help="how many, chosen at random; all of them unless it is given")
    parser.add_argument("--seed", type=int, default=1, help="of the choice")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="go on to the next mutant for so long")
    args = parser.parse_args()
    torch.set_num_threads(1)
    mutants = [mutant for mutant in all_mutants() if args.only in mutant.name]
    if args.count is not None and args.count < len(mutants):
        mutants = random.Random(args.seed).sample(mutants, args.count)
    killers = run(mutants, args.results, args.seconds)
    print(table(mutants, killers))
    left = [m for m in mutants if not killers.get(m.name, "not tried") and _key(m) not in EQUIVALENT]
    for mutant in left:
        print(f"fairseq_residuals/{mutant.module}.py:{mutant.line}: {mutant.kind}: {mutant.before} -> {mutant.after}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
