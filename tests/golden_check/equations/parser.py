"""Read equations: lines of text become :class:`.Equations`. docs/EQUATIONS.md has the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from tests.golden_check.equations.syntax import (
    Call,
    Comparison,
    Concatenation,
    Edit,
    EquationError,
    Equations,
    Expression,
    Line,
    Name,
    Number,
    Operation,
    Place,
    Range,
    Statement,
    Sum,
)

PLACES: dict[str, Place] = {"start": "start", "after each layer": "after_layer"}
WORDS = ("encoder", "decoder", "pair", "alone", "SA", "CA", "FFN", "attention", "first of a layer", "last of a layer")
"""Conditions that are no comparison."""
COMPARISONS = ("<=", ">=", "!=", "<", ">", "=")
KEYWORDS = ("with", "for", "per", "mod")
TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?(?:e-\d+)?)|([A-Za-z]\w*'?)|(\.\.|<=|>=|!=|[-+*/^()\[\]{},=<>]))")
NORM_TYPE = re.compile(r"LN is norm_type=(\w+)")


def parse(lines: Iterable[str]) -> Equations:
    """Return what ``lines`` say.

    Raises:
        EquationError: a line is not as the grammar has it.
    """
    parsed, norm_type = [], "layer"
    for text in lines:
        if kind := NORM_TYPE.fullmatch(text):
            norm_type = kind[1]
        else:
            parsed.append(_line(text))
    return Equations(tuple(parsed), norm_type)


def _line(text: str) -> Line:
    scope, body = [part.strip() for part in text.split(":", 1)] if ":" in text else ["", text]
    conditions = [part.strip() for part in scope.split(",")] if scope else []
    if body.startswith("where "):
        conditions, body = [*conditions, "start"], body.removeprefix("where ")
    otherwise = bool(conditions) and conditions[0].split()[:1] == ["else"]
    if otherwise:
        conditions[0] = conditions[0].removeprefix("else").strip()
    place: Place = "output" if body.startswith("output ") else "sublayer"
    place = next((PLACES[c] for c in conditions if c in PLACES), place)
    tests = tuple(c if c in WORDS else Parser(c).comparison() for c in conditions if c and c not in PLACES)
    return Line(text, place, tests, otherwise, tuple(s for part in body.split(";") for s in Parser(part).statements()))


class Parser:
    """Recursive descent through one statement or condition."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            token = TOKEN.match(text, at)
            if token is None:
                raise EquationError(f"{text!r} has {text[at:].lstrip()[:10]!r}, which is no part of an equation")
            self.tokens.append((token[token.lastindex or 0], token.start(token.lastindex or 0), token.end()))
            at = token.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def touches(self) -> bool:
        """Whether no space is between the last token and the next."""
        return 0 < self.at < len(self.tokens) and self.tokens[self.at - 1][2] == self.tokens[self.at][1]

    def take(self, *expected: str) -> str:
        token = self.peek()
        if not token or (expected and token not in expected):
            self.refuse(" or ".join(map(repr, expected)) or "something")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def refuse(self, expected: str) -> NoReturn:
        rest = self.text[self.tokens[self.at][1] :] if self.at < len(self.tokens) else "its end"
        raise EquationError(f"{self.text.strip()!r} is no equation: {expected} is expected before {rest!r}")

    def finish(self) -> None:
        if self.peek():
            self.refuse("the end")

    # statements and conditions

    def statements(self) -> list[Statement]:
        """One statement, or several with commas in between that share what stands behind the last."""
        if self.accept("output"):
            statements = [Statement("output", self.expression())]
        elif [token for token, *_ in self.tokens[:2]] == ["F", "with"]:
            self.take("F")
            statements = [Statement("F", None, edits=self.edits())]
        else:
            statements = [self.assignment()]
            while self.accept(","):
                statements.append(self.assignment())
        self.finish()
        return statements

    def assignment(self) -> Statement:
        target = self.name()
        index = self.list("[", "]") if self.touches() and self.peek() == "[" else ()
        self.take("=")
        value = self.expression()
        edits = self.edits() if self.peek() == "with" else ()
        return Statement(target, value, index, edits, self.ranges() if self.accept("for") else ())

    def edits(self) -> tuple[Edit, ...]:
        self.take("with")
        edits = []
        while True:
            target = self.name()
            self.take("=")
            value = self.expression()
            per_head = self.accept("per")
            if per_head:
                self.take("head")
            edits.append(Edit(target, value, per_head))
            if not self.accept(","):
                return tuple(edits)

    def ranges(self) -> tuple[Range, ...]:
        ranges = [self.range()]
        while self.accept(","):
            ranges.append(self.range())
        return tuple(ranges)

    def range(self) -> Range:
        name = self.name()
        self.take("=")
        first = self.expression()
        self.take("..")
        return Range(name, first, self.expression())

    def comparison(self) -> Comparison:
        left = self.expression()
        operator = self.take(*COMPARISONS)
        comparison = Comparison(operator, left, self.expression())
        self.finish()
        return comparison

    # expressions

    def expression(self) -> Expression:
        left = self.term()
        while self.peek() in ("+", "-"):
            left = Operation(self.take(), left, self.term())
        return left

    def term(self) -> Expression:
        left = self.factor()
        while True:
            if self.peek() in ("*", "/", "mod"):
                left = Operation(self.take(), left, self.factor())
            elif self.begins_a_factor():
                left = Operation("*", left, self.factor())
            else:
                return left

    def begins_a_factor(self) -> bool:
        token = self.peek()
        return bool(re.match(r"[\w(\[]", token)) and token not in KEYWORDS

    def factor(self) -> Expression:
        if self.accept("-"):
            return Operation("-", Number(0), self.factor())
        left = self.atom()
        return Operation("^", left, self.factor()) if self.accept("^") else left

    def atom(self) -> Expression:
        token = self.peek()
        if re.match(r"\d", token):
            number = self.take()
            return Number(float(number) if "." in number else int(number))
        if self.accept("("):
            inner = self.expression()
            self.take(")")
            return inner
        if token == "[":
            return self.concatenation()
        if token == "sum_":
            self.take()
            self.take("{")
            over = self.range()
            self.take("}")
            return Sum(over, self.term())
        name = self.name()
        index = self.list("[", "]") if self.touches() and self.peek() == "[" else ()
        if self.touches() and self.peek() == "(":
            return Call(name, self.list("(", ")"), index)
        return Name(name, index)

    def concatenation(self) -> Expression:
        self.take("[")
        parts = [self.expression()]
        over = self.range() if self.accept("for") else None
        while over is None and self.accept(","):
            parts.append(self.expression())
        self.take("]")
        return Concatenation(tuple(parts), over)

    def name(self) -> str:
        if not re.match(r"[A-Za-z]", self.peek()) or self.peek() in KEYWORDS:
            self.refuse("a name")
        return self.take()

    def list(self, opening: str, closing: str) -> tuple[Expression, ...]:
        self.take(opening)
        parts = [self.expression()]
        while self.accept(","):
            parts.append(self.expression())
        self.take(closing)
        return tuple(parts)
