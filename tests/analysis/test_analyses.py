"""The commands: what they write and print, on any source of models, and what they say to bad input."""

from __future__ import annotations

import csv
import itertools
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from analysed_models import TINY, arguments, built, checkpoint, corpus, subjects
from fairseq.models import ARCH_MODEL_REGISTRY
from matplotlib.figure import Figure

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look import models, output, plots
from fairseq_residuals.lab.look.subjects import named_wirings
from fairseq_residuals.wirings.core.registry import VARIANTS

ANALYSES = {
    "gradients": (["model", "wiring", "stack", "layer", "gradient_norm"], 2 * 6),
    "gradients --parts --at decoder:1,3": (["model", "stack", "layer", "point", "gradient_norm"], 2 * (10 + 10) + 1),
    "change": (["model", "wiring", "stack", "layer", "change"], 2 * 4),
    "similarity": (["model", "stack", "layer", "other_layer", "cosine_similarity"], 2 * 18),
}
"""Head and number of rows of the CSV file for Post-LN and Pre-LN, 3 + 3 layers; Pre-LN has one norm more, on top."""


def read_csv(file: Path) -> tuple[list[str], list[list[str]]]:
    head, *rows = csv.reader(file.read_text().splitlines())
    return head, rows


@pytest.mark.parametrize("analysis", ANALYSES)
def test_analyses_of_models(analysis: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--variants", "post_ln", "pre_ln", *TINY, "--out", str(tmp_path / "new"), "--svg", "--name", "it"]
    assert main([*analysis.split(), *flags]) == 0
    head, rows = read_csv(tmp_path / "new" / "it.csv")
    assert (head, len(rows)) == ANALYSES[analysis]
    assert {row[0] for row in rows} == {"Post-LN", "Pre-LN"}
    assert matplotlib.image.imread(tmp_path / "new" / "it.png").shape[1] in (990, 2070)
    assert xml.etree.ElementTree.parse(tmp_path / "new" / "it.svg").getroot().tag.endswith("svg")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"it.csv", "it.png", "it.svg"}
    printed = capsys.readouterr()
    assert "Post-LN" in printed.out and "dec" in printed.out
    assert printed.err.count("\n") == 2


def test_the_numbers_are_those_measured(tmp_path: Path) -> None:
    assert main(["gradients", "--variants", "b2t", *TINY, "--out", str(tmp_path)]) == 0
    (analysed,) = subjects("--variants", "b2t", *TINY)
    analysed.backward()
    norm = torch.cat([p.grad.flatten() for p in analysed.model.decoder.layers[2].parameters()]).norm().item()
    _, rows = read_csv(tmp_path / "gradients.csv")
    assert rows[-1][:4] == ["B2T connection", "b2t", "decoder", "3"]
    assert float(rows[-1][-1]) == pytest.approx(norm, rel=1e-5)


def test_weights_has_models_by_default_that_it_can_draw(tmp_path: Path) -> None:
    assert main(["weights", *TINY, "--out", str(tmp_path)]) == 0


