"""The demo at toy scale, end to end; what it reports, and what it does with bad input and interruptions."""

import csv
import fcntl
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from fairseq_residuals.lab.recipes.demo import demo_report
from fairseq_residuals.lab.recipes.demo.__main__ import OUTPUTS, main
from fairseq_residuals.lab.recipes.demo.demo_settings import Settings, unigram_loss_of
from fairseq_residuals.lab.recipes.demo.results import DemoResult, summarize
from fairseq_residuals.lab.recipes.runner import Runner
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError

ROOT = Path(__file__).parents[1]
TOY = ["--layers", "2", "--pairs", "300", "--variants", "b2t"]


def demo(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "fairseq_residuals.lab.recipes.demo", *TOY, "--out", str(out), *options]


def test_a_demo_interrupted_then_finished_then_repeated(tmp_path, monkeypatch, capsys):
    """One test, so that parallel workers do not run the demo twice."""
    interrupt_while_training(tmp_path)
    check_that_nothing_is_left_running_or_looks_finished(tmp_path)

    corpus = {path: path.stat().st_mtime_ns for path in tmp_path.glob("data-*/cldr_en_de/plain/text/*.??")}
    assert len(corpus) == 6
    done = subprocess.run(demo(tmp_path, "--updates", "10"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert corpus == {path: path.stat().st_mtime_ns for path in corpus}
    check_the_outputs(tmp_path, done.stdout)
    check_the_table(tmp_path, done.stdout)
    check_the_models_that_the_documents_name(tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError("a finished step ran again")

    first_report = (tmp_path / "report.md").read_text("utf-8")
    monkeypatch.setattr(Runner, "command", refuse)
    assert main([*TOY, "--out", str(tmp_path), "--updates", "10"]) == 0
    assert first_report in capsys.readouterr().out


def training_logs(out: Path) -> list[Path]:
    return list(out.glob("runs-*/**/train.001.log"))


def interrupt_while_training(out: Path) -> None:
    command = demo(out, "--updates", "100000")
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell without job control starts what it puts into the background deaf to Ctrl-C, and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for _ in range(1200):
            if process.poll() is not None or training_logs(out):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert training_logs(out)


def check_that_nothing_is_left_running_or_looks_finished(out: Path) -> None:
    (log,) = training_logs(out)
    for folder in (out, log.parent):  # every child inherits the run's lock: were one alive, it could not be had
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not list(out.rglob("trained.json")) and not list(out.rglob("evaluated/*"))
    assert not [name for name in OUTPUTS if (out / name).exists()]


def check_the_outputs(out: Path, printed: str) -> None:
    assert len(list(out.glob("data-*"))) == 1
    assert not list(out.rglob("*.partial"))
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.md").read_text("utf-8") in printed
    with (out / "curves.csv").open() as rows:
        assert [int(point["update"]) for point in csv.DictReader(rows)] == list(range(1, 11))


def check_the_models_that_the_documents_name(out: Path) -> None:
    """The patterns in the commands of README and docs/CHECKPOINTS.md; this run has B2T alone, and its seed 1."""
    commands = "DATA=$(echo demo_out/data-*/cldr_en_de/plain) RUNS=$(echo demo_out/runs-*/runs/synthetic/demo)\n"
    for document in ("README.md", "docs/CHECKPOINTS.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        assert commands in text
        block = text.split(commands)[1].split("```")[0]
        named = re.findall(r"\$DATA/([\w/-]+)|\$RUNS/b2t-([\w*/.-]+)", block)
        patterns = {
            f"data-*/cldr_en_de/plain/{data}" if data else f"runs-*/runs/synthetic/demo/b2t-{run}"
            for data, run in named
        }
        assert len(patterns) == 3
        assert {pattern: len(list(out.glob(pattern))) for pattern in patterns} == dict.fromkeys(patterns, 1)


def check_the_table(out: Path, printed: str) -> None:
    """Against fairseq's log and sacreBLEU."""
    row = re.search(r"^\| b2t .*\|$", printed, re.MULTILINE)
    _, parameters, train_loss, valid_loss, bleu, _ = (cell.strip() for cell in row[0].strip("|").split("|"))
    (trained,) = out.rglob("trained.json")
    log = (trained.parent / "train.001.log").read_text("utf-8")
    assert f"num. shared model params: {parameters} " in log
    logged = {
        "valid": re.findall(r'"valid_loss": "([0-9.]+)"', log),
        "train": re.findall(r' "loss": "([0-9.]+)"', log),
    }
    assert valid_loss == f"{float(logged['valid'][-1]):.2f}"
    assert train_loss == f"{float(logged['train'][-1]):.2f}"
    numbers = json.loads((out / "results.json").read_text())
    assert f"{numbers['runs'][0]['valid_loss']:.2f}" == valid_loss

    (generated,) = trained.parent.glob("evaluated/*.log")
    numbered = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", generated.read_text("utf-8"), re.MULTILINE))
    hypotheses = [numbered[str(i)] for i in range(len(numbered))]
    (references,) = out.glob("data-*/cldr_en_de/plain/raw/test.de")
    metric = BLEU()
    score = metric.corpus_score(hypotheses, [references.read_text("utf-8").splitlines()])
    assert len(hypotheses) == 30
    assert bleu == f"{score.score:.1f}"
    assert f"sacreBLEU signature: {metric.get_signature()}" in printed


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--variants", "b2t", "post"], "unknown wiring 'post'"),
        (["--variants", "b2t", "b2t"], "--variants names a variant twice"),
        (["--layers", "0"], "--layers is 0 and has to be at least 1"),
        (["--seeds", "0"], "--seeds is 0 and has to be at least 1"),
        (["--updates", "-5"], "--updates is -5 and has to be at least 10"),
        (["--pairs", "3"], "--pairs is 3 and has to be at least 100"),
        (["--jobs", "0"], "--jobs is 0 and has to be at least 1"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(options, complaint, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["--out", str(out), *options]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"demo: error: {complaint}")
    assert message.count("\n") == 1
    assert not out.exists()


def test_out_has_to_be_a_folder_that_no_other_demo_uses(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        Settings(tmp_path / "file")
    with locked(tmp_path), pytest.raises(UserError, match="another process is at work in"), locked(tmp_path):
        pass


def result(variant: str, seed: int, loss: float, bleu: float = 10.0) -> DemoResult:
    return DemoResult(
        variant, seed, 1234, [(10, 9.0), (20, loss)], [(20, loss)], 5.0, ["eins", "zwei"], bleu, "signature"
    )


@pytest.mark.parametrize(
    ("variant", "loss", "expected"),
    [
        ("post_ln", 7.9, "Post-LN stays near the unigram loss: shown (7.90 bits per token, 99%"),
        (
            "post_ln",
            1.0,
            "Post-LN stays near the unigram loss: NOT shown; here it trains (1.00 bits per token, 12%",
        ),
        ("pre_ln", 2.0, "Pre-LN trains: shown (2.00 bits per token, 25%"),
        ("pre_ln", 5.0, "Pre-LN trains: NOT shown; here it is in between (5.00 bits per token, 62%"),
        ("pre_ln", 7.5, "Pre-LN trains: NOT shown; here it stays near the unigram loss"),
        ("post_ln", 9.9, "NOT shown; here it has not come down to the unigram loss"),
    ],
)
def test_the_verdict_follows_from_the_measured_loss(variant, loss, expected):
    settings = Settings(Path("out"), variants=(variant,))
    assert expected in demo_report.verdict(settings, summarize([result(variant, 1, loss)]), unigram_loss=8.0)


def test_several_seeds_are_told_as_mean_and_standard_deviation():
    summaries = summarize([result("b2t", 1, 2.0, bleu=60.0), result("b2t", 2, 2.2, bleu=62.0)])
    row = demo_report.table(summaries).splitlines()[-1]
    assert "2.10 ± 0.14" in row
    assert "61.0 ± 1.4" in row


def test_the_unigram_loss_is_the_entropy_of_the_target_tokens(tmp_path):
    # a, b and two ends of sentence: 1/4, 1/4, 1/2 -> 1.5 bits
    (tmp_path / "text").mkdir()
    (tmp_path / "text/train.de").write_text("a\nb\n")
    assert unigram_loss_of(tmp_path) == pytest.approx(1.5)
