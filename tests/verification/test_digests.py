"""Two runs with one seed are equal to the last bit, and equal to those that were recorded."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.verification import digests

RECORDED = Path(__file__).with_name("digests.json")

first_digest = cache(digests.digest)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_two_runs_with_one_seed_are_equal(variant: str) -> None:
    assert digests.digest(variant) == first_digest(variant)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_run_is_the_recorded_one(variant: str) -> None:
    """Where numbers are rounded as they were when it was recorded."""
    recorded = digests.read(RECORDED).get(digests.environment(), {})
    if variant not in recorded:
        pytest.skip(
            f"no digest of {variant} is recorded for {digests.environment()}:"
            " python -m fairseq_residuals.verification.digests tests/verification/digests.json --record"
        )
    assert first_digest(variant) == recorded[variant]


def test_the_seed_and_the_variant_count() -> None:
    assert len({first_digest("post_ln"), digests.digest("post_ln", seed=2), first_digest("b2t")}) == 3


def test_other_environments_stay_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, variants = tmp_path / "digests.json", {"post_ln": VARIANTS["post_ln"]}
    monkeypatch.setattr(digests, "VARIANTS", variants)
    file.write_text(json.dumps({"elsewhere": {"post_ln": "0"}}))
    assert digests.main([str(file)]) == 1
    assert "no digests are recorded for torch" in capsys.readouterr().err
    assert digests.main([str(file), "--record"]) == 0
    assert digests.main([str(file)]) == 0
    assert set(digests.read(file)) == {"elsewhere", digests.environment()}
    monkeypatch.setattr(digests, "digest", lambda variant: "another")
    assert digests.main([str(file)]) == 1
