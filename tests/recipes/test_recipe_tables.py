"""Every table has its recipes, every recipe its table and its notes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from recipe_files import CONFIGS, TABLES, read_job, read_table, rows_of_all, uses

from fairseq_residuals.lab.recipes.compose import NOTES
from fairseq_residuals.lab.recipes.evaluate import expected_metrics

ROOT = CONFIGS.parent
REQUIRED = [
    *(f"b2t/table{n}" for n in (1, 2, 3, 4, 5, 8, 9)),
    *(f"dlcl/table{n}" for n in (1, 2, 3, 4, 6, 7)),
    "dlcl/figure3",
    *(f"depthwise_lstm/table{n}" for n in range(1, 8)),
    *(f"resi_dual/table{n}" for n in range(2, 9)),
    "joeynmt/perplexity",
    *(f"debian/{name}" for name in ("translation", "headlines", "language_model")),
    "iwslt14_de_en/methods",
]
VARIANTS = {
    "Post-LN": "post_ln",
    "Pre-LN": "pre_ln",
    "DLCL": "dlcl_post",
    "Admin": "admin",
    "T-Fixup": "t_fixup",
    "RealFormer": "realformer",
    "DeepNet": "deepnet",
    "B2T": "b2t",
    "B2T w/o LN": "b2t_no_ln",
    "NormFormer": "normformer",
    "ResiDual": "resi_dual",
    "depth-wise LSTM": "depthwise_lstm",
}


@pytest.mark.parametrize("name", REQUIRED)
def test_every_published_score_has_a_recipe_or_was_cited(name: str) -> None:
    table, published = read_table(name), read_table(name).published
    made = {(cell.row, cell.column) for cell in table.cells}
    assert made == {(row, column) for row in published.expected for column in published.scored}


def test_tables_beyond_the_required_ones_are_published_too_and_have_all_rows() -> None:
    assert set(REQUIRED) <= set(TABLES)
    for name in set(TABLES) - set(REQUIRED):
        assert read_table(name).cells
    assert rows_of_all().keys() == set(uses())


@pytest.mark.parametrize("name", sorted(uses()))
def test_a_row_says_on_what_hardware_and_what_is_known(name: str) -> None:
    row = rows_of_all()[name]
    assert all(str(row[note]).strip() for note in NOTES)
    named = re.findall(r"configs/[\w/]+\.yaml", row["known"])
    assert named and all((ROOT / file).is_file() for file in named)


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith(("dlcl", "joeynmt"))])
def test_rows_are_wired_and_deep_as_they_are_called(name: str) -> None:
    for cell in read_table(name).cells:
        model = read_job(cell.config).asked.model
        label = f"{cell.row} {cell.column}"
        named = [v for k, v in VARIANTS.items() if re.search(rf"(?<![\w]){re.escape(k)}(?![\w-]| w/)", label)]
        if named and name != "b2t/readme":
            assert re.match(rf"(s2t_)?transformer_(lm_)?{named[-1]}_", model._name), (cell, model._name)
        depths = re.findall(r"(\d+)L", label) or re.findall(r"[ED](\d+)", label)
        if depths:
            assert re.search(r"_(\d+)l(?:_(\d+)l)?$", model._name), model._name
            ours = [n for n in re.search(r"_(\d+)l(?:_(\d+)l)?$", model._name).groups() if n]  # type: ignore[union-attr]
            assert set(ours) == set(depths), (cell, model._name)


@pytest.mark.parametrize("name", TABLES)
def test_scores_are_of_the_published_kind(name: str) -> None:
    table = read_table(name)
    for cell in table.cells:
        recipe = read_job(cell.config).recipe
        measured = [m for found in recipe.needed([cell.score]).values() for m in found]
        metrics = {metric for measurement in measured for metric in expected_metrics(measurement)}
        assert metrics & set(table.published.metrics), (cell, metrics)


def test_every_table_has_a_script() -> None:
    """Links to one, which reads its own name; a corpus that tables are about has its own script beside theirs."""
    experiments = {Path(name).parent for name in TABLES}
    there = {path for e in experiments for path in (ROOT / "scripts" / e).glob("*.sh") if path.name != "prepare.sh"}
    assert there == {ROOT / "scripts" / f"{name}.sh" for name in TABLES}
    assert {path.resolve() for path in there} == {ROOT / "scripts/table.sh"}


def test_a_table_s_script_reproduces_it(tmp_path: Path) -> None:
    """From any folder, with a program that prints its arguments in place of ours."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup.sh").write_text('PATH="$HERE/..:$PATH"\n')
    program = tmp_path / "scripts/fairseq-residuals"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    (tmp_path / "scripts/table.sh").write_bytes((ROOT / "scripts/table.sh").read_bytes())
    (tmp_path / "scripts/b2t").mkdir()
    (tmp_path / "scripts/b2t/table1.sh").symlink_to("../table.sh")
    for folder, script in ((tmp_path / "scripts/b2t", "table1.sh"), (tmp_path, "scripts/b2t/table1.sh")):
        done = subprocess.run(["bash", script, "--rows", "a b"], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == "reproduce b2t/table1 --rows a b\n"
