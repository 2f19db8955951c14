"""What fairseq's commands would answer wrongly, or with a traceback: a sentence, before anything is written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fairseq_cli.eval_lm
import fairseq_cli.generate
import fairseq_cli.interactive
import fairseq_cli.preprocess
import fairseq_cli.train
import fairseq_cli.validate
import pytest
from fairseq import options, utils
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_residuals_errors import UserError

ENGLISH, GERMAN = "a b c\nd e\nf\n", "x y\nz\nw v u\n"
TINY = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "8", "--decoder-embed-dim", "8"]
TINY += ["--encoder-ffn-embed-dim", "8", "--decoder-ffn-embed-dim", "8", "--encoder-attention-heads", "1"]
TINY += ["--decoder-attention-heads", "1"]


def preprocess(folder: Path, *flags: Any) -> None:
    parser = options.get_preprocessing_parser()
    fairseq_cli.preprocess.main(parser.parse_args([*map(str, flags), "--destdir", str(folder / "data")]))


def pair(folder: Path, source: str | bytes = ENGLISH, target: str | bytes = GERMAN, split: str = "train") -> Path:
    """Writes a parallel text, and returns its prefix."""
    folder.mkdir(exist_ok=True)
    for language, text in (("en", source), ("de", target)):
        (folder / f"{split}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / split


def train(*flags: Any) -> None:
    arguments = [*map(str, flags), "--optimizer", "sgd", "--lr", "0.1", "--cpu", "--max-update", "1"]
    arguments += ["--disable-validation", "--valid-subset", "train", "--batch-size", "2", "--num-workers", "0"]
    arguments += ["--no-progress-bar"]
    fairseq_cli.train.main(
        convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    )


def generate(*flags: Any, command: Any = fairseq_cli.generate) -> None:
    parser = options.get_interactive_generation_parser() if command is fairseq_cli.interactive else None
    parser = parser or options.get_generation_parser()
    arguments = [*map(str, flags), "--cpu", "--num-workers", "0"]
    command.main(options.parse_args_and_arch(parser, arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data folder (with a joined dictionary, in both directions) and the checkpoints of an English-German model."""
    folder = tmp_path_factory.mktemp("trained")
    prefix = pair(folder / "text")
    flags = ["--trainpref", prefix, "--testpref", prefix, "--joined-dictionary", "-s", "en", "-t", "de"]
    preprocess(folder, *flags)
    for side in ("en", "de"):
        for ending in ("bin", "idx"):
            shutil.copy(folder / f"data/test.en-de.{side}.{ending}", folder / f"data/test.de-en.{side}.{ending}")
    model = ("--arch", "transformer", *TINY, "--share-all-embeddings")
    train(folder / "data", "-s", "en", "-t", "de", *model, "--save-dir", folder / "mt")
    lines = folder / "lines"
    lines.write_text(ENGLISH)
    preprocess(folder / "lm", "--only-source", "--trainpref", lines, "--srcdict", folder / "data/dict.en.txt")
    decoder = [flag for at in range(0, len(TINY), 2) if TINY[at].startswith("--decoder") for flag in TINY[at : at + 2]]
    task = ["--task", "language_modeling", "--tokens-per-sample", "8", "--arch", "transformer_lm"]
    train(folder / "lm/data", *task, *decoder, "--save-dir", folder / "lm")
    return folder / "data", folder


