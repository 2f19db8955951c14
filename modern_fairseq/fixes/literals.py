"""Settings that fairseq evaluates as Python are read and not run."""

import ast
import types
from typing import Any

from fairseq_residuals_errors import UserError

LONGEST_TEXT = 100_000
"""Characters of a setting that are read; fairseq's own are some hundred."""
MOST_ITEMS = 100_000
"""Items of a list that products and sums build."""


def literals_only(module: types.ModuleType) -> None:
    """Read settings and manifests instead of running them.

    utils.py:791, :802 and :810, models with convolutions, the data set of raw audio
    (data/audio/raw_audio_dataset.py:57), the manifests of codes (data/codedataset.py:160), optimizers
    (optim/adam.py:91 and others) and ``--model-overrides`` (fairseq_cli/validate.py:57, eval_lm.py:255) are evaluated
    where they are text. Can go when fairseq evaluates none of them.
    """
    module.eval = _literal  # type: ignore[attr-defined]


def betas_in_range(module: types.ModuleType) -> None:
    """Refuse betas of Adam that are not from 0 up to, but not including, 1 (optim/adam.py:91, cpu_adam.py:78).

    With ``(0.9, 1.0)`` no parameter changes, and nothing says so. Can go when fairseq > 0.12.2 checks them.
    """

    def read(text: Any) -> Any:
        betas = _literal(text)
        numbers = betas if isinstance(betas, tuple | list) else ()
        if len(numbers) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in numbers):
            raise UserError(
                f"--adam-betas must be two numbers from 0 to less than 1, such as '(0.9, 0.98)', not {text!r}"
            )
        return betas

    module.eval = read  # type: ignore[attr-defined]


def _literal(text: Any) -> Any:
    """Return literals, and sums and products of them, as fairseq's convolutional models have: ``[(512, 3)] * 4``."""
    if not isinstance(text, str):
        raise TypeError("only text can be read")  # which fairseq expects of what is a value already
    if len(text) > LONGEST_TEXT:
        raise UserError(f"text of {len(text):,} characters is not read as a value; at most {LONGEST_TEXT:,} are")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        raise UserError(
            f"{_shown(text)!r} is not read: it is no value as Python writes it, such as [(512, 3)] * 4, or nested too"
            " deeply"
        ) from None


def _value(node: ast.expr) -> Any:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Mult):
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        items = sum(len(side) for side in (left, right) if hasattr(side, "__len__"))
    else:
        items = max(_length(left, right), _length(right, left))
    if items > MOST_ITEMS:
        raise UserError(f"{_shown(ast.unparse(node))!r} stands for {items:,} items; at most {MOST_ITEMS:,} are built")
    return left + right if isinstance(node.op, ast.Add) else left * right


def _length(items: Any, times: Any) -> int:
    return len(items) * times if hasattr(items, "__len__") and isinstance(times, int) else 0


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
