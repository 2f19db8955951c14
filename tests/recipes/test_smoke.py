"""A table at small scale: what is changed of its recipes, where its files go, what is said of a missing score."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from recipe_files import CONFIGS, job_of, read_job, read_table

from fairseq_residuals.lab.data.corpora import PUBLISHED
from fairseq_residuals.lab.data.synthetic.stand_ins import STAND_INS
from fairseq_residuals.lab.recipes import smoke as module
from fairseq_residuals.lab.recipes.reproduce import Work
from fairseq_residuals.lab.recipes.runner import Runner
from fairseq_residuals.lab.recipes.smoke import small, smoke
from fairseq_residuals.wirings.core.errors import UserError

TABLE, ROW = "b2t/table3", "6L-6L/B2T"


@pytest.mark.parametrize(
    ("config", "updates", "averaged"),
    [
        ("b2t/table2/100l_b2t", None, (2, "epoch")),
        ("b2t/table4/6l_b2t", None, (2, "epoch")),
        ("depthwise_lstm/table1/base_lstm_en_de", 4, (2, "update")),
        ("resi_dual/table4/18l_resi_dual", 4, None),
        ("joeynmt/perplexity/baseline", 500, None),
    ],
)
def test_small_recipes_are_valid(config: str, updates: int | None, averaged: tuple[int, str] | None) -> None:
    """As many updates as a curve needs for its first point, or as epochs that are averaged have."""
    table = "joeynmt/perplexity" if config.startswith("joeynmt") else TABLE
    cells = read_table(table).cells
    job = job_of(config, gpus=0, overrides=small(read_job(config), cells))
    job.check_model()
    assert (job.asked.model.decoder_layers, job.asked.model.decoder_embed_dim) == (2, 16)
    assert job.recipe.average == averaged
    if updates is None:
        assert job.asked.optimization.max_epoch == 2
    else:
        assert job.asked.optimization.max_update == updates


def test_flags_of_generation_are_not_given_to_validation() -> None:
    job = job_of("dlcl/table1/pre_base", gpus=0, overrides=small(read_job("dlcl/table1/pre_base"), []))
    [generated], [validated] = (job.recipe.measurements[score] for score in ("BLEU", "valid_PPL"))
    assert (generated.flags["max_len_a"], generated.flags["max_len_b"]) == (0, 10)
    assert set(validated.flags) == {"max_tokens"}


def test_every_corpus_of_a_recipe_has_a_stand_in() -> None:
    files = [path.read_text() for path in CONFIGS.glob("**/*.yaml")]
    named = {name for text in files for name in re.findall(r"^  corpus: (\w+)$", text, re.M)}
    assert (named & set(PUBLISHED)) - set(STAND_INS) == {"debian"}


def test_what_was_there_is_removed_and_a_missing_score_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = job_of("x", gpus=0, data=tmp_path / "data", out=tmp_path / "runs").settings
    old = tmp_path / "runs/smoke/runs/old"
    old.mkdir(parents=True)
    asked: Work = {}
    monkeypatch.setattr(module, "run", lambda table, work, results, runner: asked.update(work))
    with pytest.raises(UserError, match=r"^no score came of 6L-6L/B2T, R-1, 6L-6L/B2T, R-2$"):
        smoke(read_table(TABLE), settings, Runner(), [ROW], ["R-1", "R-2"])
    assert not old.exists() and not (tmp_path / "data").exists()
    [job] = asked
    mirror = tmp_path / "runs/smoke/gigaword/org_data/mirror"
    assert job.prepare[-3:] == ["--stand-in", "--mirror", str(mirror)]
    assert "merges" in json.loads((mirror / "stand_in.json").read_text())
    assert job.folder.is_relative_to(tmp_path / "runs/smoke/runs")
