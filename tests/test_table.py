"""Records of reproduced scores, and tables of them beside published ones."""

from __future__ import annotations

import csv
import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import stdev

import pytest

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.recipes.tables import (
    FAILED,
    Record,
    Table,
    append,
    find_table,
    load_published,
    read_records,
    render,
)
from fairseq_residuals.lab.utils.tables import markdown_table
from fairseq_residuals.wirings.core.errors import UserError

TABLE = Table(
    "made",
    "up",
    columns=("params", "2010", "2011", "Mean"),
    rows={
        "post": {"params": -61, "2010": 24.5, "2011": 22.06, "Mean": 23.28},
        "pre|deep": {"params": 62, "2010": FAILED, "2011": FAILED, "Mean": None},
        "cited": {"params": None, "2010": 20.0, "2011": 21.0, "Mean": 20.5},
    },
    title="A table",
    definition="BLEU",
    source="Somebody 2020, Table 1",
    metrics=("sacrebleu",),
    averages={"Mean": ("2010", "2011")},
    stated=("params",),
    cited=("cited",),
)
TABLES = {TABLE.key: TABLE}


def record(row="post", column="2010", value=71.0, seed=1, metric="sacrebleu", **more) -> Record:
    fields = {"signature": f"{metric}|v1", "commit": "c0ffee", "torch": "2.6", "device": "8 x V100", "hours": 1.5}
    fields |= {"config_hash": "abc", "date": "2026-01-01", "note": ""} | more
    return Record("made", "up", row, column, value, metric=metric, seed=seed, **fields)


def both(first: float, second: float, **more) -> list[Record]:
    """Of both columns that are recorded."""
    return [record(column=column, value=value, **more) for column, value in (("2010", first), ("2011", second))]


def cells(records: list[Record], table: Table = TABLE) -> dict[str, dict[str, str]]:
    """Row -> heading -> cell, from the Markdown table."""
    lines = [line for line in render(table, records).splitlines() if line.startswith("| ")]
    head, _, *rows = (
        [c.replace("\0", "|").strip() for c in line.replace(r"\|", "\0").split("|")[1:-1]] for line in lines
    )
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def remarks(records: list[Record]) -> str:
    """The list below the table, without its bullets."""
    return render(TABLE, records).replace("\n- ", "\n").partition("\n\n")[2]


def test_published_and_reproduced_never_share_a_column() -> None:
    records = both(71.0, 72.0) + both(73.0, 74.0, row="cited", metric="chrf")
    for row, found in cells(records).items():
        published = {column: found[f"{column} published"] for column in TABLE.columns}
        reproduced = [cell for heading, cell in found.items() if " reproduced" in heading]
        assert len(published) + len(reproduced) == len(found)
        assert all(cell == "-" or float(cell) > 70 for cell in reproduced)
        expected = {"post": ("-61", "24.5", "22.06", "23.28"), "pre|deep": ("62", "failed", "failed", "-")}
        assert tuple(published.values()) == expected.get(row, ("-", "20.0", "21.00", "20.50"))
    assert "params reproduced" not in found
    unpublished = Table("made", "up", columns=("2010", "2011"), rows={"post": {}, "pre": {}})
    assert list(cells(both(71.0, 72.0), unpublished)["post"]) == ["2010 reproduced", "2011 reproduced"]


def test_metrics_have_columns_of_their_own() -> None:
    found = cells([*both(71.0, 72.0), record(metric="compound_bleu", value=75.0)])["post"]
    assert found["2010 reproduced sacrebleu"] == "71.00" and found["2010 reproduced compound_bleu"] == "75.00"
    assert found["2011 reproduced sacrebleu"] == "72.00" and "2011 reproduced compound_bleu" not in found
    assert found["Mean reproduced sacrebleu"] == "71.50" and "Mean reproduced compound_bleu" not in found


