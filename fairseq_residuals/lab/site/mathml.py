"""Typeset a printed equation (docs/EQUATIONS.md) as MathML, which browsers draw without a network."""

from __future__ import annotations

import re
from html import escape

TOKEN = re.compile(r"(?:(?<=\^)-)?\d+(?:\.\d+)?(?:e-\d+)?|[A-Za-z]\w*'?|\.\.|<=|>=|!=|\s+|.")
SIGNS = {"*": "&#x22C5;", "<=": "&#x2264;", ">=": "&#x2265;", "!=": "&#x2260;", "..": "&#x2026;", "-": "&#x2212;"}
WORDS = ("with", "for", "where", "output", "mod", "per", "head", "is")
"""Words of the notation, which stand as text."""
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "lambda": "λ", "lambdas": "λ"}


def typeset(line: str) -> str:
    """Return an equation as HTML: its conditions as text, and an element ``math`` for each statement."""
    condition, colon, body = line.rpartition(": ")
    scope = f'<span class="where">{escape(condition)}</span>' if colon else ""
    lines = ([_Typesetter(part).row() for part in _breaks(statement)] for statement in body.split("; "))
    math = '<math displaystyle="true">{}</math> '.format
    statements = "".join(f"<div>{''.join(map(math, parts))}</div>" for parts in lines)
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
                parts[-1] = f"<msup>{parts[-1]}{self.atom(self.tokens.pop(0))}</msup>"
            elif token.isspace():
                # two factors side by side
                word = parts and re.search(r"(</mi>|</mn>|</mrow>|</msub>|</msup>)$", parts[-1])
                if word and self.tokens and re.match(r"[\w(\[]", self.tokens[0]):
                    parts.append('<mspace width="0.2em"/>')
            else:
                parts.append(self.atom(token))
        return f"<mrow>{''.join(parts)}</mrow>"

    def atom(self, token: str) -> str:
        """Return a number, a sign, a group in brackets, or a name with its index and arguments."""
        if token[-1].isdigit() and not token[0].isalpha():
            return f"<mn>{token.replace('-', SIGNS['-'])}</mn>"
        if token in ("(", "["):
            close = {"(": ")", "[": "]"}[token]
            return f'<mrow><mo stretchy="false">{token}</mo>{self.row(close)}<mo stretchy="false">{close}</mo></mrow>'
        if token == "sum_":
            self.tokens.pop(0)
            inside = self.row("}").removeprefix("<mrow>").removesuffix("</mrow>")
            low, _, high = inside.partition("<mo>&#x2026;</mo>")
            return f"<munderover><mo>&#x2211;</mo><mrow>{low}</mrow><mrow>{high}</mrow></munderover>"
        if not token[0].isalpha():
            return f"<mo>{SIGNS.get(token, escape(token))}</mo>"
        if token in WORDS:
            return f'<mtext class="word">&#xA0;{token}&#xA0;</mtext>'
        if token == "sqrt":
            return f"<msqrt>{self.atom(self.tokens.pop(0))}</msqrt>"
        base, _, index = token.rstrip("'").partition("_")
        if index and (base == "softmax" or len(base) <= 5):
            name = f"<msub>{_letter(base)}<mtext>{index}</mtext></msub>"
        else:
            name = _letter(token.rstrip("'")) + ("<mo>&#x2032;</mo>" if token.endswith("'") else "")
        if self.tokens[:1] != ["["]:
            return name
        self.tokens.pop(0)
        return f"<msub><mrow>{name}</mrow>{self.row(']')}</msub>"


def _letter(name: str) -> str:
    return f"<mi>{GREEK.get(name, name.replace('_', '&#x2009;'))}</mi>"
