"""Manifests and configurations of speech data that are damaged are named."""

import pytest
from fairseq.data import Dictionary
from fairseq.data.audio.data_cfg import S2TDataConfig
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDatasetCreator

from fairseq_residuals_errors import UserError
from modern_fairseq import mistakes

GOOD = "id\taudio\tn_frames\ttgt_text\n1\ta.npy\t12\ta b\n"


def load(folder, text):
    (folder / "valid.tsv").write_bytes(text)
    (folder / "config.yaml").write_text("audio_root: ''")
    samples = SpeechToTextDatasetCreator._load_samples_from_tsv(str(folder), "valid")
    config = S2TDataConfig(folder / "config.yaml")
    return SpeechToTextDatasetCreator._from_list("valid", False, samples, config, Dictionary(), None, None, 1, None)


def test_a_whole_manifest_is_read(tmp_path):
    assert load(tmp_path, GOOD.encode()).n_frames == [12]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("n_frames", "frames"), "line 2 lacks n_frames"),
        (("\ta b", ""), "line 2 lacks tgt_text"),
        (("\t12", "\tx"), "line 2: n_frames has to be a whole number, not 'x'"),
        (("\t12", "\t" + "1" * 5000), "line 2: n_frames has to be a whole number"),
        (("a b", "a" * 200_000), r"valid\.tsv is no manifest in UTF-8: field larger than field limit"),
        (("a b", "\udcff"), r"valid\.tsv is no manifest in UTF-8: 'utf-8' codec"),
    ],
)
def test_a_damaged_manifest_is_named(tmp_path, change, sentence):
    with pytest.raises(UserError, match=sentence):
        load(tmp_path, GOOD.replace(*change).encode(errors="surrogateescape"))


def test_a_manifest_without_recordings_is_a_users_error(tmp_path):
    with pytest.raises(ValueError, match="Empty manifest") as error:
        load(tmp_path, b"")
    assert str(mistakes.explain(error.value)) == f"the manifest {tmp_path / 'valid.tsv'} has no recordings"


def test_a_configuration_is_read_as_before(tmp_path):
    (tmp_path / "config.yaml").write_text("shuffle: yes\ninput_channels: 2\ntransforms: {'*': [utterance_cmvn]}\n")
    config = S2TDataConfig(tmp_path / "config.yaml")
    assert (config.shuffle, config.input_channels, config.vocab_filename) == (True, 2, "dict.txt")
    assert config.get_feature_transforms("train", True)["transforms"] == ["utterance_cmvn"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: !!python/name:os.system\n", "is no YAML file"),
        ("[" * 3000, "is no YAML file"),
        ("- a\n", "has to be a mapping"),
        ("", "has to be a mapping"),
        ("shuffle: 1\n", "shuffle has to be true or false, not 1"),
        ("input_channels: yes\n", "input_channels has to be a whole number, not True"),
        ("transforms: [a]\n", r"transforms has to be a mapping, not \['a'\]"),
        ("vocab_filename: 3\n", "vocab_filename has to be text, not 3"),
    ],
)
def test_a_configuration_that_is_none_is_named(tmp_path, text, sentence):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        S2TDataConfig(tmp_path / "config.yaml")


def test_a_setting_without_a_value_has_its_default(tmp_path):
    (tmp_path / "config.yaml").write_text("vocab_filename:\ninput_channels:\ntransforms:\n")
    config = S2TDataConfig(tmp_path / "config.yaml")
    assert (config.vocab_filename, config.input_channels) == ("dict.txt", 1)
    assert config.get_feature_transforms("train", True)["transforms"] is None
