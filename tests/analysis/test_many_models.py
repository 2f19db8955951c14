"""Many models in one picture and one table."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from analysed_models import TINY, arguments

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look import output
from fairseq_residuals.lab.look.subjects import named_wirings
from fairseq_residuals.wirings.core.registry import VARIANTS

NINE = ["post_ln", "pre_ln", "b2t", "deepnet", "resi_dual", "dlcl_pre", "mix_ln", "sub_ln", "b2t_no_ln"]


@pytest.mark.parametrize("number", [8, 9])
def test_a_panel_for_each_stack(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, write = [], output.write
    monkeypatch.setattr(
        output, "write", lambda args, figure, *rest: figures.append(figure) or write(args, figure, *rest)
    )
    assert main(["gradients", "--variants", *NINE[:number], *TINY, "--out", str(tmp_path)]) == 0
    numbers: dict[str, dict[str, list[float]]] = {}
    for row in csv.DictReader((tmp_path / "gradients.csv").read_text().splitlines()):
        numbers.setdefault(row["model"], {}).setdefault(row["stack"], []).append(float(row["gradient_norm"]))
    (figure,) = figures
    titles = [VARIANTS[name].title for name in NINE[:number]]
    assert list(numbers) == titles and len(figure.legends) == (number <= output.MOST_NAMED)
    for panel, stack in zip(figure.axes, ("encoder", "decoder"), strict=True):
        assert [list(line.get_ydata()) for line in panel.get_lines()] == [found[stack] for found in numbers.values()]
    head, _, *table = capsys.readouterr().out.splitlines()[:-1]
    assert re.split(r" *\| *", head)[1:-1] == ["model", *(f"{stack} {n}" for stack in ("enc", "dec") for n in "123")]
    assert [re.split(r" *\| *", line)[1] for line in table] == titles


def test_all_variants_are_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As results/gradients-18l-512.csv was made."""
    assert sorted(named_wirings(arguments("--variants", "all", "pre_ln", *TINY))) == sorted(VARIANTS)
    spoken = named_wirings(arguments("--variants", "all", "--task", "language_modeling", *TINY))
    refused = {name for name, v in VARIANTS.items() if v.refusal(alone=True, topmost=True)}
    assert refused and set(spoken) == set(VARIANTS) - refused