@pytest.mark.parametrize(
    ("texts", "flags", "sentence"),
    [
        ((ENGLISH, GERMAN + "one more\n"), (), r"as many lines as each other: \S+train.en has 3, \S+train.de has 4"),
        ((ENGLISH + "\n", GERMAN), (), "has 4, .*has 3"),
        ((ENGLISH.replace("\n", "\r", 1), GERMAN + "\n"), (), "has 3, .*has 4"),
        (("", ""), (), "train.en is empty"),
        ((ENGLISH, ""), (), "train.de is empty"),
        ((ENGLISH, "\n \n\t\n"), (), "train.de has no word in any of its 3 lines"),
        (("one\ngrün\n".encode("latin-1"), "a\nb\n"), (), r"train.en is not UTF-8 text"),
        ((ENGLISH, GERMAN), ("-t", "en"), "both en, one and the same text"),
        ((ENGLISH, GERMAN), ("-t", "fr"), "there is no file .*train.fr"),
        ((ENGLISH, GERMAN), ("--validpref", "nowhere"), "--validpref: there is no file nowhere.en"),
    ],
)
def test_texts_that_make_no_data_set(
    texts: tuple[str | bytes, str | bytes], flags: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    prefix = pair(tmp_path / "text", *texts)
    with pytest.raises(UserError, match=sentence):
        preprocess(tmp_path, "--trainpref", prefix, "-s", "en", "-t", "de", *flags)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("flags", [("--validpref",), ("--testpref",)])
def test_every_split_is_looked_at(flags: tuple[str], tmp_path: Path) -> None:
    good, bad = pair(tmp_path / "text"), pair(tmp_path / "text", ENGLISH, "one\n", "bad")
    with pytest.raises(UserError, match=rf"texts of {flags[0]} .*bad\.de has 1"):
        preprocess(tmp_path, "--trainpref", good, *flags, f"{good},{bad}", "-s", "en", "-t", "de")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("missing", ["--source-lang", "--target-lang"])
def test_a_language_that_is_missing(missing: str, tmp_path: Path) -> None:
    flags = {"--source-lang": "en", "--target-lang": "de"}
    del flags[missing]
    with pytest.raises(UserError, match=f"{missing} is missing"):
        preprocess(tmp_path, "--trainpref", pair(tmp_path / "text"), *next(iter(flags.items())))


@pytest.mark.parametrize("command", [fairseq_cli.generate, fairseq_cli.interactive])
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("--nbest", 5), "--nbest must be from 1 to --beam 2, .* not 5"),
        (("--nbest=-1",), "--nbest must be from 1 to --beam 2, .* not -1"),
        (("--lenpen", "nan"), "--lenpen must be a finite number, not nan"),
        (("--num-shards", 2, "--shard-id", 1), "--num-shards: each call would take the whole"),
    ],
)
def test_generation_that_cannot_be_as_asked(
    asked: tuple[Any, ...], sentence: str, command: Any, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    data, folder = trained
    flags = (data, "--path", folder / "mt/checkpoint_last.pt", "-s", "en", "-t", "de", "--beam", 2, *asked)
    if command is fairseq_cli.generate:
        flags = (*flags, "--results-path", tmp_path / "results")
    with pytest.raises(UserError, match=sentence):
        generate(*flags, command=command)
    assert not (tmp_path / "results").exists()


def test_a_shard_that_would_be_everything(trained: tuple[Path, Path]) -> None:
    data, folder = trained
    flags = [str(data), "--path", str(folder / "mt/checkpoint_last.pt"), "--max-tokens", "9", "--num-shards", "2"]
    args = options.parse_args_and_arch(options.get_validation_parser("translation"), flags)
    with pytest.raises(UserError, match="--num-shards: each call would take the whole"):
        fairseq_cli.validate.main(args)
    with pytest.raises(UserError, match="--num-shards: each call would take the whole"):
        train(data, "--arch", "transformer", *TINY, "--num-shards", 2)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("--context-window 5 --num-workers 2", "--context-window takes batches in turn"),
        ("--context-window 5 --num-shards 2", "--context-window takes batches in turn"),
        ("--sample-break-mode eos --model-overrides {'max_target_positions':3}", "1 of 3 blocks .* than the 3 words"),
    ],
)
def test_a_perplexity_is_of_all_words_with_their_context(asked: str, sentence: str, trained: tuple[Path, Path]) -> None:
    _, folder = trained
    flags = ["--path", str(folder / "lm/checkpoint_last.pt"), "--gen-subset", "train", "--cpu", *asked.split()]
    args = options.parse_args_and_arch(options.get_eval_lm_parser(), [str(folder / "lm/data"), *flags])
    with pytest.raises(UserError, match=sentence):
        fairseq_cli.eval_lm.main(convert_namespace_to_omegaconf(args))


def test_a_score_of_something_else(trained: tuple[Path, Path]) -> None:
    data, folder = trained
    flags = (data, "--path", folder / "mt/checkpoint_last.pt", "-s", "en", "-t", "de")
    with pytest.raises(UserError, match="give --scoring sacrebleu"):
        generate(*flags, "--sacrebleu")
    with pytest.raises(UserError, match="--distributed-world-size must be 1"):
        generate(*flags, "--distributed-world-size", 2)
    with pytest.raises(UserError, match="--constraints are for fairseq-interactive"):
        generate(*flags, "--constraints")
    for ignored in (("--lm-path", folder / "lm/checkpoint_last.pt"), ("--prefix-size", 1)):
        with pytest.raises(UserError, match="--lm-path and --prefix-size are for fairseq-generate"):
            generate(*flags, *ignored, command=fairseq_cli.interactive)


