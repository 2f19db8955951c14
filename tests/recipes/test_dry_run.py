"""What `fairseq-residuals reproduce --dry-run` prints: every command, and nothing is touched."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from fairseq import options
from recipe_files import job_of
from refusals import refusal

from fairseq_residuals import __main__ as cli
from fairseq_residuals.lab.data.corpora import find_corpus


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command line; the lines that it printed, less the folders' names."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> list[str]:
        status = cli.main(["reproduce", *args, "--dry-run", "--results", "results.csv"])
        assert status == 0
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()

    return run


def commands(lines: list[str], program: str) -> list[list[str]]:
    return [shlex.split(line) for line in lines if re.match(rf"(\S+ )*{program} ", line) and not line.startswith("#")]


def flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_one_row_of_b2t_from_corpus_to_score(dry_run) -> None:
    lines = dry_run("b2t/table1", "--rows", "18L-18L/B2T", "--gpus", "8")
    [prepare] = commands(lines, "fairseq-residuals prepare")
    folders = ["wmt14_en_de", "data/wmt14_en_de/b2t", "--variant", "b2t", "--downloads", "data/downloads"]
    assert prepare[2:] == folders
    [train] = commands(lines, "fairseq-hydra-train")
    assert flag(train, "--config-name") == "b2t/shared/mt"
    assert "++model._name=transformer_b2t_wmt_en_de_18l" in train
    assert {
        "task.data=data/wmt14_en_de/b2t/data-bin",
        "optimization.update_freq=[16]",
        "dataset.max_tokens=3584",
        "distributed_training.distributed_world_size=8",
    } <= {item.replace(f"{Path.cwd()}/", "") for item in train}
    [average] = commands(lines, "fairseq-residuals average")
    assert flag(average, "--num-epoch-checkpoints") == "10"
    generated = commands(lines, "fairseq-generate")
    assert all(flag(command, "--path") == flag(average, "--output") for command in generated)
    assert "# in all: trainings: 1, updates: at most 50,000, passes on each device: 800,000" in lines
    assert "# in all: files to download or supply: 7" in lines
    assert all(flag(command, "--beam") == "4" for command in generated)
    # length penalty 0.6 for newstest2014, 1.0 for the other years
    penalties = {flag(command, "--gen-subset"): flag(command, "--lenpen") for command in generated}
    test_sets = find_corpus("wmt14_en_de").variants["b2t"].test_sets
    assert penalties == dict.fromkeys(test_sets.values(), "1.0") | {test_sets["newstest2014"]: "0.6"}
    assert {f"# scored by reproduce: {name} by sacrebleu" for name in test_sets} <= set(lines)


def test_corpora_of_several_papers_share_their_downloads(dry_run) -> None:
    args = ("--gpus", "8", "--columns", "En-De*", "--rows")
    prepared = [
        *commands(dry_run("depthwise_lstm/table5", *args, "12"), "fairseq-residuals prepare"),
        *commands(dry_run("dlcl/figure3", *args, "pre-norm/DLCL, 25L"), "fairseq-residuals prepare"),
    ]
    assert {command[3] for command in prepared} == {"data/wmt14_en_de/lstm", "data/wmt14_en_de/dlcl"}
    assert {flag(command, "--downloads") for command in prepared} == {"data/downloads"}


def test_rows_prepare_their_corpus_once_and_scores_of_one_generation_generate_once(dry_run) -> None:
    """ROUGE-1, 2 and L are three scores of Table 3, each by two metrics."""
    lines = dry_run("b2t/table3", "--rows", "6L-6L/B2T", "--gpus", "8")
    assert len(commands(lines, "fairseq-generate")) == 1
    assert lines.count("# scored by reproduce: test by rouge, rouge_unstemmed") == 1
    lines = dry_run("b2t/table5", "--gpus", "4")
    assert len(commands(lines, "fairseq-residuals prepare")) == 1
    assert len(commands(lines, "fairseq-hydra-train")) == 6
    generated = commands(lines, "fairseq-generate")
    assert len(generated) == 6 * 4
    assert {flag(command, "--task") for command in generated} == {"speech_to_text"}


def test_seeds_are_the_papers_or_the_users(dry_run) -> None:
    row = ("--rows", "pre-norm/DLCL-deep (Base,30L)", "--gpus", "8")
    other = ("--rows", "pre-norm/DLCL (Base)")
    for extra, seeds in ((), ["1", "2", "3"]), (("--seeds", "7", "--seeds", "8", *other), ["7", "8", "7", "8"]):
        trained = commands(dry_run("dlcl/table1", *row, *extra), "fairseq-hydra-train")
        assert [s.removeprefix("common.seed=") for c in trained for s in c if "common.seed" in s] == seeds


def test_other_checkpoints_of_a_training_are_other_files(dry_run) -> None:
    """What is there is not made again: the scores of one average were recorded as those of another."""
    files = set()
    for choice in ("recipe.average.last=10", "recipe.average.last=5", "recipe.average=null"):
        lines = dry_run("b2t/table3", "--rows", "6L-6L/B2T", "--gpus", "8", "--override", choice)
        [line] = [line for line in lines if line.startswith("fairseq-generate ")]
        files.add((flag(shlex.split(line), "--path"), line.partition(" > ")[2]))
    assert [len(set(column)) for column in zip(*files, strict=True)] == [3, 3]
    assert len({Path(path).parts[:-1] for path, _ in files if "average" in path}) == 1


def test_perplexities_are_evaluated_with_and_without_context(dry_run) -> None:
    evaluated = commands(dry_run("b2t/table4", "--rows", "16L/B2T", "--gpus", "8"), "fairseq-eval-lm")
    found = {(flag(command, "--gen-subset"), flag(command, "--context-window")) for command in evaluated}
    assert found == {(subset, window) for subset in ("valid", "test") for window in ("0", "960")}


def test_perplexities_of_validation_are_for_a_task(dry_run) -> None:
    """fairseq-validate takes no task by itself, and none of the flags of generation."""
    [command] = commands(dry_run("dlcl/table7", "--rows", "pre/std", "--seeds", "1", "--gpus", "1"), "fairseq-validate")
    command = command[: command.index(">")]
    parser = options.get_validation_parser()
    parsed = options.parse_args_and_arch(parser, input_args=command[1:])
    assert (parsed.task, parsed.valid_subset, parsed.max_tokens) == ("translation", "valid", 8000)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--gpus", "8", "--precision", "bf16"), {"common.bf16=true", "common.fp16=false"}),
        (("--gpus", "8", "--precision", "fp32"), {"common.bf16=false", "common.fp16=false"}),
        (("--gpus", "0"), {"common.cpu=true", "common.fp16=false"}),
        (("--gpus", "1", "--max-update", "7"), {"++optimization.max_update=7"}),
        (("--override", "model.dropout=0", "--override", "common.seed=3"), {"++common.seed=3", "++model.dropout=0"}),
    ],
)
def test_precision_device_and_changes_reach_the_command(dry_run, args: tuple[str, ...], expected: set[str]) -> None:
    [train] = commands(dry_run("b2t/table1", "--rows", "6L-6L/B2T", *args), "fairseq-hydra-train")
    assert expected <= set(train)


def test_another_source_or_schedule_can_be_chosen_by_its_file(dry_run) -> None:
    row = ("--rows", "ResiDual", "--gpus", "8")
    for extra, updates in ((), "50,000"), (("--override", "resi_dual/wmt_source=paper"), "500,000"):
        lines = dry_run("resi_dual/table7", *row, *extra)
        assert any(f" updates: at most {updates}, " in line for line in lines)
    lines = dry_run("b2t/table1", "--rows", "6L-6L/B2T", "--gpus", "8", "--override", "schedule=t_fixup")
    assert ["schedule=t_fixup" in train for train in commands(lines, "fairseq-hydra-train")] == [True]
    schedule = job_of("b2t/table1/6l_b2t", overrides=("schedule=t_fixup",)).asked.lr_scheduler
    assert schedule._name == "inverse_sqrt_nowarmup" and "warmup_updates" not in schedule


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("b2t/table99",), "there are no recipes for 'b2t/table99'"),
        (("b2t/table1", "--rows", "7L"), "'7L' is not in it; its rows are 6L-6L/Post-LN, "),
        (("dlcl/table2", "--rows", "post-norm/Bapna2018"), "was taken from elsewhere by the paper"),
        (("b2t/table1", "--max-update", "0"), "--max-update must be at least 1"),
        (
            ("synthetic/translation", "--max-update", "4"),
            "averages 3 checkpoints, and saves 0 in 4 updates: --override",
        ),
        (("b2t/table1", "--jobs", "0"), "--jobs must be at least 1"),
        (
            ("b2t/table1", "--gpus", "1", "--override", "checkpoint.sve_dir=x"),
            "fairseq has no setting checkpoint.sve_dir (did you mean checkpoint.save_dir?)",
        ),
        (
            ("b2t/table1", "--gpus", "1", "--override", "optimisation.lr=1"),
            "has no setting optimisation (did you mean optimization?); at the top are _name, common, ",
        ),
        (("b2t/table1", "--gpus", "1", "--override", "schedule=nomad"), "Could not find 'schedule/nomad'"),
        (("b2t/table1", "--gpus", "1", "--override", "schedule=3"), "Config group override must be a string or a list"),
        (
            ("b2t/table1", "--gpus", "1", "--override", "optimization.lr=0.0005"),
            "float is not a ListConfig, list or tuple. full_key: optimization.lr",
        ),
        (
            ("b2t/table1", "--gpus", "1", "--override", "optimization.max_update=many"),
            "Value 'many' of type 'str' could not be converted to Integer full_key: optimization.max_update",
        ),
        (("b2t/table1", "--gpus", "1", "--override", "recipe.average.last=11"), "keep_last_epochs=11 as well"),
        (("b2t/table1", "--gpus", "1", "--out", "runs:1"), "hydra takes no quotation mark in a path, and fairseq"),
        (("b2t/table1", "--gpus", "-1"), "--gpus must be at least 0, not -1; 0 trains on the CPU"),
        (("b2t/table1", "--gpus", "1", "--override", "recipe.averge=1"), "unknown keys averge; valid: average, "),
        (("b2t/table1", "--gpus", "1", "--override", "~recipe.average.unit"), "average is {'last': 10}; valid: null, "),
        (("b2t/table1", "--gpus", "1", "--override", "~recipe.checkpoint"), "b2t/table1/6l_post_ln lacks checkpoint"),
        (("b2t/table1", "--gpus", "1", "--override", "model.dropuot=1"), "dropuot under model (did you mean dropout?)"),
        (("b2t/table1", "--gpus", "1", "--override", "task.data=mine"), "task.data would have no effect: --data names"),
        (("b2t/table1", "--gpus", "1", "--override", "+checkpoint.save_dir=mine"), "would have no effect: --out names"),
        (("b2t/table4", "--gpus", "1", "--override", "eval_lm.context_window=9"), "recipe.evaluate.flags says this"),
        (("dlcl/table1", "--gpus", "1", "--override", "common.seed=7"), "on runs of given seeds: --seeds says this"),
        (("b2t/table4", "--gpus", "1", "--override", "optimization.update_freq=[1,2]"), "tion.update_freq=[1, 2]"),
        (("b2t/table1", "--gpus", "1", "--override", "dataset.max_tokens=null"), "not dataset.max_tokens=None and"),
        (("b2t/table4", "--gpus", "200"), "on each of 200 devices: at most 128 can share them"),
    ],
)
def test_mistakes_are_one_sentence(
    args: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capsys, "reproduce", *args, "--dry-run")
    assert not list(tmp_path.iterdir())
