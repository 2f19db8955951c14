"""``report.html`` in a browser: it opens from a file, with nothing to reach, and shows all that it is to show."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import test_schedule
from matplotlib.text import Text
from PIL import Image

from fairseq_residuals.lab.compare import pictures, report
from fairseq_residuals.lab.compare.cells import Comparison, Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import Plan
from fairseq_residuals.lab.compare.tasks import RUNGS, TASKS
from fairseq_residuals.lab.compare.verdict import Findings
from tests.site.browser import Browser

ENTRIES = [Entry(name, name, "") for name in ("pre_ln", "mudd", "b2t")]
START = Start(1_000_000, 10**9, 0.5, 100.0, True, 1.0, 1.0, 100, 100)


def result(entry: Entry, seed: int) -> Result:
    loss = 2.0 + 0.01 * seed - 0.2 * (entry.name == "mudd")
    return replace(test_schedule.result(entry.name, 0.001, seed, loss), device="a <processor>")


def compared(folder: Path, user_dir: Path | None = None) -> Comparison:
    comparison = Comparison(TASKS["copy"], RUNGS["xs"], 2, folder, folder, 0, user_dir=user_dir)
    vars(comparison).update(unigram_loss=4.0, data_digest="d", shared="s")  # there is no data
    return comparison


def page(folder: Path) -> Path:
    """The report of results of three wirings, of which one is better."""
    comparison = compared(folder)
    plan = Plan(ENTRIES, (0.001,), False, 3, 3)
    starts = {entry.name: replace(START, seconds=0.5 + i) for i, entry in enumerate(ENTRIES)}
    results = [result(entry, seed) for entry in ENTRIES for seed in (1, 2, 3)]
    report.write(comparison, plan, results, starts)
    return folder / "report.html"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as opened:
        yield opened
        assert opened.errors == []


def test_a_wiring_whose_runs_failed_is_not_said_to_diverge() -> None:
    plan = Plan(ENTRIES, (0.001,), False, 1, 1)
    first, second, third = (result(entry, 1) for entry in ENTRIES)
    results = [first, replace(second, ended="failed"), replace(third, ended="diverged")]
    findings = Findings(plan, results, {entry.name: START for entry in ENTRIES})
    assert [findings.sentence(verdict) for verdict in findings.at_updates] == [
        "mudd: failed at every rate from 0.001 to 0.001.",
        "b2t: diverged at every rate from 0.001 to 0.001.",
    ]


def test_a_plan_counts_the_runs_that_are_left(tmp_path: Path) -> None:
    plan = Plan(ENTRIES, (0.001,), False, 3, 3)
    results = [result(ENTRIES[0], seed) for seed in (1, 2, 3)] + [result(ENTRIES[1], 1)]
    starts, seconds = ({entry.name: value for entry in ENTRIES} for value in (START, 60.0))
    text = report.plan_text(compared(tmp_path), plan, results, starts, seconds, 1)
    assert "About 5 more runs of 60 seconds, 1 at a time: 5 min" in text
    plan = test_schedule.PLAN
    results = test_schedule.carry_out(plan, {"pre_ln": 0.002, "b2t": 0.002})
    for done, said in ((results[:-1], "About 1 more runs of 60 seconds"), (results, "Nothing is left to train; every")):
        assert said in report.plan_text(compared(tmp_path), plan, done, starts, seconds, 1)


def test_backticks_in_a_users_file_stay_in_it(tmp_path: Path) -> None:
    text = '"""Half.\n\n```python\nx + y / 2\n```\n\n![scheme](scheme.png)\n"""\nHALF = "*1*"\n'
    (tmp_path / "_mine.py").write_text(text)
    starts = {entry.name: START for entry in ENTRIES}
    report.write(compared(tmp_path, user_dir=tmp_path), Plan(ENTRIES, (0.001,), False, 1, 1), [], starts)
    assert f"{html.escape(text, quote=True)}</code></pre>" in (tmp_path / "report.html").read_text()


def test_long_names_are_folded() -> None:
    """So that those of panels side by side do not overlap, and leave room for what they name."""
    name = "hyper_connections/n=8,close=mean,mixing=uniform@warmup=100"
    plan = Plan([ENTRIES[0], Entry(name, "pre_ln", "")], (0.001,), False, 2, 2)
    results = [result(entry, seed) for entry in plan.entries for seed in (1, 2)]
    findings = Findings(plan, results, {entry.name: START for entry in plan.entries})
    titles = [panel.get_title() for panel in pictures.rates(findings, 4.0).axes]
    (label,) = (text.get_text() for text in pictures.forest(findings).axes[0].get_yticklabels())
    assert titles[1] == label and label.replace("\n", "") == name and max(map(len, label.split("\n"))) <= 24


def test_labels_of_equal_entries_stay_apart() -> None:
    """At the ends of curves and beside costs; and each column of panels has its rates below it."""
    plan = Plan([Entry(f"pre_ln/norm_eps=0.{i}", "pre_ln", "") for i in range(5)], (0.001,), False, 2, 2)
    results = [replace(result(entry, seed), curve="100:3 200:2") for entry in plan.entries for seed in (1, 2)]
    findings = Findings(plan, results, {entry.name: START for entry in plan.entries})
    for figure in (pictures.costs(findings), pictures.curves(findings, 4.0)):
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(label) for label in figure.axes[0].texts]  # without the line to the point
        assert len(boxes) >= 5 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    shown = [panel.xaxis.get_tick_params()["labelbottom"] for panel in pictures.rates(findings, 4.0).axes[:5]]
    assert shown == [False, True, True, True, True]


def test_a_browser_shows_all_of_the_report(browser: Browser, tmp_path: Path) -> None:
    browser.show(page(tmp_path), width=1200, height=4000)
    seen = browser.value("document.documentElement.outerHTML")
    assert not re.search(r"<(?:script|img|link)[^>]*(?:src|href)=", seen)
    assert seen.count("<svg") == 4 and seen.count("<table>") == 3
    assert "mudd: better than pre_ln: -0.200 bits per token" in seen
    assert "b2t: not distinguishable from pre_ln: +0.000 bits" in seen
    assert "a &lt;processor&gt;" in seen
    rows = re.findall(r"<tr>\s*<td[^>]*>(\w+)</td>", seen)
    assert rows == ["pre_ln", "mudd", "b2t", *["mudd", "b2t"] * 2, "pre_ln", "mudd", "b2t"]

    picture = io.BytesIO(base64.b64decode(browser.ask("Page.captureScreenshot")["data"]))
    grey = Image.open(picture).convert("L")
    bands = [grey.crop((0, top, 1200, top + 400)).getextrema() for top in range(0, 2400, 400)]
    assert all(dark < 90 and light == 255 for dark, light in bands)  # text or lines in each, on white


def test_a_narrow_window_scrolls_tables_and_not_the_page(browser: Browser, tmp_path: Path) -> None:
    browser.show(page(tmp_path), width=600)
    assert browser.value("document.documentElement.scrollWidth") <= 600
