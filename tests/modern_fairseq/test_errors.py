"""A user's mistake is one sentence and exit status 1; a bug keeps its traceback."""

import errno
import io
import os
import types

import pytest
import torch
from fairseq import options

import fairseq_residuals  # noqa: F401 (registers it)
from fairseq_residuals_errors import UserError
from modern_fairseq import mistakes
from modern_fairseq.messages import commands


def command(error):
    """A module like fairseq_cli.train whose command fails with ``error``, patched."""

    def cli_main():
        raise error

    module = types.ModuleType("fairseq_cli.train")
    module.cli_main = cli_main
    commands.one_sentence_errors(module)
    return module.cli_main


def test_a_users_mistake_is_printed_in_one_line_without_traceback(capsys):
    with pytest.raises(SystemExit) as exit_:
        command(UserError("the depth is 0,\n  but must be at least 1"))()
    assert exit_.value.code == 1
    assert capsys.readouterr() == ("", "fairseq-train: error: the depth is 0, but must be at least 1\n")


@pytest.mark.parametrize("error", [RuntimeError("x"), AssertionError(), KeyError("a"), OSError(22, "Invalid argument")])
def test_a_bug_passes_through_unchanged(error, capsys):
    with pytest.raises(type(error)) as caught:
        command(error)()
    assert caught.value is error
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_no_bug(number, capsys):
    with pytest.raises(SystemExit):
        command(OSError(number, os.strerror(number), "/the/file"))()
    assert capsys.readouterr().err == f"fairseq-train: error: /the/file: {os.strerror(number)}\n"


def test_a_full_disk_is_named_also_where_nobody_names_the_file(capsys):
    with pytest.raises(SystemExit):
        command(OSError(errno.ENOSPC, "No space left on device"))()
    assert capsys.readouterr().err == "fairseq-train: error: what is to be written cannot be: No space left on device\n"


def test_what_torch_says_of_a_full_disk_is_not_what_it_is_about(capsys):
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 0:
                raise OSError(errno.ENOSPC, "No space left on device", "/the/file")
            return super().write(data)

    with pytest.raises(RuntimeError, match="unexpected pos") as caught:
        torch.save({"a": torch.zeros(9)}, Full())
    with pytest.raises(SystemExit):
        command(caught.value)()
    assert capsys.readouterr().err == "fairseq-train: error: /the/file: No space left on device\n"


def test_the_sentence_is_taken_out_of_a_data_workers_traceback():
    text = (
        "Caught UserError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\nfairseq_residuals_errors.UserError: speech needs soundfile\n'
    )
    assert str(UserError(text)) == "speech needs soundfile"


def test_a_name_in_a_file_does_not_speak_to_the_terminal():
    assert str(UserError("has a \x1b[2J\x9b1m\u202e of its own\n")) == r"has a \x1b[2J\x9b1m\u202e of its own"


def test_a_missing_file_is_named_and_a_dictionary_tells_a_missing_folder_from_a_wrong_one(tmp_path):
    def sentence(path):
        with pytest.raises(FileNotFoundError) as caught:
            path.read_text()
        return str(mistakes.explain(caught.value))

    missing = sentence(tmp_path / "train.de")
    assert str(tmp_path / "train.de") in missing and "\n" not in missing
    assert sentence(tmp_path / "nope" / "dict.txt") == f"the data folder {tmp_path / 'nope'} does not exist"
    wrong = sentence(tmp_path / "dict.de.txt")
    assert wrong.startswith(f"{tmp_path} is no data folder")
    assert "dict.de.txt" in wrong
    assert "fairseq-preprocess" in wrong


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (FileNotFoundError("Dataset not found: valid (data-bin)"), "valid (data-bin)"),
        (Exception("Incorrect encoding detected in dict.txt, please rebuild the dataset"), "dict.txt is not UTF-8"),
        (OSError("file MISSING not found"), "file MISSING not found"),
        (Exception("Could not infer language pair, please provide it explicitly"), "fairseq-preprocess makes one"),
        (OSError("Model file not found: a/b.pt"), "there is no checkpoint a/b.pt"),
        (FileExistsError("bin/dict.de.txt"), "bin/dict.de.txt exists already"),
        (AssertionError("--path required for generation!"), "--path required"),
        (AssertionError("Must specify batch size either with --max-tokens or --batch-size"), "--max-tokens"),
        (
            AssertionError("Optimizer does not match; please reset the optimizer (--reset-optimizer). A vs B"),
            "A vs B",
        ),
        (
            ValueError("--fp16-scale-window must be given explicitly when using a custom --update-freq schedule"),
            "--fp16",
        ),
        (
            Exception(
                "Size of sample #0 is invalid (=(9, 0)) since max_positions=(4, 4), skip this example with --skip"
            ),
            "since max_positions=(4, 4)",
        ),
        (KeyError("best"), "another --lr-scheduler"),
        (AssertionError("Reference file ref.de does not exist"), "Reference file ref.de does not exist"),
        (
            RuntimeError(
                "Expected to have finished reduction in the prior iteration before starting a new one. This error\n..."
            ),
            "give --find-unused-parameters, or --ddp-backend legacy_ddp",
        ),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b"), "a/b: Not a directory"),
        (FloatingPointError("gradients are Nan/Inf"), "training diverged: gradients are Nan/Inf; `fairseq-residuals"),
        (
            # as fairseq says it, with the end of the line
            ValueError("Incorrect dictionary format, expected '<token> <cnt> [flags]': \"a b\n\""),
            "expected '<token> <cnt> [flags]': \"a b \"",
        ),
        (
            RuntimeError(
                "Duplicate word found when loading Dictionary: 'a'. Duplicate words can overwrite earlier ones"
            ),
            "Duplicate word found when loading Dictionary: 'a'.",
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
                " allocate 1048576 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "memory is used up: there were no 1048576 bytes left",
        ),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 4.00"
                " MiB is free."
            ),
            "memory is used up: there were no 20.00 MiB left",
        ),
    ],
)
def test_what_fairseq_says_about_a_mistake_is_recognised(error, part):
    assert part in str(mistakes.explain(error))


@pytest.mark.parametrize("error", [ValueError("Dataset not found: x"), AssertionError("x.shape == y.shape")])
def test_other_errors_are_not_taken_for_mistakes(error):
    assert mistakes.explain(error) is None


def test_a_missing_architecture_or_task_is_named():
    for parser, missing in ((options.get_training_parser(), "--arch"), (options.get_validation_parser(), "--task")):
        with pytest.raises(UserError, match=missing):
            options.parse_args_and_arch(parser, ["data"])
    with pytest.raises(SystemExit) as caught:  # argparse's own errors stay argparse's
        options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "transformer", "--task"])
    assert caught.value.code == 2


def test_help_lists_the_flags_of_the_architecture(capsys):
    """fairseq printed its help before it knew them."""
    for arguments, listed in ((["--help", "--arch", "transformer_b2t_6l"], True), (["--help"], False)):
        with pytest.raises(SystemExit) as caught:
            options.parse_args_and_arch(options.get_training_parser(), arguments)
        text = capsys.readouterr().out
        assert caught.value.code == 0
        assert all((flag in text) == listed for flag in ("--residual-args", "--log-residual-stats", "--source-lang"))
