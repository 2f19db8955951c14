"""Changes good inputs at random and gives them to what reads such inputs: ``python tests/hostile/fuzz.py``.

The same arguments give the same inputs. ``--inputs N`` is their number (100,000); ``--seed S``; ``--kind KIND ...``
chooses among the kinds; ``--part K/N`` gives only the K-th of N parts; ``--show KIND NUMBER`` writes one input to
standard output. Prints each fault with the number of its input, and a line for each kind. Status 1 where there is a
fault: an exception that is no user's error, a traceback, something half-written, more than two seconds or a gigabyte.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
from fuzz_seeds import PIECES, corpus
from tiny_input import prepare

from modern_fairseq import mistakes

BATCH = 250
"""Inputs that one forked process is given."""
SHARES = {"command": 0.02, "fairseq command": 0.003, "run.yaml": 0.0015}
"""Of all inputs, for kinds that take a whole command each; the other kinds share the rest."""


class TooLong(BaseException):
    """An input took more than its time."""


def changed(kind: str, number: int, seed: int) -> bytes:
    """One input: a good one with a few changes; the first are the good ones themselves."""
    draw = random.Random(f"{seed} {kind} {number}")
    seeds = corpus()[kind]
    if number < len(seeds):
        return seeds[number]
    data = draw.choice(seeds)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        data = _change(data, draw, seeds)
    return data


def _change(data: bytes, draw: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    begin = draw.randint(0, len(data))
    end = min(len(data), begin + draw.choice((0, 1, 1, 2, 5, 20, 200)))
    words = [match.span() for match in re.finditer(rb"[\w.+-]+", data)] if len(data) < 100_000 else []
    if words and draw.random() < 0.5:
        begin, end = draw.choice(words)
    new = (
        lambda: draw.choice(PIECES),
        lambda: draw.choice(PIECES),
        lambda: b"",
        lambda: draw.randbytes(end - begin),
        lambda: data[begin:end] * draw.choice((2, 3, 50)),
        lambda: bytes(byte ^ 1 << draw.randint(0, 7) for byte in data[begin:end]),
        lambda: _part(draw.choice(seeds), draw),
    )
    if draw.random() < 0.05:
        return data[:begin]
    return data[:begin] + draw.choice(new)() + data[end:]


def _part(data: bytes, draw: random.Random) -> bytes:
    begin = draw.randint(0, len(data))
    return data[begin : begin + draw.randint(0, 100)]


def give(kind: str, numbers: range, seed: int, folder: Path) -> int:
    """Give inputs to their reader, in this process, and print a line of JSON for each: its number, whether it was
    refused, and what is wrong."""
    from fuzz_targets import READERS

    signal.signal(signal.SIGPROF, _too_long)
    for number in numbers:
        print(json.dumps([number]), flush=True)
        path = folder / "input"
        path.write_bytes(changed(kind, number, seed))
        refused, fault = False, ""
        try:
            signal.setitimer(signal.ITIMER_PROF, forked.SECONDS)
            READERS[kind](path)
        except TooLong:
            fault = f"more than {forked.SECONDS} s"
        except Exception as error:
            refused = mistakes.explain(error) is not None
            if not refused or number < len(corpus()[kind]):
                fault = f"{type(error).__name__}: {error}"[:300]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        forked.empty(folder)
        print(json.dumps([number, refused, fault]), flush=True)
    return 0


def _too_long(*_: Any) -> None:
    raise TooLong


def read(kind: str, numbers: range, seed: int, folder: Path) -> Iterator[tuple[int, bool, str]]:
    """Give inputs to their reader in forked processes; where one ends before its time, the next goes on."""
    numbers_left = numbers
    while numbers_left:
        batch = numbers_left[:BATCH]
        ended = forked.run(lambda batch=batch: give(kind, batch, seed, folder), folder, seconds=BATCH * forked.SECONDS)
        lines = [json.loads(line) for line in ended.out.splitlines() if re.match(r"\[\d+(, .*)?\]$", line)]
        yield from (tuple(line) for line in lines if len(line) == 3)
        last = lines[-1][0] if lines else batch[0]
        if ended.status != 0:
            yield last, False, f"the process ended with status {ended.status}: {ended.err[-200:]}"
            forked.empty(folder)
        numbers_left = numbers_left[numbers_left.index(last) + 1 :]


def run(kind: str, numbers: range, seed: int, folder: Path, inputs: Path) -> Iterator[tuple[int, bool, str]]:
    """Run the command that each input makes, in a forked process."""
    from fuzz_targets import COMMANDS

    for number in numbers:
        folder.mkdir(exist_ok=True)
        path = folder / "input"
        path.write_bytes(changed(kind, number, seed))
        argv = COMMANDS[kind](path, inputs)
        ended = forked.run(lambda argv=argv: forked.call(argv), folder, seconds=10 * forked.SECONDS)
        lines = ended.err.strip().splitlines() or [""]
        fault = ""
        if "Traceback" in ended.out + ended.err or ended.status < 0:
            fault = f"status {ended.status}: {lines[-1][:300]}"
        elif ended.status != 0 and not re.search(r"(?m)^[\w -]+: error: .", ended.err):
            fault = f"status {ended.status} without a sentence: {ended.err[-200:]}"
        elif partial := [p.name for p in folder.rglob("*") if re.search(r"\.atomic-write|\.partial|\.tmp", p.name)]:
            fault = f"half-written: {', '.join(partial)}"
        forked.empty(folder)
        yield number, ended.status != 0, fault


def numbers_of(kind: str, total: int, part: int, parts: int) -> range:
    """Return the numbers of the inputs of a kind, of which there are ``total`` of all kinds."""
    readers = len(corpus()) - len(SHARES)
    count = round(total * SHARES.get(kind, (1 - sum(SHARES.values())) / readers))
    return range(part, count, parts)


def tell(kind: str, counts: Counter[str]) -> None:
    inputs, refused, faults = (counts[name] for name in ("inputs", "refused", "faults"))
    print(f"{kind:16} {inputs:7,} inputs, {refused:7,} refused, {faults} faults", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--kind", nargs="+", metavar="KIND")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--show", nargs=2, metavar=("KIND", "NUMBER"))
    args = parser.parse_args()
    forked.import_everything()
    if args.show:
        sys.stdout.buffer.write(changed(args.show[0], int(args.show[1]), args.seed))
        return 0
    part, parts = map(int, args.part.split("/"))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        inputs, folder = Path(temporary, "inputs"), Path(temporary, "folder")
        prepare(inputs)
        for kind in args.kind or corpus():
            numbers = numbers_of(kind, args.inputs, part - 1, parts)
            whole = kind in SHARES
            results = run(kind, numbers, args.seed, folder, inputs) if whole else read(kind, numbers, args.seed, folder)
            of_kind: Counter[str] = Counter()
            for number, refused, fault in results:
                of_kind.update(inputs=1, refused=refused, faults=bool(fault))
                if fault:
                    print(f"{kind} {number}: {fault}", flush=True)
            counts += of_kind
            tell(kind, of_kind)
    tell("all", counts)
    return int(counts["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
