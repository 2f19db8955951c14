"""The equations that are printed of a wiring are those of its options."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import choices

from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_an_option_that_equations_read_changes_them(variant: str) -> None:
    read: set[str] = set()

    class Reading(VARIANTS[variant].Config):  # type: ignore[name-defined,misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    assert VARIANTS[variant].equations_of(Reading()) == Wiring.parse(variant).equations
    texts = {choice: Wiring.parse(variant, choice).equations for choice in ("", *choices(variant))}
    unchanged = {choice.partition("=")[0] for choice, text in texts.items() if choice and text == texts[""]}
    assert not read & unchanged - NEEDS_ANOTHER


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_equations_of_every_choice_are_lines_without_gaps(variant: str) -> None:
    for choice in choices(variant):
        equations = Wiring.parse(variant, choice).equations
        assert equations and all(line == " ".join(line.split()) for line in equations), (choice, equations)


NEEDS_ANOTHER = {"window", "dilation", "period", "scale", "alpha", "as_coded", "rank"}
"""Options that say nothing by themselves, or at the value 1."""