def test_averages_are_taken_per_seed() -> None:
    """Seed 3 has one of two columns, and no average; it counts where it has a score."""
    records = [*both(10.0, 20.0, seed=1), *both(13.0, 25.0, seed=2), record(value=16.0, seed=3)]
    found = cells(records)["post"]
    assert found["2010 reproduced"] == f"13.00 ± {stdev([10, 13, 16]):.2f} (3)" == "13.00 ± 3.00 (3)"
    assert found["2011 reproduced"] == f"22.50 ± {stdev([20, 25]):.2f} (2)"
    assert found["Mean reproduced"] == f"17.00 ± {stdev([15, 19]):.2f} (2)"


def test_failures() -> None:
    records = [*both(71.0, 72.0), *both(FAILED, FAILED, seed=2), *both(FAILED, FAILED, row="pre|deep", seed=4)]
    found = cells(records)
    assert found["post"]["2010 reproduced"] == "71.00 (1 of 2)"
    assert found["post"]["Mean reproduced"] == "71.50 (1 of 2)"
    assert {found["pre|deep"][f"{c} reproduced"] for c in ("2010", "2011", "Mean")} == {"failed"}
    assert "Failed: post (seed 2); pre|deep (seed 4)." in remarks(records)
    assert "Missing: nothing." in remarks(records)


def test_missing() -> None:
    assert "Missing: everything." in remarks([])
    assert "Missing: post (2011); pre|deep." in remarks([record()])
    assert "Failed: nothing." in remarks([record()])
    # many are counted
    for rows, missing in ((10, "scores of 9 of 10 rows"), (3, "row1; row2")):
        published = dict.fromkeys((f"row{i}" for i in range(rows)), TABLE.rows["post"])
        table = dataclasses.replace(TABLE, rows=published, cited=())
        assert f"Missing: {missing}." in render(table, both(71.0, 72.0, row="row0"))


def test_the_last_record_counts() -> None:
    records = [record(value=FAILED), record(value=1.0), record(value=2.0)]
    assert cells(records)["post"]["2010 reproduced"] == "2.00"
    assert "Failed: nothing." in remarks(records)


def test_runs_of_several_configurations_are_pointed_out() -> None:
    records = [record(seed=1, config_hash="abc"), record(seed=2, config_hash="def")]
    assert "Caution, runs of several configurations are put together in: post (2)." in remarks(records)
    assert "Caution" not in remarks([record(seed=1), record(seed=2)])
    # one that took another's place, and columns with configurations of their own
    assert "post (2)" in remarks([record(config_hash="abc"), record(config_hash="def")])
    assert "Caution" not in remarks([record(config_hash="abc"), record(column="2011", config_hash="def")])


def test_signatures_are_printed() -> None:
    text = remarks([record(signature="one"), record(column="2011", signature="two")])
    assert "Reproduced, sacrebleu: one; two." in text


def test_csv_is_for_programs() -> None:
    rows = list(csv.DictReader(io.StringIO(render(TABLE, [*both(10.0, 20.0), *both(13.0, 25.0, seed=2)], "csv"))))
    found = {(row["row"], row["column"]): row for row in rows}
    assert set(found) == {(row, column) for row in TABLE.rows for column in TABLE.columns}
    mean = found["post", "Mean"]
    assert (mean["published"], mean["seeds"], mean["failed_seeds"]) == ("23.28", "2", "0")
    assert (float(mean["reproduced"]), float(mean["spread"])) == pytest.approx((17, stdev([15, 19])))
    assert (found["post", "params"]["published"], found["pre|deep", "2010"]["published"]) == ("-61", "failed")
    assert found["pre|deep", "Mean"]["published"] == found["pre|deep", "Mean"]["reproduced"] == ""


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "results" / "reproduced.csv"
    first = [record(note='a "b", c\nü', hours=0.1 + 0.2), record(value=FAILED, seed=2)]
    append(first, path, TABLES)
    append([record(seed=3)], path, TABLES)
    assert read_records(path) == [*first, record(seed=3)]
    columns = "experiment,table,row,column,value,metric,signature,seed,commit,torch,device,hours,config_hash,date,note"
    assert path.read_text().partition("\n")[0] == columns
    assert read_records(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"row": "past"}, "made/up has no row 'past'; its rows are post, pre|deep, cited"),
        ({"column": "2012"}, "made/up has no column '2012' to record; its scores are 2010, 2011"),
        ({"column": "Mean"}, "made/up has no column 'Mean' to record; its scores are 2010, 2011"),
        ({"column": "params"}, "made/up has no column 'params' to record; its scores are 2010, 2011"),
        (
            {"table": "down"},
            "there is no table 'made/down' (did you mean made/up?); 'fairseq-residuals table' lists them",
        ),
    ],
)
def test_all_records_are_written_or_none(tmp_path: Path, wrong: dict, sentence: str) -> None:
    path = tmp_path / "reproduced.csv"
    with pytest.raises(UserError) as mistake:
        append([record(), dataclasses.replace(record(), **wrong)], path, TABLES)
    assert str(mistake.value) == sentence
    assert not path.exists()


