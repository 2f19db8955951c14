"""Typeset a printed equation (docs/EQUATIONS.md) as MathML, which browsers draw without a network."""

from __future__ import annotations

import re
from html import escape

TOKEN = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?|[A-Za-z]\w*'?|\.\.|<=|>=|!=|\s+|.")
SIGNS = {"*": "&#x22C5;", "<=": "&#x2264;", ">=": "&#x2265;", "!=": "&#x2260;", "..": "&#x2026;", "-": "&#x2212;"}
WORDS = ("with", "for", "where", "output", "mod", "per", "head", "is")
"""Words of the notation, which stand as text."""
BRACKETS = {"floor": "&#x230A;&#x230B;", "ceil": "&#x2308;&#x2309;", "dot": "&#x27E8;&#x27E9;", "abs": "||"}
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "lambda": "λ", "lambdas": "λ"}


def typeset(line: str) -> str:
    """Return an equation as HTML: its conditions as text, and an element ``math`` for each statement."""
    condition, colon, body = line.rpartition(": ")
    scope = f'<span class="where">{escape(condition)}</span>' if colon else ""
    statements = "".join(f"<div>{''.join(map(_math, _breaks(part)))}</div>" for part in body.split("; "))
    return f'<div class="equation">{scope}<div class="statements">{statements}</div></div>'


def _breaks(statement: str) -> list[str]:
    """Return the parts of a statement between which a line may end: before with and for, outside of brackets."""
    parts, depth = [""], 0
    for word in statement.split(" "):
        if depth == 0 and word in ("with", "for") and parts[-1]:
            parts.append("")
        depth += sum(word.count(c) for c in "([{") - sum(word.count(c) for c in ")]}")
        parts[-1] += f"{word} "
    return parts


def _math(text: str) -> str:
    return f'<math displaystyle="true">{_Typesetter(text).row()}</math> '


def _bracket(sign: str) -> str:
    return f'<mo stretchy="false">{sign}</mo>'


class _Typesetter:
    """Reads the tokens of one statement from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = TOKEN.findall(text.strip())

    def row(self, end: str = "") -> str:
        """Return what stands before the bracket ``end``, which is taken, as one row."""
        parts: list[str] = []
        while self.tokens:
            token = self.tokens.pop(0)
            if token == end:
                break
            if token == "^":
                parts[-1] = f"<msup>{parts[-1]}{self.exponent()}</msup>"
            elif token.isspace():
                # two factors side by side
                word = parts and re.search(r"(</mi>|</mn>|</mrow>|</msub>|</msup>)$", parts[-1])
                if word and self.tokens and re.match(r"[\w(\[]", self.tokens[0]):
                    parts.append('<mspace width="0.2em"/>')
            else:
                parts.append(self.atom(token))
        return f"<mrow>{''.join(parts)}</mrow>"

    def exponent(self) -> str:
        token = self.tokens.pop(0)
        if token == "-":
            return f"<mrow><mo>&#x2212;</mo>{self.atom(self.tokens.pop(0))}</mrow>"
        return self.row(")") if token == "(" else self.atom(token)

    def atom(self, token: str) -> str:
        """Return a number, a sign, a group in brackets, or a name with its index and arguments."""
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token in "([" and len(token) == 1:
            close = {"(": ")", "[": "]"}[token]
            return f"<mrow>{_bracket(token)}{self.row(close)}{_bracket(close)}</mrow>"
        if token == "sum_":
            self.tokens.pop(0)
            inside = self.row("}").removeprefix("<mrow>").removesuffix("</mrow>")
            low, _, high = inside.partition("<mo>&#x2026;</mo>")
            return f"<munderover><mo>&#x2211;</mo><mrow>{low}</mrow><mrow>{high}</mrow></munderover>"
        if not token[0].isalpha():
            return f"<mo>{SIGNS.get(token, escape(token))}</mo>"
        if token in WORDS:
            return f'<mtext class="word">&#xA0;{token}&#xA0;</mtext>'
        if self.tokens[:1] == ["("] and token in (*BRACKETS, "sqrt"):
            self.tokens.pop(0)
            inside = self.row(")")
            if token == "sqrt":
                return f"<msqrt>{inside}</msqrt>"
            left, right = re.findall("&#x[0-9A-F]+;|.", BRACKETS[token])
            return f"<mrow>{_bracket(left)}{inside}{_bracket(right)}</mrow>"
        return self.index(self.name(token))

    def name(self, token: str) -> str:
        base, _, index = token.rstrip("'").partition("_")
        prime = "<mo>&#x2032;</mo>" if token.endswith("'") else ""
        if base == "softmax" or (len(index) > 0 and len(base) <= 5):
            return f"<msub>{self.letter(base)}<mtext>{index}</mtext></msub>" if index else self.letter(base) + prime
        return self.letter(token.rstrip("'")) + prime

    def letter(self, name: str) -> str:
        upright = ' mathvariant="normal"' if len(name) == 1 and name == "F" else ""
        return f"<mi{upright}>{GREEK.get(name, name.replace('_', '&#x2009;'))}</mi>"

    def index(self, base: str) -> str:
        if self.tokens[:1] != ["["]:
            return base
        self.tokens.pop(0)
        return f"<msub><mrow>{base}</mrow>{self.row(']')}</msub>"
