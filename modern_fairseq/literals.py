"""Settings that fairseq evaluates as Python are read and not run."""

import ast
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override


def literals_only(module: types.ModuleType) -> None:
    """Settings of a checkpoint are read and not run: utils.py:791, :802 and :810, and models with convolutions,
    evaluate those that are text when a model is built. Can go when fairseq does so no more."""
    module.eval = _literal  # type: ignore[attr-defined]


def _literal(text: Any) -> Any:
    """Literals, and sums and products of them, as fairseq's convolutional models have: ``[(512, 3)] * 4``."""
    if not isinstance(text, str):
        raise TypeError("only text can be read")  # which fairseq expects of what is a value already

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            left, right = value(node.left), value(node.right)
            return left + right if isinstance(node.op, ast.Add) else left * right
        return ast.literal_eval(node)

    return value(ast.parse(text.strip(), mode="eval").body)


def read_overrides(module: types.ModuleType) -> None:
    """``--model-overrides`` is read, and refused in one sentence: generate.py:92, interactive.py:143, validate.py:57
    and eval_lm.py:255. Can go when fairseq > 0.12.2 does both."""
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
    """The same of ``--adam-betas``: optim/adam.py:91. Can go when fairseq > 0.12.2 reads it."""
    module.eval = betas  # type: ignore[attr-defined]


def betas(value: Any) -> tuple[float, float]:
    """The two numbers that ``--adam-betas`` gives, as text or as a list.

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
