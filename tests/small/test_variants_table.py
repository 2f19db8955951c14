"""The comparison of all variants: what is run next, what its table says, and that it goes on where it was stopped."""

import csv
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from small_by_forks import printed_by_forks

from fairseq_residuals.lab.recipes.losses import unigram_loss
from fairseq_residuals.lab.recipes.sweep import SweepResult, SweepRun
from fairseq_residuals.lab.recipes.sweep_table import (
    HEADER,
    best_lr,
    failures,
    read_results,
    still_to_do,
    table,
    write_results,
)
from fairseq_residuals.lab.recipes.synthetic_tasks import find_task, variants
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS

RESULTS = """\
row,lr,seed,updates,ended,reason,train_loss,valid_loss,bleu,unigram_loss,cpu_seconds,memory_mib,commit,torch,device
b2t,0.001,1,600,trained,,3.5,3.0,20.0,8.1,100.0,500.0,abc,2.0,Abacus
post_ln,0.001,1,600,diverged,"validation loss 9.00, the unigram model's is 8.10",9.5,9.0,,8.1,100.0,500.0,abc,2.0,Abacus
b2t,0.002,1,600,trained,,2.5,2.0,30.0,8.1,100.0,500.0,abc,2.0,Abacus
b2t,0.004,1,600,diverged,fairseq: gradients are Nan/Inf,,,,8.1,40.0,500.0,abc,2.0,Abacus
pre_ln,0.001,1,600,trained,,1.5,1.0,40.0,8.1,90.0,400.0,abc,2.0,Abacus
keel,0.001,1,600,failed,MemoryError: none left,,,,8.1,1.0,10.0,abc,2.0,Abacus
b2t,0.002,2,600,trained,,2.5,2.2,32.0,8.1,110.0,500.0,abc,2.0,Abacus
b2t,0.002,3,600,trained,,2.5,2.4,34.0,8.1,120.0,530.0,abc,2.0,Abacus
pre_ln,0.001,2,600,diverged,fairseq: gradients are Nan/Inf,,,,8.1,30.0,400.0,abc,2.0,Abacus
"""


@pytest.fixture
def results(tmp_path: Path) -> list[SweepResult]:
    (tmp_path / "results.csv").write_text(RESULTS)
    return read_results(tmp_path / "results.csv")


def test_the_table_has_means_at_the_best_learning_rate_sorted_by_validation_loss(
    results: list[SweepResult],
) -> None:
    lines = table(results, first_seed=1, markdown=True).splitlines()
    head, _, *body = (" ".join(line.split()) for line in lines)
    assert (
        head == "| variant | lr | seeds | valid loss | train loss | BLEU | CPU s | MiB | diverged at lr (valid loss) |"
    )
    assert body == [
        "| pre_ln | 0.001* | 1 of 2 | 1.000 | 1.500 | 40.0 | 90 | 400 | - |",
        "| b2t | 0.002 | 3 of 3 | 2.200 ± 0.200 | 2.500 ± 0.000 | 32.0 ± 2.0 | 110 ± 10 | 510 ± 17 | 0.004 |",
        "| keel | - | - | - | - | - | - | - | - |",
        "| post_ln | - | - | - | - | - | - | - | 0.001 (9.00) |",
    ]
    as_text = table(results, first_seed=1).splitlines()
    assert [line.split()[0] for line in as_text] == ["variant", "-------", "pre_ln", "b2t", "keel", "post_ln"]
    assert failures(results) == ["keel, lr 0.001, seed 1 failed: MemoryError: none left"]


def test_the_file_is_written_as_it_was_read(results: list[SweepResult], tmp_path: Path) -> None:
    write_results(tmp_path / "again.csv", results)
    assert (tmp_path / "again.csv").read_text() == RESULTS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("row,lr\nb2t,1\n", "its first line has to be row,lr,seed,"),
        (RESULTS.replace(",600,trained,", ",many,trained,"), "line 2 is no result: "),
        (RESULTS.replace("trained", "done"), "line 2 is no result: ended is 'done'"),
        (RESULTS[:-30], "line 10 is no result: "),
    ],
)
def test_a_file_that_is_no_file_of_results(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_results(tmp_path / "results.csv")


def test_the_grid_comes_first_and_then_the_other_seeds_at_the_best_learning_rate(results: list[SweepResult]) -> None:
    rows, lrs, seeds = ["b2t", "pre_ln", "post_ln"], [0.001, 0.002], [1, 2, 3]
    assert still_to_do(rows, lrs, seeds, []) == [SweepRun(row, lr, 1) for row in rows for lr in lrs]
    assert still_to_do(rows, lrs, seeds, results) == [SweepRun("pre_ln", 0.002, 1), SweepRun("post_ln", 0.002, 1)]
    # what diverged is not done again, and a row of which all diverged has no further seeds
    only = [0.001]
    assert best_lr(o for o in results if o.row == "post_ln") is None
    assert still_to_do(rows, only, seeds, results) == [SweepRun("pre_ln", 0.001, 3)]
    assert still_to_do(rows, only, [1, 2], results) == []


def test_the_unigram_model_s_loss() -> None:
    # of 2 words the first is seen twice, the second once; each counts once more
    expected = -(math.log2(3 / 5) + math.log2(2 / 5)) / 2
    assert unigram_loss(Counter([0, 0, 1]), Counter([0, 1]), words=2) == pytest.approx(expected)
    assert unigram_loss(Counter([0, 0, 0]), Counter([1]), words=2) == pytest.approx(math.log2(5))


def test_every_variant_is_a_row_and_those_without_a_meaning_there_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variants.chosen_rows(None) == (sorted(VARIANTS), {})
    given = ["pre_ln/init_scale=depth", "post_ln:0-5,pre_ln:6-17", "pre_ln/init_scale=depth"]
    assert variants.chosen_rows(given) == (given[:2], {})
    monkeypatch.delitem(ARCHITECTURES, "transformer_mhc")
    monkeypatch.setattr(VARIANTS["mhc"], "refusal", classmethod(lambda cls, alone, topmost: "it is for one stack"))
    assert variants.chosen_rows(["mhc", "b2t"]) == (["b2t"], {"mhc": "it is for one stack"})


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("deepnet", {"_name": "transformer_deepnet_wmt_en_de_18l"}),
        ("dlcl_pre/window=2,init_scale=depth", {"residual_args": "window=2,init_scale=depth"}),
        ("post_ln:0-5,pre_ln:6-17", {"residual": "post_ln:0-5,pre_ln:6-17"}),
    ],
)
def test_a_run_differs_from_the_task_in_wiring_learning_rate_and_seed_alone(row: str, settings: dict) -> None:
    task = find_task("translation")
    workspace = Workspace(task, Path("/nowhere/work"), task.sizes)
    job = SweepRun(row, 0.003, 7).job(workspace)
    assert {key: job.asked.model[key] for key in settings} == settings
    assert (list(job.asked.optimization.lr), job.config.common.seed) == ([0.003], 7)
    usual = SweepRun("post_ln", 0.003, 7).job(workspace).asked
    for section in ("optimization", "lr_scheduler", "dataset", "optimizer", "criterion", "task"):
        assert job.asked[section] == usual[section]


