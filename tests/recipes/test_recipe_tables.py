"""Every table has its recipes, every recipe its table; what a file says in its head is what was published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recipe_files import CONFIGS, TABLES, read_job, read_table, row_files, uses

ROOT = CONFIGS.parent
REQUIRED = [
    *(f"b2t/table{n}" for n in (1, 2, 3, 4, 5, 8, 9)),
    *(f"dlcl/table{n}" for n in (1, 2, 3, 4, 6, 7)),
    "dlcl/figure3",
    *(f"depthwise_lstm/table{n}" for n in range(1, 8)),
    *(f"resi_dual/table{n}" for n in range(2, 9)),
    "joeynmt/perplexity",
    *(f"debian/{name}" for name in ("translation", "multilingual", "headlines", "language_model")),
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
    table = read_table(name)
    made = {(cell.row, cell.column) for cell in table.cells}
    expected = {
        (row, column) for row in table.published.rows for column in table.published.scored if row not in table.cited
    }
    assert made == expected
    assert table.cited == set(table.published.cited)


def test_tables_beyond_the_required_ones_are_published_too() -> None:
    assert set(REQUIRED) <= set(TABLES)
    for name in set(TABLES) - set(REQUIRED):
        assert read_table(name).cells


def test_every_row_file_is_in_a_table() -> None:
    names = {str(path.relative_to(CONFIGS).with_suffix("")) for path in row_files()}
    # a row that is another one's twin names no architecture of its own
    assert names <= set(uses())
    assert all((CONFIGS / f"{name}.yaml").is_file() for name in uses())


@pytest.mark.parametrize("config", sorted(uses()))
def test_head_has_the_published_numbers(config: str) -> None:
    """``# b2t/table1, 18L-18L/B2T: 2010 24.62, ...``, one such line for each row of each table that the file makes."""
    head = re.sub(r"\n#   ", " ", (CONFIGS / f"{config}.yaml").read_text())
    for table, cells in uses()[config].items():
        published = read_table(table).published
        if cells[0].key is not None:  # a curve over the rows, of which the head shows some
            lines = re.findall(rf"^# {re.escape(table)}, {re.escape(cells[0].column)}: (.*)$", head, re.M)
            said = dict(item.rsplit(" ", 1) for item in lines[0].split(", "))
            assert said
            assert said == {row: str(published.rows[row][cells[0].column]) for row in said}
            continue
        for row in dict.fromkeys(cell.row for cell in cells):
            lines = re.findall(rf"^# {re.escape(table)}, {re.escape(row)}: (.*)$", head, re.M)
            assert len(lines) == 1, (table, row)
            numbers = {c.column: published.rows[row][c.column] for c in cells if c.row == row}
            if len(numbers) > 1:
                numbers |= {column: published.rows[row][column] for column in published.averages}
            shown = ", ".join(f"{c} {'not given' if v is None else v}" for c, v in numbers.items())
            assert lines[0] == shown


@pytest.mark.parametrize("config", sorted(uses()))
def test_head_says_hardware_and_what_is_known(config: str) -> None:
    text = (CONFIGS / f"{config}.yaml").read_text()
    head = text[: text.index("defaults:")]
    assert text.startswith("# @package _global_\n")
    assert re.search(r"^# Hardware: \S", head, re.M)
    assert re.search(r"^# Known, inferred, unknown: \S", head, re.M)
    named = re.findall(r"configs/[\w/]+\.yaml", head)
    assert named and all((ROOT / name).is_file() for name in named)
    assert max(map(len, text.splitlines())) <= 120


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
    from fairseq_residuals.experiments.evaluate import expected_metrics

    table = read_table(name)
    for cell in table.cells:
        recipe = read_job(cell.config).recipe
        measured = [m for found in recipe.needed([cell.score]).values() for m in found]
        metrics = {metric for measurement in measured for metric in expected_metrics(measurement)}
        assert metrics & set(table.published.metrics), (cell, metrics)


def test_every_table_has_a_script() -> None:
    scripts = {path for name in TABLES for path in [ROOT / "scripts" / f"{name}.sh"]}
    for path in scripts:
        assert f"reproduce {path.parent.name}/{path.stem} " in path.read_text(), path
    experiments = {Path(name).parent for name in TABLES}
    there = {path for e in experiments for path in (ROOT / "scripts" / e).glob("*.sh")}
    # a corpus that tables are about has its own script beside theirs
    assert scripts == {path for path in there if path.name != "prepare.sh"}
