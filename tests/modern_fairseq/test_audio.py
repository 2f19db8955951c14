"""Speech without torchaudio, against the formulas."""

import sys

import numpy as np
import pytest
import soundfile
import torch
from fairseq.data.audio import audio_utils

from fairseq_residuals_errors import UserError

RATE = 16000


def sine(frequency, rate=RATE, seconds=0.5, amplitude=0.4):
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def log_mel(waveform, rate, n_bins):
    """Kaldi's compute-fbank-feats with its defaults and no dither, written out in float64."""
    window_length, shift, padded = rate * 25 // 1000, rate // 100, 1 << (rate * 25 // 1000 - 1).bit_length()
    povey = np.hanning(window_length) ** 0.85
    mel = lambda hz: 1127 * np.log1p(np.asarray(hz) / 700)  # noqa: E731
    edges = np.linspace(mel(20), mel(rate / 2), n_bins + 2)
    bins = mel(np.arange(padded // 2) * rate / padded)
    up = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    filters = np.clip(np.minimum(up, down), 0, None)
    rows = []
    for start in range(0, len(waveform) - window_length + 1, shift):
        frame = waveform[start : start + window_length].astype(np.float64)
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * povey, padded))[: padded // 2] ** 2
        rows.append(np.log(np.maximum(filters @ power, np.finfo(np.float32).eps)))
    return np.array(rows)


@pytest.mark.parametrize(("rate", "n_bins"), [(16000, 80), (8000, 40)])
def test_features_are_kaldis(rate, n_bins):
    rng = np.random.default_rng(0)
    waveform = (3000 * rng.standard_normal(rate)).astype(np.float32)
    features = audio_utils._get_torchaudio_fbank(waveform[None], rate, n_bins)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, log_mel(waveform, rate, n_bins), atol=2e-3)


def test_a_wave_file_is_scaled_to_16_bit_integers(tmp_path):
    path, noise = str(tmp_path / "tone.wav"), 0.01 * np.random.default_rng(0).standard_normal(RATE // 2)
    soundfile.write(path, sine(440) + noise, RATE, subtype="PCM_16")
    integers, _ = soundfile.read(path, dtype="int16")
    np.testing.assert_allclose(audio_utils.get_fbank(path), log_mel(integers, RATE, 80), atol=2e-3)
    np.testing.assert_array_equal(audio_utils.get_fbank(path), audio_utils.get_fbank(path))


def test_a_waveform_shorter_than_a_frame_has_no_features():
    assert audio_utils._get_torchaudio_fbank(np.zeros((1, 399), np.float32), RATE).shape == (0, 80)
    assert audio_utils._get_torchaudio_fbank(np.ones((1, 400), np.float32), RATE).shape == (1, 80)


def test_channels_are_averaged_and_the_axis_stays():
    stereo = np.array([[1.0, 0.5, -1.0], [0.0, 0.5, 1.0]], dtype=np.float32)
    mono, rate = audio_utils.convert_waveform(stereo, RATE, to_mono=True)
    np.testing.assert_allclose(mono, [[0.5, 0.5, 0.0]])
    assert (mono.dtype, rate) == (np.float32, RATE)


def test_volume_is_normalised_over_all_channels_before_mixing():
    stereo = np.array([[0.25, 0.0], [-0.5, 0.0]], dtype=np.float32)
    scaled, _ = audio_utils.convert_waveform(stereo, RATE, normalize_volume=True)
    np.testing.assert_allclose(scaled, [[0.5, 0], [-1, 0]])
    mixed, _ = audio_utils.convert_waveform(stereo, RATE, normalize_volume=True, to_mono=True)
    np.testing.assert_allclose(mixed, [[-0.25, 0]])
    silence, _ = audio_utils.convert_waveform(np.zeros((1, 4), np.float32), RATE, normalize_volume=True)
    np.testing.assert_array_equal(silence, np.zeros((1, 4)))


@pytest.mark.parametrize("source", [8000, 22050, 48000])
def test_resampling_keeps_pitch_level_and_length(source):
    tone = sine(1000, source)
    resampled, rate = audio_utils.convert_waveform(np.stack([tone, -tone]), source, to_sample_rate=RATE)
    assert (rate, resampled.dtype) == (RATE, np.float32)
    assert resampled.shape == (2, RATE // 2)
    middle = slice(1000, -1000)  # the filter rings at the ends
    np.testing.assert_allclose(resampled[0, middle], sine(1000)[middle], atol=2e-4)
    np.testing.assert_allclose(resampled[1], -resampled[0], atol=1e-6)


def test_tensors_stay_tensors_and_inputs_stay_as_they_are():
    tone = torch.from_numpy(sine(440))[None].repeat(2, 1)
    before = tone.clone()
    converted, _ = audio_utils.convert_waveform(tone, RATE, True, True, 8000)
    assert isinstance(converted, torch.Tensor)
    assert converted.shape == (1, 4000)
    torch.testing.assert_close(tone, before, rtol=0, atol=0)
    same, _ = audio_utils.convert_waveform(tone, RATE)
    torch.testing.assert_close(same, before, rtol=0, atol=0)


def test_what_is_no_sound_is_named(tmp_path):
    (tmp_path / "no.wav").write_text("no")
    with pytest.raises(UserError, match=r"no\.wav cannot be read as sound"):
        audio_utils.get_waveform(path_or_fp=str(tmp_path / "no.wav"))


@pytest.mark.parametrize("library", ["soundfile", "kaldi_native_fbank", "soxr"])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(tmp_path, monkeypatch, library):
    path = str(tmp_path / "tone.wav")
    soundfile.write(path, sine(440, 8000), 8000)
    monkeypatch.setitem(sys.modules, library, None)  # what Python does for a module that cannot be imported
    read = {
        "soundfile": lambda: audio_utils.get_waveform(path),
        "kaldi_native_fbank": lambda: audio_utils.get_fbank(path),
        "soxr": lambda: audio_utils.get_waveform(path, output_sample_rate=RATE),
    }
    with pytest.raises(UserError, match=rf"{library}.*pip install -e '\.\[speech\]'"):
        read[library]()