@pytest.mark.parametrize(
    ("overrides", "schedule"),
    [
        ((), "inverse_sqrt, warmup updates 200, warmup init lr 1e-07"),
        (
            (
                "~lr_scheduler.warmup_updates",
                "~lr_scheduler.warmup_init_lr",
                "lr_scheduler._name=inverse_sqrt_nowarmup",
                "+lr_scheduler.decay_period=4000",
            ),
            "inverse_sqrt_nowarmup, decay period 4000",
        ),
    ],
)
def test_the_report_names_the_schedule(overrides, schedule: str, results: list[SweepResult]) -> None:
    task = find_task("translation")
    workspace = Workspace(task, Path("/nowhere/work"), task.sizes, overrides)
    assert f"All have the same schedule ({schedule}), " in variants.report(workspace, results, {}, [1])


TOY = [
    "--examples",
    "200",
    "--subwords",
    "90",
    "--updates",
    "60",
    "--seeds",
    "1",
    "--lrs",
    "0.005",
    "1000",
    "--jobs",
    "2",
]
TOY += ["--override", "model.encoder_layers=2", "model.decoder_layers=2", "lr_scheduler.warmup_updates=4"]


def test_what_was_finished_when_it_was_killed_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It begins as users do, with new processes, and goes on by forks."""
    too_deep, out = "post_ln:0-5,pre_ln:6-17", tmp_path / "out"
    call = ["--out", str(out), "--rows", "pre_ln", too_deep, *TOY]
    killed = subprocess.Popen(
        [sys.executable, "-m", "fairseq_residuals.lab.recipes.synthetic_tasks.variants", *call],
        stdout=subprocess.DEVNULL,
    )
    while killed.poll() is None and not list(out.glob("variants-*/results.csv")):
        time.sleep(0.1)
    killed.send_signal(signal.SIGTERM)
    assert killed.wait() == 130
    (results,) = out.glob("variants-*/results.csv")
    before = read_results(results)
    assert 1 <= len(before) < 4
    assert variants.main([*call, "--show"]) == 0
    assert f"\n| {before[0].row} " in capsys.readouterr().out

    printed = printed_by_forks(["variants", *call], tmp_path / "streams")
    assert f"{4 - len(before)} runs to do at most" in printed
    after = read_results(results)
    assert after[: len(before)] == before
    found = {o.run: o for o in after}
    assert set(found) == {SweepRun(row, lr, 1) for row in ("pre_ln", too_deep) for lr in (0.005, 1000.0)}
    assert len(after) == 4
    for result in after:
        assert result.cpu_seconds > 0 and result.memory_mib > 50  # Python and PyTorch alone have more
        if result.row == too_deep:
            assert (
                result.ended == "failed"
                and "each layer of the encoder" in result.reason
                and f"{result.reason}\n" in printed
            )
        elif result.lr == 1000:
            assert (result.ended, result.reason) == ("diverged", "fairseq: gradients are Nan/Inf")
        else:
            assert result.ended == "trained"
            assert 0 < result.valid_loss < result.unigram_loss and 0 <= result.bleu <= 100
    assert (results.parent / "report.md").read_text().strip() in printed
    assert {path.name for path in results.parent.rglob("*.pt")} == {"average.pt"}
    with results.open() as file:
        assert tuple(next(csv.reader(file))) == HEADER
    assert variants.main(call) == 0
    assert "0 runs to do at most" in capsys.readouterr().out
    assert read_results(results) == after


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "pre_nl"], "unknown wiring 'pre_nl' (did you mean pre_ln?)"),
        (["--rows", "pre_ln/depth=3"], "wiring 'pre_ln' has no option 'depth'"),
        (["--lrs", "0"], "--lrs has to be more than 0, not 0"),
        (["--jobs", "0"], "--jobs is 0 and has to be at least 1"),
        (["--updates", "3"], "--updates is 3 and has to be at least 4"),
        (["--show"], "--show: nothing is finished in "),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(arguments, complaint, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert variants.main([*arguments, "--out", str(out)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"small: error: {complaint}")
    assert message.count("\n") == 1
    assert not out.exists()
