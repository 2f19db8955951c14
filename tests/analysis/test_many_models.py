"""More models than lines can be told apart: a small panel each, with Post-LN and Pre-LN behind it."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from analysed_models import TINY, arguments

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look import by_layer, models, plots
from fairseq_residuals.wirings.core.registry import VARIANTS

ROOT = Path(__file__).parents[2]
NINE = ["post_ln", "pre_ln", "b2t", "deepnet", "resi_dual", "dlcl_pre", "mix_ln", "sub_ln", "b2t_no_ln"]


def drawn(variants: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, dict]]:
    """The figure, and by model and stack the numbers of the CSV file."""
    figures = []
    write = by_layer.write
    monkeypatch.setattr(
        by_layer, "write", lambda args, figure, *rest: figures.append(figure) or write(args, figure, *rest)
    )
    assert main(["gradients", "--variants", *variants, *TINY, "--out", str(folder)]) == 0
    numbers: dict[str, dict[str, list[float]]] = {}
    for row in csv.DictReader((folder / "gradients.csv").read_text().splitlines()):
        numbers.setdefault(row["model"], {}).setdefault(row["stack"], []).append(float(row["gradient_norm"]))
    (figure,) = figures
    return figure, numbers


def lines(panel: Any, colour: str) -> list[tuple[Any, list[float]]]:
    """Dashes and heights of the lines of a colour; a legend's have none."""
    return [
        (x.get_linestyle(), list(x.get_ydata()))
        for x in panel.get_lines()
        if x.get_color() == colour and len(x.get_ydata())
    ]


def test_each_of_many_models_has_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure, numbers = drawn(NINE, tmp_path, monkeypatch)
    titles = {name: VARIANTS[name].title for name in NINE}
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title().replace("\n", " ") for panel in panels] == list(titles.values())
    for name, panel in zip(NINE, panels, strict=True):
        own = numbers[titles[name]]
        assert lines(panel, plots.STYLES[name][0]) == [("--", own["encoder"]), ("-", own["decoder"])]
        for reference, grey in plots.REFERENCES.items():
            behind = numbers[titles[reference]]
            assert lines(panel, grey) == [("--", behind["encoder"]), ("-", behind["decoder"])]
        assert panel.get_yscale() == "log" and panel.get_ylim() == panels[0].get_ylim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"{who}, {stack}" for who in ("Post-LN", "Pre-LN", "titled") for stack in ("encoder", "decoder")
    ]
    assert matplotlib.image.imread(tmp_path / "gradients.png").shape[1] == round(300 * plots.PAGE)
    head, _, *table = capsys.readouterr().out.splitlines()[:-1]
    assert head.split() == ["model", *(word for stack in ("enc", "dec") for n in "123" for word in (stack, n))]
    assert [re.split(r"  +", line)[0] for line in table] == list(titles.values())


def test_a_few_models_share_a_panel_for_each_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, numbers = drawn(NINE[:8], tmp_path, monkeypatch)
    assert len(numbers) == by_layer.MOST_TOGETHER == 8
    for panel, stack in zip(figure.axes, ("encoder", "decoder"), strict=True):
        assert [list(line.get_ydata()) for line in panel.get_lines()] == [found[stack] for found in numbers.values()]


def test_all_variants_are_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--variants all``, as the gallery's picture has it."""
    assert "--variants all" in (ROOT / "scripts/figures/gallery_gradients_all.sh").read_text()
    chosen = models.sources(arguments("--variants", "all", *TINY))
    assert sorted(source.name for source in chosen) == sorted(VARIANTS)
    spoken = models.sources(arguments("--variants", "all", "--task", "language_modeling", *TINY))
    refused = {name for name, v in VARIANTS.items() if v.refusal(alone=True, topmost=True)}
    assert refused and {source.name for source in spoken} == set(VARIANTS) - refused
