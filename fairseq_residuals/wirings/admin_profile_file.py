"""The file in which ``fairseq-residuals profile-admin`` hands omegas to training, read and compared with a stack."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import parse_json

Omegas = dict[str, list[dict[str, float]]]
"""By stack (encoder, decoder), for each of its layers omega by kind of sub-layer (self, cross, ffn)."""


def read_profile(path: str) -> Omegas:
    """Read the omegas from a file.

    Raises:
        UserError: the file is missing, damaged, or something else.
    """
    try:
        omegas = parse_json(Path(path).read_bytes())["omegas"]
        numbers = [omega for layers in omegas.values() for layer in layers for omega in layer.values()]
    except OSError as error:
        raise UserError(
            f"profile={path}: {error.strerror}; valid: auto, or a file that fairseq-residuals profile-admin wrote"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path) from error
    if not all(isinstance(n, float) and math.isfinite(n) and n > 0 for n in numbers):
        raise _damaged(path)
    return omegas


def _damaged(path: str) -> UserError:
    return UserError(f"profile={path}: the file is damaged or was not written by fairseq-residuals profile-admin")


def refuse_misfit(path: str, stack: str, measured: list[dict[str, float]], needed: list[list[str]]) -> None:
    """Compare what a file has for a stack with its layers.

    Args:
        measured: what the file has.
        needed: for each layer of the model's stack, the kinds of its sub-layers.

    Raises:
        UserError: the two have other layers, or other sub-layers in them.
    """
    kinds = [list(layer) for layer in measured]
    if kinds != needed:
        raise UserError(
            f"profile={path} is of another model: for the {stack} it has {_describe(kinds)},"
            f" needed are {_describe(needed)}; fairseq-residuals profile-admin makes one with the same --arch and flags"
        )


def _describe(layers: list[list[str]]) -> str:
    """Return a short form such as "layers 0-5 (self, ffn)"."""
    runs = []
    for kinds, group in itertools.groupby(enumerate(layers), key=lambda item: item[1]):
        places = [i for i, _ in group]
        if kinds:
            runs.append(f"layers {places[0]}-{places[-1]} ({', '.join(kinds)})")
    return " and ".join(runs) or "nothing"
