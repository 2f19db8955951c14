"""A context that code from outside attaches to a function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from fairseq_residuals.wirings.utils.attachable_context import AttachableContext

around = AttachableContext()
events: list[str] = []


@contextmanager
def first(x: Tensor) -> Iterator[None]:
    events.append(f"enter of {x.item():g}")
    yield
    events.append("leave")


@contextmanager
def second(x: Tensor) -> Iterator[None]:
    events.append("second")
    yield


def double(x: Tensor) -> Tensor:
    with around(x):
        return 2 * x


def test_nothing_happens_until_one_is_attached_or_in_compiled_code() -> None:
    events.clear()
    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert double(torch.tensor(1.0)) == 2 and not events
    with around.attached(first):
        assert compiled(torch.tensor(1.0)) == 2 and not events
        assert double(torch.tensor(1.0)) == 2 and events == ["enter of 1", "leave"]
    double(torch.tensor(1.0))
    assert len(events) == 2


def test_the_one_before_comes_back() -> None:
    events.clear()
    with around.attached(first):
        with pytest.raises(TypeError), around.attached(second):
            double("not a tensor" @ double(torch.tensor(1.0)))
        assert events == ["second"]
        double(torch.tensor(3.0))
    assert events == ["second", "enter of 3", "leave"]
