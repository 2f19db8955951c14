"""results/published.yaml: the arithmetic of the papers holds, and what one table takes from another is the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from fairseq_residuals.lab.recipes.tables import FAILED, Table, append, load_published, read_records
from fairseq_residuals.lab.recipes.tables.published import PUBLISHED
from fairseq_residuals.lab.recipes.tables.reproduced import REPRODUCED
from fairseq_residuals.wirings.core.errors import UserError

TABLES = load_published()
YEARS = tuple(map(str, range(2010, 2017)))


AVERAGED = [
    pytest.param(table, row, average, id=f"{key} {row}")
    for key, table in TABLES.items()
    for average in table.averages
    for row, cells in table.rows.items()
    if cells[average] is not None
]


@pytest.mark.parametrize(("table", "row", "average"), AVERAGED)
def test_averages_are_averages(table: Table, row: str, average: str) -> None:
    """Within the rounding of the printed number, and of its parts, which were rounded too."""
    parts = [table.rows[row][part] for part in table.averages[average]]
    unit = 0.1 if table.key == "resi_dual/table4" else 0.01
    assert table.rows[row][average] == pytest.approx(math.fsum(parts) / len(parts), abs=unit + 1e-9)


def test_there_is_no_average_of_failures() -> None:
    for table in TABLES.values():
        for average, parts in table.averages.items() if table.is_published else ():
            for cells in table.rows.values():
                assert (cells[average] is None) == any(cells[part] == FAILED for part in parts)


@pytest.mark.parametrize("layers", [6, 18])
def test_residual_took_the_other_rows_from_b2t(layers: int) -> None:
    table = TABLES[f"resi_dual/table{6 if layers == 6 else 7}"]
    for row in table.rows:
        if row != "ResiDual":
            assert table.rows[row] == TABLES["b2t/table1"].rows[f"{layers}L-{layers}L/{row}"]
    for row, cells in TABLES["resi_dual/table3"].rows.items():
        average = table.rows[row]["Average"]
        assert cells[f"E{layers}D{layers}"] == (FAILED if average is None else average)


def test_residual_s_tables_of_iwslt_agree() -> None:
    first, second, third = (TABLES[f"resi_dual/table{n}"].rows for n in (2, 5, 8))
    for size in ("E6D6", "E12D12"):
        for row in ("Post-LN", "Pre-LN", "ResiDual"):
            assert first[row][size] == second[size][f"{row}/warmup"] == third[f"{row}/w/isqrt"][size]
            assert second[size][f"{row}/no"] == third[f"{row}/nw/isqrt"][size]


def test_b2t_s_tables_agree() -> None:
    first, third = TABLES["b2t/table1"].rows, TABLES["b2t/table3"].rows
    assert TABLES["b2t/table8"].rows["6L-6L/B2T"] == first["6L-6L/B2T"]
    for layers in ("6L-6L", "18L-18L"):
        assert TABLES["b2t/table9"].rows[f"{layers}/B2T"] == third[f"{layers}/B2T"]
    old = TABLES["b2t/readme_old"].rows["b2t_layer18_ave10.pt"]
    assert old == {year: first["18L-18L/B2T"][year] for year in YEARS}
    assert TABLES["b2t/readme"].rows["Pre-LN (copied from paper)"] == first["18L-18L/Pre-LN"]


def test_dlcl_s_gains_are_over_the_first_row_of_their_kind() -> None:
    rows = TABLES["dlcl/table1"].rows
    for kind in ("post-norm", "pre-norm"):
        base = rows[f"{kind}/Transformer (Base)"]
        assert base["delta"] == "reference"
        for row, cells in rows.items():
            if row.startswith(kind) and isinstance(cells["delta"], float):
                assert cells["delta"] == pytest.approx(cells["BLEU"] - base["BLEU"], abs=1e-9)


def test_the_lstm_s_tables_agree() -> None:
    tables = {n: TABLES[f"depthwise_lstm/table{n}"].rows for n in range(1, 8)}
    base, lstm = (tables[1][f"Base/{row}"]["En-De"] for row in ("Transformer", "depth-wise LSTM"))
    assert (tables[5]["6"]["En-De/Std"], tables[5]["6"]["En-De/Ours"]) == (base, lstm)
    assert tables[2]["2-Layer"]["BLEU"] == tables[3]["Add"]["BLEU"] == tables[4]["Gate"]["BLEU"] == lstm
    for number, whole in ((6, base), (7, lstm)):
        for cells in tables[number].values():
            for side in ("enc", "dec"):
                change = 100 * (cells[f"{side}/BLEU"] - whole) / whole
                assert cells[f"{side}/delta_pct"] == pytest.approx(change, abs=0.005 + 1e-9)


def test_the_exercise_s_table_is_complete() -> None:
    rows = TABLES["joeynmt/perplexity"].rows
    assert tuple(rows) == tuple(str(step) for step in range(500, 40501, 500))


def test_the_reproduced_scores_belong_to_tables(tmp_path: Path) -> None:
    append(read_records(REPRODUCED), tmp_path / "reproduced.csv", TABLES)
    assert (tmp_path / "reproduced.csv").read_text() == (PUBLISHED.parent / "reproduced.csv").read_text()


def test_scores_are_numbers_or_failures() -> None:
    for table in TABLES.values():
        assert {*table.stated, *table.averages} <= set(table.columns) and set(table.cited) <= set(table.rows)
        values = [cells[column] for cells in table.rows.values() for column in {*table.columns} - {*table.stated}]
        assert all(type(value) in (int, float) for value in values if value not in (None, "failed"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t["rows"].update({"x": {"2010": 1.0}}), "row x has not the columns"),
        (lambda t: t.update(unit="percent"), "unexpected keyword argument 'unit'"),
        (lambda t: t.pop("rows"), "table1: 'rows'"),
        (lambda t: t["rows"].update({2010: {}}), "row 2010 has not the columns"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, change, sentence: str) -> None:
    content = yaml.safe_load(PUBLISHED.read_text())
    change(content["b2t"]["tables"]["table1"])
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=sentence):
        load_published(path)


def test_no_file_and_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        load_published(tmp_path / "none.yaml")
    (tmp_path / "none.yaml").write_text("{}")
    with pytest.raises(UserError, match=r"none\.yaml is no file of tables: it has none"):
        load_published(tmp_path / "none.yaml")
