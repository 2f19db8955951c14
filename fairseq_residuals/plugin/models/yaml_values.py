"""Values that a YAML file or a checkpoint gives a model: of the types that the flags of the same names have."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from fairseq_residuals.wirings.core.errors import UserError

_TEXTS = ("residual", "decoder_residual")
_OPTIONS = ("residual_args", "decoder_residual_args")

_FAIRSEQS_OWN = ("base_shuffle", False)
"""fairseq's own default of a whole number (transformer_lm.py:357), which a complete configuration repeats."""


def check_values(args: DictConfig, add_args: Callable[[ArgumentParser], None]) -> None:
    """Check values that argparse would have read if they had been flags.

    Args:
        args: flat.
        add_args: adds the flags of the stock model.

    Raises:
        UserError: a value is of another type than its flag's.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    for key, value in ((str(key), value) for key, value in args.items()):
        if value is None:
            continue
        words = wanted(flags[key], value) if key in flags else _wanted_of_a_wiring(key, value)
        if words:
            raise UserError(f"model.{key} must be {words}, not {value!r}")


def wanted(flag: Action, value: Any) -> str:
    """Return what a value had to be, in words; empty where it is that."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if flag.nargs == 0 and not isinstance(value, bool):
        return "true or false"
    if flag.type is float and not number:
        return "a number"
    if flag.type is int and not (number and float(value).is_integer()) and (flag.dest, value) != _FAIRSEQS_OWN:
        return "a whole number"
    return ""


def _wanted_of_a_wiring(key: str, value: Any) -> str:
    if key in _TEXTS and not isinstance(value, str):
        return "the name of a wiring"
    if key in _OPTIONS and not isinstance(value, str | DictConfig):
        return "text, such as init_scale=0.5, or a mapping"
    return ""
