"""What is read from logs of fairseq in every format, and from other programs' lists."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fairseq_residuals.lab.look.curves import groups
from fairseq_residuals.lab.look.training_log import EPOCH, TRAIN, VALID, Log, read_log
from fairseq_residuals.wirings.core.errors import UserError

INNER = {100: (9.5, 1.8), 200: (7.25, 1.1)}
"""By update: the training loss and the norm of the gradient."""
PLAIN, HYDRA = "2026-01-02 03:04:05 | INFO | {} | ", "[2026-01-02 03:04:05,678][{}][INFO] - "
MANY = "1" * 5000
"""Digits, of which Python makes no number."""
WIRED = "encoder: 18 layers wired by b2t (init=fairseq,init_scale=1), B2T connection: x = LN(x + F(x))"


def json_lines(prefix: str) -> list[str]:
    lines = []
    for update, (loss, gnorm) in INNER.items():
        values = {"epoch": 1, "update": 0.5, "loss": str(loss), "num_updates": str(update), "gnorm": str(gnorm)}
        lines.append(
            prefix.format("train_inner") + json.dumps(values | {"gnorm/encoder.layers.0": "0.25", "wps": None})
        )
    valid = {"epoch": 1, "valid_loss": "7.5", "valid_ppl": "181.02", "valid_num_updates": "200"}
    lines.append(prefix.format("valid") + json.dumps(valid))
    lines.append(prefix.format("train") + json.dumps({"epoch": 1, "train_loss": "8.375", "train_num_updates": "200"}))
    return lines


def text_lines(prefix: str, bar: str) -> list[str]:
    lines = []
    for update, (loss, gnorm) in INNER.items():
        values = f"loss={loss}, num_updates={update}, gnorm={gnorm}, gnorm/encoder.layers.0=0.25"
        lines.append(bar.format(epoch="epoch 001", update=update, values=values))
    inner = prefix.format("valid") + "epoch 001 | valid on 'valid' subset | loss 7.5 | ppl 181.02 | num_updates 200"
    epoch = prefix.format("train") + "epoch 001 | loss 8.375 | ppl 332 | num_updates 200 | lr 0.001"
    return [*lines, inner, epoch]


SIMPLE = PLAIN.format("train_inner") + "{epoch}:  {update:5d} / 400 {values}"
TQDM = "{epoch}:  25%|██▌       | {update}/400 [00:10<00:31, 9.5it/s, {values}]"
OLD = "| {epoch}:  {update:5d} / 400 {values}"
"""fairseq before 0.10."""
FORMATS = {
    "json": json_lines(PLAIN),
    "json by hydra": json_lines(HYDRA),
    "json in a log file": json_lines(""),
    "simple": text_lines(PLAIN, SIMPLE),
    "simple by hydra": text_lines(HYDRA, HYDRA.format("train_inner") + "{epoch}:  {update:5d} / 400 {values}"),
    "tqdm": text_lines(PLAIN, TQDM),
    "old": text_lines("| ", OLD),
}


def write(folder: Path, *lines: str, name: str = "train.log", end: str = "\n") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(end.join(lines) + end, encoding="utf-8")
    return file


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_tells_the_same(form: str, tmp_path: Path) -> None:
    noise = ["2026 | INFO | fairseq.tasks.text_to_speech | Please install tensorboardX", "loading epoch 001: done"]
    noise += ["| INFO | train | epoch 001 | valid on 'train' subset | loss 7 | num_updates 200"] * ("json" not in form)
    log = read_log(write(tmp_path, *FORMATS[form], *noise, end="\r" if form == "tqdm" else "\n"))
    assert log.curve("loss", TRAIN) == {100: 9.5, 200: 7.25}
    assert log.curve("gnorm", TRAIN) == {100: 1.8, 200: 1.1}
    assert log.curve("gnorm/encoder.layers.0", TRAIN) == {100: 0.25, 200: 0.25}
    assert log.curve("loss", VALID) == {200: 7.5}
    assert log.curve("ppl", VALID) == {200: 181.02}
    assert log.curve("loss", EPOCH) == {200: 8.375}
    assert log.troubles == [] and not log.finished


def test_what_the_run_was(tmp_path: Path) -> None:
    cfg = "2026 | INFO | fairseq_cli.train | {'_name': None, 'common': {'seed': 7, 'fp16': False, 'on': '/killed'}}"
    decoder = WIRED.replace("encoder: 18", "decoder: 6").replace("b2t (", "post_ln:0-2,b2t:3-5 (")
    log = read_log(write(tmp_path, cfg, WIRED, decoder, *FORMATS["json"], "| done training in 3.5 seconds"))
    assert log.wirings == {"encoder": "b2t", "decoder": "post_ln:0-2,b2t:3-5"}
    assert log.wiring == "b2t/post_ln:0-2,b2t:3-5"
    assert log.layers == {"encoder": 18, "decoder": 6} and log.seed == 7 and log.finished


def test_what_is_logged_again_after_a_resumption_stands(tmp_path: Path) -> None:
    again = [line.replace("7.25", "7.0") for line in FORMATS["simple"]]
    log = read_log(write(tmp_path, *FORMATS["simple"], *again))
    assert log.curve("loss", TRAIN) == {100: 9.5, 200: 7.0}


def test_numbers_that_are_none(tmp_path: Path) -> None:
    lines = [SIMPLE.format(epoch="epoch 001", update=300, values="loss=nan, num_updates=300, gnorm=inf")]
    log = read_log(write(tmp_path, *FORMATS["simple"], *lines))
    assert math.isnan(log.curve("loss", TRAIN)[300]) and math.isinf(log.curve("gnorm", TRAIN)[300])


def test_score_of_generate(tmp_path: Path) -> None:
    line = "Generate test with beam=4: BLEU4 = 27.33, 58.1/33.0/20.9/13.6 (BP=1.000, ratio=1.013, syslen=6, reflen=5)"
    assert read_log(write(tmp_path, WIRED, line)).curve("bleu", "test") == {0: 27.33}
    for scores, name, value in (
        ("rouge1 = 22.16, rouge2 = 5.00, rougeL = 20.00, rouge = 14.66 (ROUGE|stem:yes)", "rouge", 14.66),
        ("rouge1 = 22.16, rouge2 = 5.00, rougeL = 20.00, rouge = 14.66 (ROUGE|stem:yes)", "rouge2", 5.0),
        ("tokenized_bleu = 12.30 (BLEU|nrefs:1)", "tokenized_bleu", 12.3),
        ("WER: 8.50", "wer", 8.5),
    ):
        log = read_log(write(tmp_path, WIRED, f"Generate test with beam=4: {scores}"))
        assert log.curve(name, "test") == {0: value}


def test_seeds_are_put_together_and_others_are_not(tmp_path: Path) -> None:
    def run(seed: int, name: str, wired: str = WIRED, change: float = 0.0) -> str:
        lines = [line.replace("7.25", str(7.25 + change)) for line in FORMATS["json"]]
        decoder = wired.replace("encoder", "decoder")
        return str(write(tmp_path, f"'seed': {seed}", wired, decoder, *lines, name=name))

    one, two = run(1, "b2t-1.log"), run(2, "b2t-2.log", change=0.5)
    other = run(1, "scaled.log", WIRED.replace("init_scale=1", "init_scale=0.1"))
    (group,) = groups([one, two])
    assert group.label == "B2T connection" and group.wiring == "b2t"
    point = group.points("loss", TRAIN)[-1]
    assert (point.x, point.mean, point.low, point.high, point.runs) == (200, 7.5, 7.25, 7.75, 2)
    assert group.best("loss", TRAIN).mean == 7.5 and group.depth(("encoder", "decoder")) == 36
    labels = [group.label for group in groups([str(tmp_path / "b2t-*.log"), other])]
    assert labels == ["B2T connection (init_scale=1)", "B2T connection (init_scale=0.1)"]
    with pytest.raises(UserError, match="tells their runs apart"):
        groups([one, run(1, "again.log")])
    assert [len(group.logs) for group in groups([f"mine={one}", f"mine={other}"])] == [2]


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("'lr': [{0}], 'model': Namespace(dropout=0.1, lr=[{0}])", (0.01, 1e-6)),
        ("'optimizer': {{'_name': '{}'}}", ("adam", "sgd")),
        ("'activation_fn': '{}'", ("relu", "gelu")),
        ("'target_lang': '{}'", ("de", "ro")),
    ],
)
def test_runs_of_other_settings_are_told_apart(setting: str, values: tuple[object, object], tmp_path: Path) -> None:
    names = []
    for seed, value in ((1, values[0]), (2, values[0]), (1, values[1])):
        config = f"{{'seed': {seed}, {setting.format(value)}}}"
        names.append(str(write(tmp_path, config, WIRED, *FORMATS["json"], name=f"lr={value}/{seed}.log")))
    key = setting.split("'")[1]
    assert [(group.label, len(group.logs)) for group in groups(names)] == [
        (f"B2T connection ({key}={values[0]})", 2),
        (f"B2T connection ({key}={values[1]})", 1),
    ]
    (group,) = groups([f"a=b={tmp_path}/lr={values[0]}/*.log"])
    assert (group.label, len(group.logs)) == ("a=b", 2)


def test_a_log_is_read_while_it_is_being_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "train.log")
    assert log.read_on().records == []
    log.path.write_text(
        "# $ fairseq-hydra-train common.seed=5\n"
        "x | INFO | fairseq_cli.train | num. shared model params: 12,345 (num. trained: 12,345)\n"
        'x | INFO | train_inner | {"epoch": 1, "loss": "9.5", "num_updates": "10"}\n'
        'x | INFO | valid | {"epoch": 1, "valid_loss": "9.25", "valid_num_updates": "10"}\n'
        'x | INFO | train_inner | {"epoch": 1, "loss": "9.'
    )
    log.read_on()
    assert (log.parameters, log.curve("loss", TRAIN), log.curve("loss", VALID)) == (12345, {10: 9.5}, {10: 9.25})
    assert log.seed is None  # the command is not fairseq's word
    with log.path.open("a") as file:
        file.write('25", "num_updates": "20"}\n')
    assert log.read_on().curve("loss", TRAIN) == {10: 9.5, 20: 9.25}
    assert len(log.records) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_log_that_was_cut_off_says_nothing_that_it_did_not_log(form: str, tmp_path: Path) -> None:
    """Cut anywhere, it has some of the records of the whole log, and no others."""
    whole = write(tmp_path, *FORMATS[form])
    records = {(r.subset, r.update): r.values for r in read_log(whole).records}
    text = whole.read_text()
    for end in range(len(text)):
        whole.write_text(text[:end])
        try:
            log = read_log(whole)
        except UserError:
            continue
        assert all(records[r.subset, r.update] == r.values for r in log.records), text[:end]


@pytest.mark.parametrize("update", ["nan", "inf", "1e400", pytest.param(MANY, id="many"), "none", ""])
def test_records_without_a_number_of_updates_are_none(update: str, tmp_path: Path) -> None:
    lines = [line.replace("200", update) for line in FORMATS["simple"][:2]]
    lines += [line.replace('"200"', f'"{update}"') for line in FORMATS["json"][:2]]
    assert {r.update for r in read_log(write(tmp_path, *lines)).records} == {100}


@pytest.mark.parametrize(
    "line", [WIRED.replace("18", "1" * 5000), f"encoder_layers={'1' * 5000}", f"seed: {'1' * 5000}"]
)
def test_settings_of_too_many_digits_say_nothing(line: str, tmp_path: Path) -> None:
    log = read_log(write(tmp_path, line, *FORMATS["simple"]))
    assert not log.layers and log.seed is None


def test_what_was_done_after_the_checkpoint_that_a_run_goes_on_from_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    again = "2026 | INFO | fairseq.trainer | Loaded checkpoint s/checkpoint_last.pt (epoch 2 @ 10 updates)"
    before, after = ((5, 8.0), (10, 6.0), (15, 2.0), (20, 1.0)), ((15, 5.5), (18, 5.25))
    lines = [[f"epoch 001:  1 / 9 loss={loss}, num_updates={at}" for at, loss in part] for part in (before, after)]
    path.write_text("\n".join([*lines[0], again, *lines[1]]) + "\n")
    assert read_log(path).curve("loss", TRAIN) == {5: 8.0, 10: 6.0, 15: 5.5, 18: 5.25}