def test_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["condition", "--out", str(tmp_path)]) == 0
    head, rows = read_csv(tmp_path / "condition.csv")
    assert head == ["sigma", "update", "condition_number"] and len(rows) == 11 * 20
    # lr sqrt(dim) / eps
    assert float(rows[0][2]) == pytest.approx(3200) and "= 3200" in capsys.readouterr().out


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["resi_dual/alpha=2", "post_ln:0-0,b2t:1-2"]
    assert main(["explain", *names, "--layers", "3", "--dim", "16", "--heads", "2", "--out", str(tmp_path)]) == 0
    head, rows = read_csv(tmp_path / "explain.csv")
    assert head[:5] == ["stack", "layer", "box", "kind", "label"]
    places = [(f"{name}, {stack}", layer) for name, layers in zip(names, ("2", "13"), strict=True)
              for stack in ("encoder", "decoder") for layer in layers]  # fmt: skip
    assert list(dict.fromkeys((row[0], row[1]) for row in rows)) == places
    out = capsys.readouterr().out
    assert "Post-LN, decoder, layers 1 to 1" in out and "B2T connection, encoder, layers 2 to 3" in out
    assert "The gradient's easiest way through a layer passes 0 norms and 0 sub-layers." in out
    assert matplotlib.image.imread(tmp_path / "explain.png").shape[0] > 500


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "altup", "b2t_no_ln"],
        ["explain", "dlcl_pre", "--task", "language_modeling"],
        ["gradients", "--parts", "--wirings", "post_ln", "b2t_no_ln", "transparent_attention", "laurel_gemma", *TINY],
        ["similarity", "--wirings", "b2t_no_ln", "transparent_attention", "pre_ln", "post_ln", "admin", *TINY],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_is_written_is_within_the_picture(command: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    """Titles, which are long, do not meet."""
    made, new = list[Any](), plots.new_figure
    monkeypatch.setattr(plots, "new_figure", lambda *args, **kwargs: made.append(new(*args, **kwargs)) or made[-1])
    assert main([*command, "--out", str(tmp_path)]) == 0
    figure = made[0][0]
    figure.canvas.draw()
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts) if text.get_text()]
    for text in texts:
        assert all(figure.bbox.contains(*corner) for corner in text.get_window_extent().corners()), text
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_checkpoints_and_fresh_models_in_one_plot(tmp_path: Path) -> None:
    files = []
    for seed in ("5", "6"):
        model, settings = built("dlcl_pre", *TINY, "--vocabulary", "77", "--seed", seed)
        files.append(checkpoint(tmp_path / f"seed{seed}.pt", model, settings))
    given = [str(files[0]), str(files[1]), f"mine={files[0]}"]
    flags = ["--checkpoint", *given[:2], "--checkpoint", given[2], "--variants", "b2t", "--out", str(tmp_path)]
    # no abbreviation of --layers
    assert main(["gradients", *flags, "--lay", "3"]) == 2
    assert main(["gradients", *flags]) == 0
    _, rows = read_csv(tmp_path / "gradients.csv")
    labels = list(dict.fromkeys(row[0] for row in rows))
    assert labels == ["B2T connection", "DLCL, Pre-LN", f"DLCL, Pre-LN ({tmp_path.name}/seed6.pt)", "mine"]
    (fresh,) = subjects("--variants", "dlcl_pre", *TINY, "--vocabulary", "77", "--seed", "5")
    (loaded,) = subjects("--checkpoint", str(files[0]), *TINY[-4:])
    assert all(torch.equal(a, b) for a, b in zip(fresh.model.parameters(), loaded.model.parameters(), strict=True))


def test_a_wiring_with_options_does_not_bear_the_name_of_the_one_without() -> None:
    (alone,) = subjects("--variants", "pre_ln/final_norm=false", *TINY)
    assert alone.label == "Pre-LN (final_norm=false)"


@pytest.mark.parametrize("by_hydra", [False, True])
def test_weights_of_a_checkpoint(tmp_path: Path, by_hydra: bool) -> None:
    model, settings = built("dlcl_pre")
    with torch.no_grad():
        model.encoder.layers.wiring.weight[3, 1] = -2.5
    file = checkpoint(tmp_path / "it.pt", model, settings, by_hydra)
    assert main(["weights", "--checkpoint", str(file), "--out", str(tmp_path)]) == 0
    _, rows = read_csv(tmp_path / "weights.csv")
    assert len(rows) == 2 * 10
    assert ["DLCL, Pre-LN", "encoder", "weight", "4", "1", "-2.5"] in rows


def test_a_corpus(tmp_path: Path) -> None:
    folder = corpus(tmp_path, [([5, 6, 7], [8, 9]), ([6, 6], [7]), ([9], [9, 8, 7, 6])])
    languages = ["--source-lang", "s", "--target-lang", "t"]
    flags = ["--variants", "post_ln", *TINY, "--data", str(folder), "--out", str(tmp_path)]
    assert main(["similarity", *flags, *languages]) == 0
    (analysed,) = subjects(*flags[:-2], *languages)
    net_input, target = analysed.batch.sample["net_input"], analysed.batch.sample["target"]
    assert sorted(net_input["src_lengths"].tolist()) == [2, 3, 4]
    assert int(target.ne(analysed.batch.padding).sum()) == 3 + 2 + 5


