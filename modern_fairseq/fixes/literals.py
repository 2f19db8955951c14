"""Settings that fairseq evaluates as Python are read and not run."""

import ast
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override

LONGEST_TEXT = 100_000
"""Characters of a setting that are read; fairseq's own are some hundred."""
MOST_ITEMS = 100_000
"""Items of a list that products and sums build."""


def literals_only(module: types.ModuleType) -> None:
    """Read settings and manifests instead of running them.

    utils.py:791, :802 and :810, models with convolutions, the data set of raw audio
    (data/audio/raw_audio_dataset.py:57), the manifests of codes (data/codedataset.py:160) and three optimizers
    (optim/adamax.py:42, adafactor.py:55, fused_lamb.py:44) evaluate those that are text. Can go when fairseq does so
    no more.
    """
    module.eval = _literal  # type: ignore[attr-defined]


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


def read_overrides(module: types.ModuleType) -> None:
    """Read ``--model-overrides`` without running it, and refuse it in one sentence.

    generate.py:92, interactive.py:143, validate.py:57 and eval_lm.py:255 evaluate it. Can go when fairseq > 0.12.2 does
    both.
    """
    if hasattr(module, "ast"):
        override(module, "ast", literal_eval=_overrides)
    else:
        module.eval = _overrides  # type: ignore[attr-defined]


def _overrides(text: str) -> dict[str, Any]:
    try:
        return dict(ast.literal_eval(text.strip()))
    except (SyntaxError, TypeError, ValueError) as error:
        raise UserError(
            f"--model-overrides must be a dictionary as Python writes it, such as {{'data': 'DIR'}}, not {text!r}"
        ) from error


def read_betas(module: types.ModuleType) -> None:
    """Read ``--adam-betas`` without running it (optim/adam.py:91, cpu_adam.py:78).

    Can go when fairseq > 0.12.2 does so.
    """
    module.eval = betas  # type: ignore[attr-defined]


def betas(value: Any) -> tuple[float, float]:
    """Return the two numbers that ``--adam-betas`` gives, as text or as a list.

    Raises:
        UserError: they are no two numbers of at least 0 and less than 1.
    """
    try:
        first, second = map(float, ast.literal_eval(value.strip()) if isinstance(value, str) else value)
    except (SyntaxError, TypeError, ValueError):
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise UserError(
            f"--adam-betas must be two numbers of at least 0 and less than 1, such as '(0.9, 0.98)', not {value!r}"
        )
    return first, second
