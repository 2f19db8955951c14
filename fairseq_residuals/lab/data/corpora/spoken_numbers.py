"""Speech recognition as on LibriSpeech: a synthetic voice, espeak-ng, reads numbers."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from fairseq_residuals.lab.data.archives import write_tar
from fairseq_residuals.lab.data.corpora import librispeech
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.sentence_pieces import Pieces
from fairseq_residuals.lab.data.steps import Step
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.compat.audio import convert_waveform

RATE = 16_000
PROGRAM = "espeak-ng"
SHARES = {"train-clean-100": 0.1, "train-clean-360": 0.4, "train-other-500": 0.5}
HELD_OUT = ("dev-clean", "dev-other", "test-clean", "test-other")
SPEAKERS = 4
"""Speakers of each split; no two splits share one."""
# fmt: off
UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
MOST = 10**6


@dataclass(frozen=True)
class Speaker:
    """Settings of how the voice sounds."""

    number: int
    voice: str
    speed: int
    """Words per minute."""
    pitch: int
    """Pitch from 0 to 99."""


Voice = Callable[[str, Speaker], bytes]
"""A function from words to a sound file."""


def in_words(number: int) -> str:
    """Return a number from 0 to 999,999, as it is read: "four thousand two hundred seven"."""
    for power, name in ((1000, "thousand"), (100, "hundred")):
        if number >= power:
            rest = f" {in_words(number % power)}" if number % power else ""
            return f"{in_words(number // power)} {name}{rest}"
    if number < len(UNITS):
        return UNITS[number]
    return TENS[number // 10 - 2] + (f" {UNITS[number % 10]}" if number % 10 else "")


def phrases(seed: int) -> Iterator[str]:
    """Yield numbers of two to six digits in words, none twice."""
    rng = random.Random(seed)
    seen: set[int] = set()
    while len(seen) < MOST - 10:
        digits = rng.randint(2, 6)
        number = rng.randrange(10 ** (digits - 1), 10**digits)
        if number not in seen:
            seen.add(number)
            yield in_words(number)


def speakers(split: str, first: int) -> list[Speaker]:
    """Clean speech has one accent, the other has several, and more of fast and slow."""
    rng = random.Random(split)
    other = "other" in split
    voices = ("en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us") if other else ("en-us",)
    spread = 50 if other else 20
    return [
        Speaker(first + i, rng.choice(voices), 165 + rng.randint(-spread, spread), rng.randint(20, 80))
        for i in range(SPEAKERS)
    ]


def espeak(program: str, words: str, speaker: Speaker) -> bytes:
    """Return a recording of the words, as the program espeak-ng speaks them.

    Raises:
        UserError: the program failed.
    """
    command = [program, "-v", speaker.voice, "-s", str(speaker.speed), "-p", str(speaker.pitch), "--stdout", words]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
        raise UserError(f"{program} failed with status {done.returncode}: {said or 'it made no sound'}")
    return done.stdout


def installed_voice() -> Voice:
    """Return the voice of the speech synthesizer of this machine.

    Raises:
        UserError: there is no espeak-ng.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UserError(f"{PROGRAM}, which reads the numbers, is not installed: on Debian, apt install {PROGRAM}")
    return partial(espeak, program)


def flac(sound: bytes) -> bytes:
    """Return a sound file as LibriSpeech has them: FLAC, 16 kHz, one channel, 16 bits.

    Raises:
        UserError: it is not a sound file.
    """
    try:
        samples, rate = soundfile.read(io.BytesIO(sound), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(f"what the voice made cannot be read as sound: {error.error_string}") from error
    waveform, _ = convert_waveform(samples.T, rate, to_mono=True, to_sample_rate=RATE)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(np.asarray(waveform)[0], -1, 1), RATE, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def read_aloud(split: str, lines: list[str], first: int, voice: Voice) -> dict[str, bytes]:
    """Return the files of a split, its speakers numbered from ``first``: each reads one chapter."""
    cast = speakers(split, first)
    by_speaker = {speaker: lines[i::SPEAKERS] for i, speaker in enumerate(cast)}
    jobs = [(speaker, i, line) for speaker, own in by_speaker.items() for i, line in enumerate(own)]
    # most of the time is spent waiting for the program
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sounds = list(pool.map(lambda job: flac(voice(job[2], job[0])), jobs))
    files: dict[str, bytes] = {}
    transcripts: dict[str, list[str]] = {}
    for (speaker, i, line), sound in zip(jobs, sounds, strict=True):
        chapter = f"{speaker.number}-{1000 + speaker.number}"
        where = f"LibriSpeech/{split}/{chapter.replace('-', '/')}/{chapter}"
        files[f"{where}-{i:04d}.flac"] = sound
        transcripts.setdefault(f"{where}.trans.txt", []).append(f"{chapter}-{i:04d} {line.upper()}")
    return files | {name: "".join(f"{line}\n" for line in told).encode() for name, told in transcripts.items()}


def made(utterances: int, held_out: int, pieces: int, summary: str) -> Variant:
    """Return the variant of so many utterances to train on, and of so many in each other split."""
    counts = {split: max(1, round(share * utterances)) for split, share in SHARES.items()}
    counts |= dict.fromkeys(HELD_OUT, held_out)

    def make(folder: Path) -> None:
        write(folder, counts, installed_voice())

    def plan(job: Job) -> tuple[Step, ...]:
        return librispeech.steps(job, Pieces("unigram", pieces), counts, Step("work/recordings", make, counts))

    return Variant(plan, (), summary, librispeech.TEST_SETS)


def write(folder: Path, counts: Mapping[str, int], voice: Voice) -> None:
    """Write the archives of the splits, no two of which have a number or a speaker in common."""
    stream = phrases(seed=0)
    for i, (split, count) in enumerate(counts.items()):
        lines = [next(stream) for _ in range(count)]
        with (folder / f"{split}.tar.gz").open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped:
            write_tar(zipped, read_aloud(split, lines, 100 * (i + 1), voice))


SPOKEN_NUMBERS = Corpus(
    "spoken_numbers",
    {
        "made": made(2000, 200, 45, "2,000 utterances, 45 pieces"),
        "tiny": made(30, 3, 35, "30 utterances, to try every step"),
    },
)