def wrong(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    (tmp_path / "text").write_text("no checkpoint")
    _, settings, task = models.build("post_ln", arguments(*TINY))
    settings.arch = "transformer"
    model = ARCH_MODEL_REGISTRY["transformer"].build_model(settings, task)
    for key in ("residual", "residual_args", "decoder_residual", "decoder_residual_args"):
        delattr(settings, key)
    checkpoint(tmp_path / "stock.pt", model, settings)
    model, settings = built("post_ln")
    checkpoint(tmp_path / "fits.pt", model, settings)
    settings.encoder_layers = 4
    checkpoint(tmp_path / "misfit.pt", model, settings)
    here = str(tmp_path)
    return {
        "unknown variant": (["gradients", "--variants", "b2"], "unknown wiring 'b2' (did you mean b2t?)"),
        "unknown option": (["gradients", "--variants", "b2t/scale=1"], "has no option 'scale'"),
        "not in that task": (
            ["change", "--variants", "transparent_attention", "--task", "language_modeling"],
            "this stack stands alone",
        ),
        "unknown wiring to explain": (["explain", "b2"], "unknown wiring 'b2'"),
        "unknown flag": (["gradients", *TINY, "--droput", "0.1"], "unrecognized arguments: --droput"),
        "no number": (["gradients", "--layers", "6²"], "--layers must be a number such as 18"),
        "no sentences": (["gradients", "--sentences", "0"], "--sentences must be at least 1"),
        "no words": (["gradients", "--vocabulary", "4"], "--vocabulary must be at least 5"),
        "heads": (["gradients", "--dim", "15", "--heads", "2"], "heads"),
        "no device": (["gradients", "--device", "tpu9"], "--device tpu9 is not there"),
        "unknown layer": (["gradients", "--parts", *TINY, "--at", "decoder:4,²"], "valid are encoder:1 to encoder:3"),
        "unknown stack": (["gradients", "--parts", *TINY, "--at", "top:1"], "has no such layer"),
        "at without parts": (["gradients", *TINY, "--at", "decoder:1"], "give both or none"),
        "no checkpoint": (["weights", "--checkpoint", f"{here}/none.pt"], "there is no checkpoint"),
        "stock checkpoint": (["gradients", "--checkpoint", f"{here}/stock.pt"], "fairseq-residuals import"),
        "misfit": (["gradients", "--checkpoint", f"{here}/misfit.pt"], "does not fit the model"),
        "another corpus": (["change", "--checkpoint", f"{here}/fits.pt", "--data", here], "1000 words of the source"),
        "an architecture": (["gradients", "--arch", "transformer_b2t_6l"], "--wirings says which architecture it is"),
        "sizes of a checkpoint": (["change", "--checkpoint", f"{here}/misfit.pt", "--dim", "8"], "has no meaning for"),
        "no weights over depth": (["weights", *TINY, "--variants", "b2t"], "has no matrix of weights over depth"),
        "no data": (["gradients", *TINY, "--data", f"{here}/nothing"], "nothing"),
        "no split": (["gradients", *TINY, "--data", here, "-s", "s", "-t", "t", "--split", "test"], "--split test"),
        "folder is a file": (["condition", "--out", f"{here}/text"], "where nothing can be written"),
        "name is a path": (["condition", "--name", "a/b"], "a plain file name"),
    }


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus(tmp_path, [([5], [5])])
    for name, (command, words) in wrong(tmp_path).items():
        out = [] if "--out" in command else ["--out", str(tmp_path / "out")]
        assert main([*command, *out]) == 2, name
        printed = capsys.readouterr()
        mistake = [line for line in printed.err.splitlines() if not re.match(r" *\d+ s  \[", line)]
        assert len(mistake) == 1 and mistake[0].startswith(f"fairseq-residuals {command[0]}: error: "), (name, mistake)
        assert words in mistake[0], (name, mistake)
        assert not (tmp_path / "out").exists(), name


def test_a_variant_looks_the_same_in_every_plot_and_differs_from_the_others() -> None:
    styles = {variant: plots.style(variant) for variant in VARIANTS}
    assert len(set(styles.values())) == len(styles)
    (alone,), (_, among) = plots.line_styles(["b2t"]), plots.line_styles(["post_ln", "b2t"])
    assert alone == among
    first, again = plots.line_styles(["b2t", "b2t"])
    assert first["color"] == again["color"] and first["marker"] != again["marker"]


def test_nothing_is_left_of_a_picture_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Figure, *args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space left"):
        main(["condition", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


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
