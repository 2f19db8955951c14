"""A digest of a checkpoint's tensors, for safetensors, whose format has no checksums."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def digest(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all tensors of a checkpoint: their places in it, types, shapes and values.

    Layout in memory, order of entries and everything that is no tensor count for nothing.

    Raises:
        RecursionError: ``state`` contains itself.
    """
    total = hashlib.sha256()
    for place, tensor in sorted(_tensors(state, ""), key=lambda found: found[0]):
        total.update(f"{place} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _tensors(part, f"{place}/{number}")
