"""Data for commands to run on: a language to translate, a text to model, tones to recognise."""

from __future__ import annotations

import csv
import io
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import yaml

SIZES = {"train": 44, "valid": 8, "test": 8}
"""Sentences; 44 in batches of 4 are an odd number of batches: one of two processes runs out of data."""
WORDS = ["ka", "lo", "mi", "nu", "pe", "ra", "si", "to"]


def sentences(split: str, longest: int = 7) -> list[list[str]]:
    """Random words, the same ones each time."""
    draw = random.Random(f"{split} {longest}")
    return [draw.choices(WORDS, k=draw.randint(2, longest)) for _ in range(SIZES[split])]


def write_parallel_text(folder: Path) -> None:
    """{train,valid,test}.{s,t}: the translation is the sentence backwards, each word doubled in length."""
    for split in SIZES:
        source = sentences(split)
        target = [[word * 2 for word in reversed(line)] for line in source]
        for language, lines in (("s", source), ("t", target)):
            (folder / f"{split}.{language}").write_text("".join(" ".join(line) + "\n" for line in lines))


def write_text(folder: Path) -> None:
    """Files train, valid and test: each word is mostly followed by its successor in WORDS."""
    for split, size in SIZES.items():
        draw = random.Random(split)
        lines = []
        for _ in range(size):
            word = draw.randrange(len(WORDS))
            line = [word]
            for _ in range(draw.randint(4, 11)):
                word = (word + 1 if draw.random() < 0.8 else draw.randrange(len(WORDS))) % len(WORDS)
                line.append(word)
            lines.append(" ".join(WORDS[i] for i in line))
        (folder / split).write_text("\n".join(lines) + "\n")


Store = Callable[[str, list[str]], tuple[str, int]]
"""Stores an utterance; returns its place as a manifest names it, and its length in frames."""


def write_speech(folder: Path, store: Store, transforms: dict[str, list[str]], **options: object) -> None:
    """Manifests, dictionary and config.yaml of fairseq's speech_to_text task."""
    for split in SIZES:
        with (folder / f"{split}.tsv").open("w", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(["id", "audio", "n_frames", "tgt_text", "speaker"])
            for i, words in enumerate(sentences(split, longest=4)):
                audio, frames = store(f"{split}{i}", words)
                rows.writerow([f"{split}{i}", audio, frames, " ".join(words), "someone"])
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    config = {"vocab_filename": "dict.txt", "input_feat_per_channel": 80, "input_channels": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"transforms": transforms} | options))


def write_waves(folder: Path) -> None:
    """Speech as wav files: a tone per word. One file has a telephone's rate, one is stereo at a CD's rate."""

    def store(name: str, words: list[str]) -> tuple[str, int]:
        rate, channels = {"train0": (8000, 1), "train1": (44100, 2)}.get(name, (16000, 1))
        noise = np.random.default_rng(len(name) * 1000 + sum(map(ord, name)))
        wave = np.concatenate([_tone(word, rate) for word in words])
        wave += noise.normal(scale=0.003, size=wave.shape)
        soundfile.write(folder / "wav" / f"{name}.wav", np.stack([wave] * channels, axis=1), rate, subtype="PCM_16")
        milliseconds = len(wave) * 1000 // rate
        return f"{name}.wav", 1 + (milliseconds - 25) // 10  # windows of 25 ms, one every 10 ms

    (folder / "wav").mkdir()  # fairseq takes every valid* in the data folder for a data set
    write_speech(folder, store, {"*": ["utterance_cmvn"]}, audio_root=str(folder / "wav"))


def _tone(word: str, rate: int, seconds: float = 0.12) -> np.ndarray:
    """Fades, so that no band is constant in time, which normalisation would turn into rounding errors."""
    time = np.arange(int(rate * seconds)) / rate
    return 0.5 * np.exp(-3 * time / seconds) * np.sin(2 * np.pi * (300 + 200 * WORDS.index(word)) * time)


def write_zipped_features(folder: Path) -> None:
    """Speech as features in an uncompressed zip, addressed by offset and length; masked in training."""
    archive = folder / "features.zip"

    def store(name: str, words: list[str]) -> tuple[str, int]:
        noise = np.random.default_rng(sum(map(ord, name)))
        features = noise.normal(size=(12 * len(words), 80)).astype(np.float32)
        for i, word in enumerate(words):
            features[12 * i : 12 * (i + 1), 10 * WORDS.index(word) : 10 * WORDS.index(word) + 10] += 3
        buffer = io.BytesIO()
        np.save(buffer, features)
        with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as out:
            out.writestr(f"{name}.npy", buffer.getvalue())
            offset = out.getinfo(f"{name}.npy").header_offset
        with archive.open("rb") as file:
            file.seek(offset + 26)  # where a local file header keeps the lengths of its name and its extra field
            offset += 30 + sum(struct.unpack("<HH", file.read(4)))
        return f"{archive}:{offset}:{len(buffer.getvalue())}", len(features)

    masks = {
        "freq_mask_F": 8,
        "freq_mask_N": 1,
        "time_mask_N": 1,
        "time_mask_T": 4,
        "time_mask_p": 0.5,
        "time_wrap_W": 0,
    }
    transforms = {"_train": ["utterance_cmvn", "specaugment"], "*": ["utterance_cmvn"]}
    write_speech(folder, store, transforms, specaugment=masks)
