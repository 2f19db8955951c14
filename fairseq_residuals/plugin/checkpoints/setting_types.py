"""Values of a file, held against the types that fairseq's flags have. No value is parsed as a command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fairseq_residuals.wirings.core.errors import UserError

SCALARS = (str, bool, int, float)


def checked(action: argparse.Action | None, key: str, value: Any) -> Any:
    """Convert the value of a setting to what its flag gives.

    Args:
        action: the flag; None for a setting that has none.
        key: what messages call the setting.
        value: from a file.

    Raises:
        UserError: the value is not of the flag's type, or none of its choices.
    """
    if value is None:
        return None
    if action is None or isinstance(action.type, argparse.FileType):
        return _plain(key, value)
    if action.nargs == 0:
        return _switch(action, key, value)
    if action.nargs not in (None, "?"):
        items = value if isinstance(value, list | tuple) else [value]
        return [_item(action, key, item) for item in items]
    return _item(action, key, value)


def _switch(action: argparse.Action, key: str, value: Any) -> Any:
    if isinstance(value, SCALARS) and value in (action.const, action.default):
        return value
    if isinstance(value, bool | int) and value in (False, True):
        return bool(value)
    raise _refusal(key, value, "true or false")


def _item(action: argparse.Action, key: str, value: Any) -> Any:
    if action.type in (int, float):
        value = _number(action, key, value)
    elif action.type in (None, str):
        value = _text(key, value)
    elif isinstance(value, dict):
        value = _plain(key, value)
    else:
        value = _converted(action.type, key, _text(key, value))
    if action.choices is not None and value not in action.choices:
        raise _refusal(key, value, f"one of {_some(list(action.choices))}")
    return value


def _number(action: argparse.Action, key: str, value: Any) -> Any:
    kind: Any = action.type
    described = "a whole number" if kind is int else "a number"
    if isinstance(value, str):  # as the oldest versions of fairseq wrote some
        try:
            return kind(value)
        except ValueError:
            raise _refusal(key, value, described) from None
    # this number was a switch in older versions, and still has the default of one (transformer_lm.py:357)
    is_switch = isinstance(value, bool) and action.dest != "base_shuffle"
    if is_switch or not isinstance(value, int if kind is int else int | float):
        raise _refusal(key, value, described)
    return kind(value)


def _text(key: str, value: Any) -> str:
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, SCALARS) for item in items):
        raise _refusal(key, value, "text")
    return ",".join(map(str, items))


def _converted(convert: Any, key: str, text: str) -> Any:
    try:
        return convert(text)
    except (argparse.ArgumentTypeError, ArithmeticError, LookupError, SyntaxError, TypeError, ValueError):
        raise _refusal(key, text, "text that this version of fairseq reads") from None


def _plain(key: str, value: Any) -> Any:
    """Return a value that has no type to be held against: text, numbers, and lists and dictionaries of them."""
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, (*SCALARS, type(None))):
        parts = []
    else:
        raise _refusal(key, value, "text, a number, or a list or dictionary of them")
    for part in parts:
        _plain(key, part)
    return value


def _refusal(key: str, value: Any, valid: str) -> UserError:
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return UserError(f"{key} must be {valid}, not {shown}")


def _some(choices: Sequence[Any], most: int = 10) -> str:
    listed = ", ".join(map(str, choices[:most]))
    return listed + (f" and {len(choices) - most} more" if len(choices) > most else "")
