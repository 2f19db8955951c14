"""Damaged configurations of speech data are named; two threads load what one loads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.audio import speech_to_text_dataset
from fairseq.data.audio.data_cfg import S2SDataConfig, S2TDataConfig
from fairseq.data.audio.speech_to_speech_dataset import SpeechToSpeechDatasetCreator
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDatasetCreator

from fairseq_residuals_errors import UserError


def test_a_configuration_is_read_as_before(tmp_path):
    (tmp_path / "config.yaml").write_text("shuffle: yes\ninput_channels: 2\ntransforms: {'*': [utterance_cmvn]}\n")
    config = S2TDataConfig(tmp_path / "config.yaml")
    assert (config.shuffle, config.input_channels, config.vocab_filename) == (True, 2, "dict.txt")
    assert config.get_feature_transforms("train", True)["transforms"] == ["utterance_cmvn"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1\n", "is no YAML file"),
        ("a: !!python/name:os.system\n", "is no YAML file"),
        ("[" * 3000, "is no YAML file"),
        ("- a\n", "has to be a mapping"),
        ("vocoder: {type: hifigan,\n  type: griffin_lim}\n", "is no YAML file: the key type comes twice"),
        ("", "has to be a mapping"),
        ("vocab_filename: ../dict.txt\n", r"vocab_filename is '\.\./dict.txt', which is no file in "),
        ("vocab_filename: /etc/passwd\n", "vocab_filename is '/etc/passwd', which is no file in "),
        ("bpe_tokenizer: {bpe: sentencepiece, sentencepiece_model: 'http://a.b/c'}\n", "no addresses"),
        ("bpe_tokenizer: {bpe: gpt2, gpt2_vocab_bpe: /etc/passwd}\n", "gpt2_vocab_bpe is '/etc/passwd'"),
        ("global_cmvn: {stats_npz_path: ../../x.npz}\n", "stats_npz_path is "),
        ("bpe_tokenizer: {bpe: bytes, sentencepiece_model_path: /etc/passwd}\n", "sentencepiece_model_path is"),
        ("vocoder: {type: hifigan, config: /etc/passwd, checkpoint: x.pt}\n", "config is '/etc/passwd', which is no"),
        ("vocoder: {type: hifigan, config: x.json, checkpoint: ../x.pt}\n", "checkpoint is '../x.pt', which is no"),
        ("speaker_emb_filename: ../x.npy\n", "speaker_emb_filename is"),
        ("target_speaker_embed: /etc\n", "target_speaker_embed is"),
        ("letters: {decoder_type: ctc, dict: /etc/passwd}\n", "dict is '/etc/passwd', which is no file in "),
        ("letters: {decoder_type: ctc, data: ..}\n", "data is"),
        ("audio_root: s3://bucket/x\n", "audio_root is the address"),
        ("prepend_tgt_lang_tag: 'no'\n", "prepend_tgt_lang_tag has to be true or false, not 'no'"),
    ],
)
def test_a_configuration_that_is_none_is_named(tmp_path, text, sentence):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        S2TDataConfig(tmp_path / "config.yaml")
    assert str(tmp_path / "config.yaml") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("named", ["config.yaml", "data/config.yaml"], ids=["in its folder", "from the working folder"])
def test_a_file_of_the_data_folder_is_found_from_any_folder(named, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        (folder / "config.yaml").write_text(f"global_cmvn: {{stats_npz_path: {named}}}\n")
    monkeypatch.chdir(tmp_path)
    assert S2TDataConfig(Path("data/config.yaml")).global_cmvn_stats_npz == str(tmp_path / "data/config.yaml")


def test_a_setting_without_a_value_has_its_default(tmp_path):
    (tmp_path / "config.yaml").write_text("vocab_filename:\ninput_channels:\ntransforms:\n")
    config = S2TDataConfig(tmp_path / "config.yaml")
    assert (config.vocab_filename, config.input_channels) == ("dict.txt", 1)
    assert config.get_feature_transforms("train", True)["transforms"] is None


SPECAUGMENT = """
specaugment: {time_wrap_W: 0, freq_mask_N: 1, freq_mask_F: 20, time_mask_N: 2, time_mask_T: 20, time_mask_p: 1.0}
transforms: {_train: [specaugment]}
"""


def test_two_threads_draw_the_masks_that_one_draws(tmp_path, monkeypatch):
    """As those that load ahead for training and validation. Where two are let in, who came first draws first."""
    (tmp_path / "config.yaml").write_text(SPECAUGMENT)
    np.save(tmp_path / "a.npy", np.arange(4000, dtype=np.float32).reshape(100, 40))
    lines = [f"{number}\t{tmp_path / 'a.npy'}\t100\ta b\n" for number in range(2)]
    (tmp_path / "train.tsv").write_text("id\taudio\tn_frames\ttgt_text\n" + "".join(lines))
    config = S2TDataConfig(tmp_path / "config.yaml")
    data = SpeechToTextDatasetCreator.from_tsv(str(tmp_path), config, "train", Dictionary(), None, None, True, 1, 7)
    expected = [data[index].source for index in range(2)]
    assert not torch.equal(*expected)
    read, both = speech_to_text_dataset.get_features_or_waveform, threading.Barrier(2)

    def slow(*args, **kwargs):
        try:
            time.sleep(0.2 * both.wait(0.2))  # 0 of the first, 1 of the second
        except threading.BrokenBarrierError:
            both.reset()  # the other one is not let in
        return read(*args, **kwargs)

    monkeypatch.setattr(speech_to_text_dataset, "get_features_or_waveform", slow)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda index: data[index].source, range(2)))
    assert all(map(torch.equal, found, expected))


def test_masks_of_speech_to_speech_are_drawn_by_example(tmp_path):
    (tmp_path / "config.yaml").write_text(SPECAUGMENT)
    np.save(tmp_path / "a.npy", np.arange(4000, dtype=np.float32).reshape(100, 40))
    columns, line = "id\tsrc_audio\tsrc_n_frames\ttgt_audio\ttgt_n_frames\n", f"{tmp_path / 'a.npy'}\t100\t1 2 3\t3\n"
    (tmp_path / "train.tsv").write_text(f"{columns}0\t{line}1\t{line}")
    config = S2SDataConfig(tmp_path / "config.yaml")
    make = SpeechToSpeechDatasetCreator.from_tsv
    data = make(str(tmp_path), config, "train", True, 1, 7, True, Dictionary(), multitask={})
    first = data[0].source
    assert torch.equal(data[0].source, first) and not torch.equal(data[1].source, first)
    data.set_epoch(2)
    assert not torch.equal(data[0].source, first)
