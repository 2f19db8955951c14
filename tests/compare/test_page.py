"""``report.html`` in a browser: it opens from a file, with nothing to reach, and shows all that it is to show."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from fairseq_residuals.lab.compare import report
from fairseq_residuals.lab.compare.cells import Comparison, Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import Plan
from fairseq_residuals.lab.compare.tasks import RUNGS, TASKS
from fairseq_residuals.lab.compare.verdict import Findings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ENTRIES = [Entry(name, name, "") for name in ("pre_ln", "mudd", "b2t")]
START = Start(1_000_000, 10**9, 0.5, 100.0, True, 1.0, 1.0)


def result(entry: Entry, seed: int) -> Result:
    loss = 2.0 + 0.01 * seed - 0.2 * (entry.name == "mudd")
    return Result(
        *(entry.name, 0.001, seed, "learned", "", loss, loss, None, "", 4.0, 100, 80, 0.01, 40.0, 200.0),
        *(f"40:{loss + 1} 80:{loss}", "s", "d", "fairseq-train", "c", "t", "a <processor>"),
    )


def page(folder: Path) -> Path:
    """The report of results of three wirings, of which one is better."""
    comparison = Comparison(TASKS["copy"], RUNGS["xs"], 2, folder, folder, 0)
    vars(comparison).update(unigram_loss=4.0, data_digest="d", shared="s")  # there is no data
    plan = Plan(ENTRIES, (0.001,), False, 3, 3)
    starts = {entry.name: replace(START, seconds=0.5 + i) for i, entry in enumerate(ENTRIES)}
    results = [result(entry, seed) for entry in ENTRIES for seed in (1, 2, 3)]
    report.write(comparison, plan, results, starts)
    return folder / "report.html"


def browse(path: Path, *flags: str) -> str:
    assert BROWSER is not None
    own = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={path.parent / 'profile'}",
    ]
    alone = ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"]
    done = subprocess.run([BROWSER, *own, *alone, *flags, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    return done.stdout


def test_a_wiring_whose_runs_failed_is_not_said_to_diverge() -> None:
    plan = Plan(ENTRIES, (0.001,), False, 1, 1)
    first, second, third = (result(entry, 1) for entry in ENTRIES)
    results = [first, replace(second, ended="failed"), replace(third, ended="diverged")]
    findings = Findings(plan, results, {entry.name: START for entry in ENTRIES})
    assert [findings.sentence(verdict) for verdict in findings.at_updates] == [
        "mudd: failed at every rate from 0.001 to 0.001.",
        "b2t: diverged at every rate from 0.001 to 0.001.",
    ]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_all_of_the_report(tmp_path: Path) -> None:
    path = page(tmp_path)
    seen = browse(path, "--dump-dom")
    assert seen.count("<svg") == 4 and seen.count("<table>") == 3
    assert "mudd: better than pre_ln: -0.200 bits per token" in seen
    assert "b2t: not distinguishable from pre_ln: +0.000 bits" in seen
    assert "a &lt;processor&gt;" in seen
    rows = re.findall(r"<tr>\s*<td[^>]*>(\w+)</td>", seen)
    assert rows == ["pre_ln", "mudd", "b2t", *["mudd", "b2t"] * 2, "pre_ln", "mudd", "b2t"]

    browse(path, f"--screenshot={tmp_path / 'page.png'}", "--window-size=1200,4000")
    with Image.open(tmp_path / "page.png") as picture:
        grey = picture.convert("L")
    bands = [grey.crop((0, top, 1200, top + 400)).getextrema() for top in range(0, 2400, 400)]
    assert all(dark < 90 and light == 255 for dark, light in bands)  # text or lines in each, on white


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_narrow_window_scrolls_tables_and_not_the_page(tmp_path: Path) -> None:
    path = page(tmp_path)
    script = "document.title = document.documentElement.scrollWidth + ' ' + innerWidth"
    path.write_text(path.read_text("utf-8").replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    wide, window = map(
        int, re.findall(r"<title>(\d+) (\d+)</title>", browse(path, "--dump-dom", "--window-size=600,800"))[0]
    )
    assert wide <= window
