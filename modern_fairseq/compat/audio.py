"""Speech without torchaudio: soundfile reads, soxr resamples, kaldi-native-fbank computes the features."""

import importlib
import types
from typing import Any

import numpy as np
import torch

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


def _need(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UserError(
            f"speech needs the library {library}, which is not installed: pip install -e '.[speech]' in the clone"
        ) from None


def convert_waveform(
    waveform: np.ndarray | torch.Tensor,
    sample_rate: int,
    normalize_volume: bool = False,
    to_mono: bool = False,
    to_sample_rate: int | None = None,
) -> tuple[np.ndarray | torch.Tensor, int]:
    """Scale, resample and mix a waveform, in this order, as sox's gain -n, rate and channels do.

    Args:
        waveform: channels x length, float samples; of the same type and shape order as what is returned.
        sample_rate: of ``waveform``, in Hz.
        normalize_volume: scale the largest magnitude over all channels to 1 (0 dBFS).
        to_mono: average the channels; the result keeps its axis: 1 x length.
        to_sample_rate: in Hz; None keeps the rate.

    Returns:
        The waveform and its sample rate.

    Raises:
        UserError: soxr is needed and not installed.
    """
    samples = waveform.numpy() if isinstance(waveform, torch.Tensor) else waveform
    peak = np.abs(samples).max(initial=0)
    if normalize_volume and peak > 0:
        samples = samples / peak
    if to_sample_rate is not None and to_sample_rate != sample_rate:
        resampled = _need("soxr").resample(samples.T.astype(np.float32), sample_rate, to_sample_rate, quality="HQ")
        samples, sample_rate = resampled.T, to_sample_rate
    if to_mono and samples.shape[0] > 1:
        samples = samples.mean(axis=0, keepdims=True)
    if isinstance(waveform, torch.Tensor):
        return torch.from_numpy(np.ascontiguousarray(samples)), sample_rate
    return samples, sample_rate


def fbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """Log mel filter bank energies by Kaldi's recipe, without dither: the same at each reading.

    Args:
        waveform: channels x length, in the range of 16-bit integers (not -1 to 1); the first channel is used.
        sample_rate: in Hz.

    Returns:
        frames x ``n_bins``, float32; frames of 25 ms every 10 ms, only those that fit whole.

    Raises:
        UserError: kaldi-native-fbank is not installed.
    """
    knf = _need("kaldi_native_fbank")
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = sample_rate
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = n_bins
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(sample_rate, np.ascontiguousarray(waveform[0], dtype=np.float32))
    computer.input_finished()
    frames = [computer.get_frame(i) for i in range(computer.num_frames_ready)]
    return np.stack(frames) if frames else np.zeros((0, n_bins), dtype=np.float32)


def without_torchaudio(module: types.ModuleType) -> None:
    """Replace what fairseq takes from torchaudio (data/audio/audio_utils.py:44 sox_effects, :215 compliance.kaldi).

    sox_effects is gone from torchaudio 2.11, on which every reading of a wave file depended; and a
    torchaudio built for another torch raises OSError, which fairseq does not catch.  ``get_waveform`` and
    ``get_fbank`` look both functions up when called.  Can go when fairseq > 0.12.2 reads audio without
    sox_effects.
    """

    @replaces(module, "get_waveform")
    def get_waveform(original: Any, path_or_fp: Any, *args: Any, **kwargs: Any) -> Any:
        soundfile = _need("soundfile")
        try:
            return original(path_or_fp, *args, **kwargs)
        except soundfile.LibsndfileError as error:
            reason = error.error_string.rstrip(".")
            raise UserError(f"{path_or_fp} cannot be read as sound: {reason}") from error

    module.convert_waveform = convert_waveform  # type: ignore[attr-defined]
    module._get_torchaudio_fbank = fbank  # type: ignore[attr-defined]
