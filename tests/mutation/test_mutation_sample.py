"""A sample of the mutation campaign: mutants of a few functions are killed, and one that changes nothing survives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mutants import all_mutants

CAMPAIGN = Path(__file__).with_name("mutation_campaign.py")


def test_mutants_of_b2t_are_killed(tmp_path: Path) -> None:
    """Nothing of the variant can be changed without a check that fails."""
    results = tmp_path / "results.jsonl"
    command = [sys.executable, CAMPAIGN, "--results", results, "--only", "variants/b2t:"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    expected = [mutant for mutant in all_mutants() if mutant.module == "variants/b2t"]
    assert [line["name"] for line in lines] == [mutant.name for mutant in expected] and len(lines) >= 10
    assert all(line["killer"].startswith("equations of b2t") for line in lines)


def test_every_kind_of_mistake_is_among_the_mutants() -> None:
    mutants = all_mutants()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 200
    kinds = {mutant.kind for mutant in mutants}
    assert kinds >= {"sign", "scale", "index", "range", "swapped operands", "order of norm", "missing stop-gradient"}
    assert kinds >= {"dropped term", "dropped write", "dropped norm", "dropped dropout", "condition"}