@pytest.mark.parametrize("wrong", [{"value": float("nan")}, {"value": float("inf")}, {"metric": ""}, {"value": "27.3"}])
def test_no_record_of_nothing(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"neither|empty"):
        dataclasses.replace(record(), **wrong)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reproduced.csv"
    append([record()], path, TABLES)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space left"):
            append([record(seed=2)], path, TABLES)
    assert path.read_bytes() == before
    append([record(seed=3)], path, TABLES)
    assert read_records(path) == [record(), record(seed=3)]


def test_runs_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Also where some know the file by a link in another folder."""
    path, link = tmp_path / "reproduced.csv", tmp_path / "links/reproduced.csv"
    link.parent.mkdir()
    link.symlink_to(path)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda seed: append(both(1.0, 2.0, seed=seed), (path, link)[seed % 2], TABLES), range(64)))
    records = read_records(path)
    assert sorted(r.seed for r in records) == sorted([*range(64)] * 2)
    # what one run wrote stands together
    assert all(a.seed == b.seed for a, b in zip(records[::2], records[1::2], strict=True))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda text: text.replace("row,column", "column,row"), "its first line has to be experiment,table"),
        (lambda text: text[:-5], "breaks off in its last line"),
        (lambda text: text.replace(",71.0,", ",good,"), "record 2 is not valid"),
        (lambda text: text.replace("made,up,", "made,"), "record 2 is not valid: it has 14 fields, not 15"),
    ],
)
def test_a_file_that_is_none_is_left_alone(tmp_path: Path, spoil, sentence: str) -> None:
    path = tmp_path / "reproduced.csv"
    append([record()], path, TABLES)
    path.write_text(spoil(path.read_text()))
    before = path.read_bytes()
    for use in (lambda: read_records(path), lambda: append([record()], path, TABLES)):
        with pytest.raises(UserError, match=sentence):
            use()
    assert path.read_bytes() == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reproduced.csv"
    real = dataclasses.replace(record(), experiment="b2t", table="table4", row="6L/B2T", column="Test", value=21.55)
    append([real], path, load_published())
    assert main(["table", "--reproduced", str(path)]) == 0
    listed = capsys.readouterr().out
    assert "b2t/table4" in listed and "(1 of 12 scores reproduced)" in listed
    for flags, format in (([], "markdown"), (["--format", "csv"], "csv")):
        assert main(["table", "b2t/table4", "--reproduced", str(path), *flags]) == 0
        assert capsys.readouterr().out == render(find_table("b2t/table4", load_published()), [real], format)
    assert main(["table", "b2t/table44"]) == 1
    assert capsys.readouterr().err.startswith(
        "fairseq-residuals table: error: there is no table 'b2t/table44' (did you mean b2t/table4?)"
    )


def test_markdown() -> None:
    """Columns of one width, numbers to the right, a bar in a cell is not the end of it."""
    assert markdown_table(("name", "n", "of"), [("a|b", 1234, None), ("longer", 0.12345, "x")]).splitlines() == [
        "| name   |      n |  of |",
        "| ------ | -----: | --: |",
        r"| a\|b   |  1,234 |   - |",
        "| longer | 0.1235 |   x |",
    ]
    assert markdown_table(("a", "b"), [], left=2) == "| a   | b   |\n| --- | --- |"
