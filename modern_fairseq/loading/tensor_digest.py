"""A digest of a checkpoint's tensors, for files whose format has no checksums."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modern_fairseq.loading.untrusted import Refused

DIGEST = "tensor_digest"
"""Entry of ``extra_state``."""


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


def record(state: dict[str, Any]) -> None:
    """Put the digest of a checkpoint that is about to be saved into its ``extra_state``."""
    state.setdefault("extra_state", {})[DIGEST] = digest(state)


def check(state: Mapping[str, Any]) -> None:
    """Compare the tensors of a checkpoint with the digest that it carries, where it carries one.

    Raises:
        Refused: they are others.
    """
    extra = state.get("extra_state")
    recorded = extra.get(DIGEST) if isinstance(extra, Mapping) else None
    if recorded is not None and recorded != digest(state):
        raise Refused("is damaged: its tensors are not those that were saved (their digest differs); get it again")
