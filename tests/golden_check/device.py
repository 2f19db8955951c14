"""Golden files on another device than the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


def moved(value: Value, device: torch.device) -> Value:
    """Return ``value`` with every tensor in it, also in dataclasses, dictionaries and lists, on ``device``."""
    found: Any = value
    if isinstance(value, Tensor):
        found = value.to(device)
    elif isinstance(value, dict):
        found = {key: moved(x, device) for key, x in value.items()}
    elif isinstance(value, list):
        found = [moved(x, device) for x in value]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = dataclasses.replace(
            value, **{f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        )
    return found  # type: ignore[no-any-return]
