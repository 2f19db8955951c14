"""The part of docs/EXTEND.md on training, followed literally, and what a command that translates leaves alone."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from fairseq import utils
from fairseq_cli import train
from running import PLUGIN, execute
from tiny_jobs import TRANSLATION

from fairseq_residuals.plugin.models import extensions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "EXTEND.md"


def test_following_the_page_adds_an_extension(
    data_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## A feature of training")[2]
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (place,) = re.findall(r"`(my_extensions/\S+\.py)`:", page)
    (command,) = re.findall(r"(fairseq-train data-bin .*?)```", page, re.DOTALL)
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(text, encoding="utf-8")
    # in this process, which afterwards has no such extension
    monkeypatch.setattr(extensions, "EXTENSIONS", dict(extensions.EXTENSIONS))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(utils.import_user_module, "memo", set(), raising=False)
    monkeypatch.delitem(sys.modules, "my_extensions", raising=False)
    monkeypatch.chdir(tmp_path)
    flags = command.replace("\\\n", " ").replace(" data-bin ", f" {data_of(TRANSLATION)} ").split()
    tiny = [*TRANSLATION.model, "--cpu", "--num-workers", "0", "--save-dir", "checkpoints"]
    monkeypatch.setattr(sys, "argv", [*flags, *tiny])
    with caplog.at_level(logging.INFO):
        train.cli_main()
    del sys.modules["my_extensions"]
    logged = [json.loads(record.message) for record in caplog.records if record.name == "train_inner"]
    assert [line["num_updates"] for line in logged] == ["1", "2"]
    assert all(float(line["embedding_norm"]) > 0 for line in logged)
    assert logged[0]["embedding_norm"] != logged[1]["embedding_norm"]


TRANSLATE = """
import sys
from fairseq_cli.generate import cli_main
sys.argv = ["fairseq-generate", *sys.argv[1:]]
cli_main()
print("trainer imported:", "fairseq.trainer" in sys.modules)
"""


def test_a_process_that_translates_has_no_trainer(data_of, trained) -> None:
    folder, _ = trained(TRANSLATION)
    flags = TRANSLATION.use_flags(data_of(TRANSLATION), folder / "checkpoint_best.pt")
    assert PLUGIN in flags
    run = execute([sys.executable, "-W", "ignore", "-c", TRANSLATE, *flags])
    assert run.status == 0, run
    assert run.hypotheses()["H"] and run.out.splitlines()[-1] == "trainer imported: False"