def test_the_other_direction_is_neither_generated_nor_validated(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq-validate takes the model's own task, with what the flags say."""
    data, folder = trained
    path = folder / "mt/checkpoint_last.pt"
    with pytest.raises(UserError, match=f"{path} translates from en to de, and not from de to en"):
        generate(data, "--path", path, "-s", "de", "-t", "en")

    def validate(*languages: str) -> None:
        flags = [data, "--task", "translation", "--path", path, *languages, "--valid-subset", "test"]
        flags += ["--batch-size", 2, "--cpu", "--num-workers", 0]
        monkeypatch.setattr("sys.argv", ["fairseq-validate", *map(str, flags)])
        fairseq_cli.validate.cli_main()

    with pytest.raises(SystemExit):
        validate("-s", "de", "-t", "en")
    assert f"fairseq-validate: error: {path} translates from en to de, and not from de to en" in capsys.readouterr().err
    validate("-s", "en", "-t", "de")
    validate()


def test_the_other_direction_is_refused_of_a_model_whose_languages_its_data_told(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    data, _ = trained
    one_direction = tmp_path / "data"
    shutil.copytree(data, one_direction, ignore=shutil.ignore_patterns("*.de-en.*"))
    train(one_direction, "--arch", "transformer", *TINY, "--share-all-embeddings", "--save-dir", tmp_path / "mt")
    path = tmp_path / "mt/checkpoint_last.pt"
    with pytest.raises(UserError, match=f"{path} translates from en to de, and not from de to en"):
        generate(data, "--path", path, "-s", "de", "-t", "en")
    generate(one_direction, "--path", path)


def test_a_language_model_is_only_beside_a_translation_and_of_its_words(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    data, folder = trained
    mt, lm = folder / "mt/checkpoint_last.pt", folder / "lm/checkpoint_last.pt"
    for paths in (lm, f"{mt}:{lm}"):
        with pytest.raises(UserError, match=f"{lm} was trained for --task language_modeling"):
            generate(data, "--path", paths, "-s", "en", "-t", "de")
    words = (data / "dict.de.txt").read_text().splitlines(keepends=True)
    shutil.copytree(data, tmp_path / "data")
    flags = (tmp_path / "data", "--path", f"{mt}:{mt}", "-s", "en", "-t", "de", "--lm-path", lm)
    (tmp_path / "data/dict.txt").write_text("".join(words))
    generate(*flags)
    (tmp_path / "data/dict.txt").write_text("".join(reversed(words)))
    with pytest.raises(UserError, match=r"--lm-path: .* in its order"):
        generate(*flags)


@pytest.mark.parametrize("kind", ["empty", "too long"])
def test_a_corpus_of_nothing(kind: str, trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, _ = trained
    shutil.copytree(data, tmp_path / "data")
    flags: list[Any] = ["--max-source-positions", 1, "--max-target-positions", 1]
    if kind == "empty":
        flags = []
        for side in ("en", "de"):
            builder = MMapIndexedDatasetBuilder(str(tmp_path / f"data/train.en-de.{side}.bin"))
            builder.finalize(str(tmp_path / f"data/train.en-de.{side}.idx"))
    sentence = (
        r"train\.en-de\.en\.idx has no sentences" if kind == "empty" else "of the 3 sentences of the data set train"
    )
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "data", "--arch", "transformer", *TINY, "--save-dir", tmp_path / "save", *flags)
    assert not list(tmp_path.glob("save/*"))


def test_the_checkout_is_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "fairseq_residuals").mkdir()
    (tmp_path / "fairseq_residuals/__init__.py").touch()
    with pytest.raises(UserError, match=r"the plugin is the folder .*fairseq_residuals inside"):
        utils.import_user_module(SimpleNamespace(user_dir=str(tmp_path)))
    (tmp_path / "fairseq_residuals/__init__.py").unlink()
    with pytest.raises(UserError, match=r"has no __init__\.py$"):
        utils.import_user_module(SimpleNamespace(user_dir=str(tmp_path)))


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


def test_two_trainings_in_one_folder(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """A second one is refused while the first one's process lives, however that one ends."""
    data, _ = trained
    flags = (data, "--arch", "transformer", *TINY, "--share-all-embeddings", "--save-dir", tmp_path / "save")
    (tmp_path / "save").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "save/.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=r"another training writes to \S+save: wait for it"):
            train(*flags, "-s", "en", "-t", "de")
        assert [path.name for path in (tmp_path / "save").iterdir()] == [".lock"]
        first.kill()
    train(*flags, "-s", "en", "-t", "de")
    assert (tmp_path / "save/checkpoint_last.pt").is_file() and not (tmp_path / "save/.lock").exists()


def test_a_lock_that_is_a_link_is_not_followed(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, _ = trained
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / "save").mkdir()
    (tmp_path / "save/.lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        train(data, "--arch", "transformer", *TINY, "-s", "en", "-t", "de", "--save-dir", tmp_path / "save")
    assert (tmp_path / "theirs").read_text() == "kept"
