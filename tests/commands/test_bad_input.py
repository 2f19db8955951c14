"""Mistakes: one sentence that names what is wrong and what would be valid, and nothing half-written."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import yaml
from rotation import rotated
from running import PLUGIN, argv_of, assert_argparse_says, assert_one_sentence, execute, files_under, load
from tiny_jobs import ADAM, LANGUAGE_MODEL, SPEECH, TRANSLATION, as_flags, without_plugin
from yaml_configs import config, hydra_argv

ALL = ("b2t", "post_ln", "pre_ln")
MODEL_MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown variant": ({"residual": "b2x"}, ("'b2x'", *ALL)),
    "unknown variant of the decoder": ({"decoder_residual": "pre-ln"}, ("'pre-ln'", *ALL)),
    "option of another type": ({"residual_args": "init_scale=deep"}, ("'deep'", "init_scale", "depth", "number")),
    "heads that do not divide": ({"decoder_attention_heads": 3}, ("dim 16", "heads 3", "1, 2, 4, 8, 16")),
}
"""tests/test_settings.py has more of them."""


@pytest.mark.parametrize(
    ("mistake", "command"), rotated(list(MODEL_MISTAKES), ["fairseq-train", "fairseq-hydra-train"])
)
def test_model_that_cannot_be_built(command, mistake, data_of, tmp_path):
    settings, named = MODEL_MISTAKES[mistake]
    data, save_dir = data_of(TRANSLATION), tmp_path / "save"
    if command == "fairseq-train":
        argv = argv_of(command, *TRANSLATION.train_flags(data, save_dir), *ADAM, *as_flags(settings))
    else:
        whole = config(TRANSLATION, data, save_dir)
        whole["model"] |= settings
        argv = hydra_argv(whole, tmp_path)
    assert_one_sentence(execute(argv, cwd=tmp_path), *named)
    assert not files_under(save_dir)


@pytest.mark.parametrize(
    ("command", "folder"),
    rotated(["train", "hydra-train", "generate", "validate", "interactive", "eval-lm", "speech"], ["absent", "empty"]),
)
def test_data_folder_that_is_none(command, folder, tmp_path, trained):
    data, save_dir = tmp_path / folder, tmp_path / "save"
    (tmp_path / "empty").mkdir()
    job = {"eval-lm": LANGUAGE_MODEL, "speech": SPEECH}.get(command, TRANSLATION)
    if command in ("train", "speech"):
        argv = argv_of("fairseq-train", *job.train_flags(data, save_dir), *ADAM)
    elif command == "hydra-train":
        argv = hydra_argv(config(job, data, save_dir), tmp_path)
    else:
        checkpoint, batch_size = trained(job)[0] / "checkpoint_last.pt", None if command == "interactive" else 4
        argv = argv_of(f"fairseq-{command}", *job.use_flags(data, checkpoint, batch_size))
    assert_one_sentence(execute(argv, cwd=tmp_path), str(data))
    assert not files_under(save_dir, tmp_path / "empty")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("command", ["train", "generate"])
def test_checkpoint_that_does_not_fit(command, data_of, trained, tmp_path):
    """tests/hostile has those that cannot be read, for every command."""
    name, bad = "encoder.layers.0.fc1.weight", tmp_path / "bad.pt"
    state = load(trained(TRANSLATION)[0] / "checkpoint_last.pt")
    state["model"][name] = torch.zeros(64, 16)
    torch.save(state, bad)
    data = data_of(TRANSLATION)
    if command == "train":
        flags = [*TRANSLATION.train_flags(data, tmp_path / "save"), *ADAM, "--restore-file", str(bad)]
    else:
        flags = TRANSLATION.use_flags(data, bad)
    run = execute(argv_of(f"fairseq-{command}", *flags), cwd=tmp_path)
    assert_one_sentence(run, str(bad), name)
    assert files_under(tmp_path) == [bad]


UNUSABLE = [
    (("--batch-size", "4", "--model-overrides", "{'residual': 'post_ln'}"), ("the wiring b2t", "--model-overrides")),
    (("--max-tokens", "3"), ("Sentences lengths should not exceed max_tokens=3",)),
]


@pytest.mark.parametrize(("values", "command"), rotated(UNUSABLE, ["fairseq-generate", "fairseq-validate"]))
def test_value_that_cannot_be_used(values, command, data_of, trained):
    flags, named = values
    checkpoint = trained(TRANSLATION)[0] / "checkpoint_last.pt"
    uses = TRANSLATION.use_flags(data_of(TRANSLATION), checkpoint, batch_size=None)
    assert_one_sentence(execute(argv_of(command, *uses, *flags)), *named)


@pytest.mark.parametrize("line", [b"word count\n", b"\xff 3\n"])
def test_dictionary_that_is_damaged(line, data_of, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(data_of(TRANSLATION), data)
    with open(data / "dict.s.txt", "ab") as file:
        file.write(line)
    run = execute(argv_of("fairseq-train", *TRANSLATION.train_flags(data, tmp_path / "save"), *ADAM))
    assert_one_sentence(run, "word" if line.isascii() else f"{data / 'dict.s.txt'} is not UTF-8")
    assert not files_under(tmp_path / "save")


def test_mistake_in_a_spawned_process(tmp_path):
    """The data folder is looked up by the two processes that train."""
    flags = [*TRANSLATION.train_flags(tmp_path / "absent", tmp_path / "save"), *ADAM, "--distributed-world-size", "2"]
    assert_one_sentence(execute(argv_of("fairseq-train", *flags)), str(tmp_path / "absent"))
    # the spawner ends the other process by a signal; where that was the one with the lock, its empty file stays
    assert {path.name for path in files_under(tmp_path)} <= {".lock"}


@pytest.mark.parametrize("command", ["train", "generate without the plugin"])
def test_architecture_that_is_unknown(command, data_of, trained, tmp_path):
    data, save_dir = data_of(TRANSLATION), tmp_path / "save"
    if command == "train":
        flags = [*TRANSLATION.train_flags(data, save_dir), *ADAM, "--arch", "transformer_b2x_6l"]
        run = execute(argv_of("fairseq-train", *flags))
        assert_argparse_says(run, "'transformer_b2x_6l'", "did you mean transformer_b2t_6l")
        assert len(run.err.splitlines()[-1]) < 300
    else:
        flags = without_plugin(TRANSLATION.use_flags(data, trained(TRANSLATION)[0] / "checkpoint_last.pt"))
        assert_one_sentence(execute(argv_of("fairseq-generate", *flags)), TRANSLATION.arch, "--user-dir")
    assert not files_under(save_dir)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--arch", "transformer_lm_b2t_6l"), ("transformer_lm_b2t_6l", "--task language_modeling")),
        (("--arch", "s2t_transformer_b2t_s"), ("s2t_transformer_b2t_s", "--task speech_to_text")),
    ],
)
def test_choices_that_do_not_go_together(flags, named, data_of, tmp_path):
    common = [data_of(TRANSLATION), "--user-dir", PLUGIN, "--save-dir", tmp_path, "--cpu", "--batch-size", "4", *ADAM]
    assert_one_sentence(execute(argv_of("fairseq-train", *common, *flags)), *named)
    assert not files_under(tmp_path)


def test_no_optimizer(data_of, tmp_path):
    flags = TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path)
    assert_one_sentence(execute(argv_of("fairseq-train", *flags)), "--optimizer is missing")
    assert not files_under(tmp_path)


@pytest.mark.parametrize(("content", "workers"), [(None, "2"), (b"no audio", "0")], ids=["missing", "no audio"])
def test_sound_file_that_cannot_be_read(content, workers, data_of, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(data_of(SPEECH), data)
    settings = yaml.safe_load((data / "config.yaml").read_text())
    (data / "config.yaml").write_text(yaml.safe_dump(settings | {"audio_root": str(data / "wav")}))
    bad = data / "wav" / "train5.wav"
    bad.unlink()
    if content:
        bad.write_bytes(content)
    flags = [*SPEECH.train_flags(data, tmp_path / "save"), *ADAM, "--num-workers", workers]
    assert_one_sentence(execute(argv_of("fairseq-train", *flags)), str(bad))
    assert not files_under(tmp_path / "save")


def test_admin_does_not_begin_with_a_file(data_of, tmp_path):
    flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path / "save"), "--residual", "admin"]
    flags += ["--residual-args", "profile=nowhere.json"]
    run = execute(argv_of("fairseq-train", *flags), cwd=tmp_path)
    assert_one_sentence(run, "profile=nowhere.json: files of omegas are read no more; valid: auto, the first batch")
    assert files_under(tmp_path) == [] and "epoch 001" not in run.out
