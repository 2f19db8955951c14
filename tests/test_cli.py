"""``fairseq-residuals list`` and ``show``; and files of a user that are not text, not whole or of another shape."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refusal

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.compare import command as compare
from fairseq_residuals.lab.compare.cells import read_results
from fairseq_residuals.lab.recipes import command as reproduce
from fairseq_residuals.lab.recipes.tables import command as table
from fairseq_residuals.lab.recipes.tables import load_published, published, read_records
from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name, variant in VARIANTS.items():
        assert f"\n{name} " in f"\n{text}"
        for option in options_of(variant.Config).keys() - options_of(Variant.Config).keys():
            assert f"{option}=" in text
    assert "options of every wiring: init=fairseq, init_scale=1" in text
    # a common option that starts elsewhere than in most
    assert "options: init=fairseq_0.8, profile=auto" in text
    assert main(["list", "--architectures"]) == 0
    assert capsys.readouterr().out.split() == sorted(ARCHITECTURES)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    assert VARIANTS[name].paper in text and all(equation in text for equation in Wiring.parse(name).equations)
    for option in options_of(VARIANTS[name].Config).values():
        refused = f"  {option.name}={show_value(option.default)}\n      has no other value here, for "
        assert option.name in text and (option.help in text or refused in text)


def test_show_says_where_a_wiring_is_and_which_options_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "b2t"]) == 0
    text = capsys.readouterr().out
    assert "B2T in fairseq_residuals/wirings/variants/b2t.py\n" in text
    assert "  gpas=none\n      has no other value here, for its stream is not one sum" in text
    assert main(["show", "pre_ln"]) == 0
    assert "has no other value" not in capsys.readouterr().out


def test_show_explains_no_name_that_its_equations_lack(capsys: pytest.CaptureFixture[str]) -> None:
    """ODE Transformer's equations have W with the option dlcl alone; ZAYA1's have b_0."""
    assert main(["show", "ode_rk2"]) == main(["show", "zaya_residual"]) == 0
    explained = [line for line in capsys.readouterr().out.splitlines() if line.startswith("in which")]
    assert len(explained) == 1 and "b_0 is of_embedding.bias" in explained[0]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("Pre-LN", "pre_ln"),
        ("PRE_LN", "pre_ln"),
        ("resi dual", "resi_dual"),
        ("PreLN", "pre_ln"),
        ("transformer_b2t_18l", "b2t"),
        ("transformer_lm_b2t_no_ln_6l", "b2t_no_ln"),
        ("Pre-LN:0-2,b2t:3-5", "pre_ln"),
        ("Pre-LN(init_scale=2)", "pre_ln"),
    ],
)
def test_the_variant_that_was_meant_is_named(name: str, variant: str) -> None:
    with pytest.raises(UserError, match=rf"\(did you mean {variant}\?\)"):
        Wiring.parse(name)


def test_files_where_names_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "checkpoint_best.pt"
    file.write_bytes(b"PK")
    assert f"{file} is a file: explain takes a wiring" in refusal(capsys, "explain", file, status=2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["explain", ""], "unknown wiring ''"),
        (["explain", "b2t", "--task", "language_modeling", "--stack", "encoder"], "b2t has no encoder"),
        (["gradients", "--variants", ""], "unknown wiring ''"),
    ],
)
def test_models_that_are_none(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal(capsys, *arguments, "--out", tmp_path, status=2)


def test_show_names_the_command_that_takes_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "explain mhc/n=8 prints the equations with these options" in refusal(capsys, "show", "mhc/n=8")


def test_show_an_unknown_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "error: unknown wiring 'b2t_' (did you mean b2t?)" in refusal(capsys, "show", "b2t_")


def test_output_that_is_not_read_to_its_end_is_no_error() -> None:
    command = [sys.executable, "-m", "fairseq_residuals", "list", "--architectures"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Error" not in process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2 and "COMMAND" in capsys.readouterr().err


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(self: object, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout", type("Stdout", (), {"write": interrupt, "flush": lambda self: None})())
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "fairseq-residuals list: interrupted\n"


@pytest.mark.parametrize(
    "command", [["table"], ["reproduce", "b2t/table1"], ["compare", "b2t", "--task", "copy"]], ids=lambda c: c[0]
)
def test_without_a_checkout_a_command_says_so(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    for module in (reproduce, compare):
        monkeypatch.setattr(module, "CONFIGS", missing)
    for module in (published, table):
        monkeypatch.setattr(module, "PUBLISHED", missing)
    assert f"there is no {missing}: it comes with a checkout of the repository" in refusal(capsys, *command)


CONTENTS = {
    "latin-1": "größe\n".encode("latin-1"),
    "nothing": b"",
    "NUL": b"a\0b\n",
    "binary": bytes(range(256)),
    "a list": b"[1]\n",
    "a number": b"3\n",
    "half an object": b'{"lines": ',
}
READERS = {
    "results in CSV": read_records,
    "outcomes in CSV": read_results,
    "published tables in YAML": load_published,
    "a record in JSON": lambda path: read_record(path, "lines"),
}
VALID_EMPTY = ("results in CSV",)
"""Read without anything in them, as before the first record."""


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_files_that_cannot_be_read(reader: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENTS[content])
    if content == "nothing" and reader in VALID_EMPTY:
        assert READERS[reader](file) == []
        return
    with pytest.raises(UserError, match=str(file)):
        READERS[reader](file)


@pytest.mark.parametrize("content", [*CONTENTS.values(), b'{"lines": [3]}', b'{"corpus": 3}'])
def test_descriptions_of_what_was_prepared(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prepared.json").write_bytes(content)
    assert str(tmp_path / "prepared.json") in refusal(capsys, "prepare", "iwslt14_de_en", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"prepared.json", ".lock"}
