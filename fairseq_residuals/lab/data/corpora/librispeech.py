"""LibriSpeech, 960 hours of reading: features, tables and 10,000 unigram pieces as fairseq's example prepares them.

Each split is a step of its own, with its features in a zip of its own (fairseq's script makes one zip for all).
The features take about 110 GB; the recordings are read out of the archives and never unpacked.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import soundfile
import yaml

from fairseq_residuals.lab.data import archives, clean
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.parallel_map import counted, ordered
from fairseq_residuals.lab.data.sentence_pieces import Pieces
from fairseq_residuals.lab.data.steps import Step
from modern_fairseq.compat.audio import convert_waveform, fbank

DIGESTS = {  # as torchaudio.datasets.LIBRISPEECH has them, and TensorFlow Datasets
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
}
SOURCES = {
    split: Source(
        f"{split}.tar.gz",
        tuple(f"https://{server}/resources/12/{split}.tar.gz" for server in ("www.openslr.org", "us.openslr.org")),
        f"sha256:{digest}",
    )
    for split, digest in DIGESTS.items()
}
PIECES = Pieces("unigram", 10000)
ZIP, TABLE = "fbank80.zip", "utterances.tsv"
COLUMNS = ("id", "audio", "n_frames", "tgt_text", "speaker")
MEL_BINS = 80
SIXTEEN_BITS = 2**15
"""Kaldi computes features of samples in the range of 16-bit integers."""
SPECAUGMENT_LD = {
    "time_wrap_W": 0,
    "freq_mask_N": 2,
    "freq_mask_F": 27,
    "time_mask_N": 2,
    "time_mask_T": 100,
    "time_mask_p": 1.0,
}
"""The policy called LibriSpeech double."""


def features_of(recording: tuple[str, bytes]) -> tuple[str, int, bytes]:
    """Return name, frames and features (frames x 80, as numpy stores them) of a recording: its name and contents."""
    name, contents = recording
    samples, rate = soundfile.read(io.BytesIO(contents), dtype="float32", always_2d=True)
    waveform, rate = convert_waveform(samples.T, rate, to_mono=True)
    features = fbank(np.asarray(waveform) * SIXTEEN_BITS, rate, MEL_BINS)
    buffer = io.BytesIO()
    np.save(buffer, features)
    return name, len(features), buffer.getvalue()


def librispeech_id(stem: str) -> str:
    """Return fairseq's name of an utterance: LibriSpeech's SPEAKER-CHAPTER-0001 without the zeros."""
    return "-".join(str(int(number)) for number in stem.split("-"))


def pack_librispeech(archive: Path, features: Path, table: Path, place: str, workers: int) -> None:
    """Write the features of all utterances of an archive, and the table that says where each begins in the zip.

    Args:
        place: how the table names the zip.
    """
    texts: dict[str, str] = {}
    rows: dict[str, dict[str, Any]] = {}
    with archives.reading(archive) as files, zipfile.ZipFile(features, "w", zipfile.ZIP_STORED) as pack:
        for name, frames, stored in ordered(features_of, _recordings(files, texts), workers):
            # a fixed date, so that the same features make the same file
            pack.writestr(zipfile.ZipInfo(f"{librispeech_id(name)}.npy"), stored)
            assert pack.fp is not None
            audio = f"{place}:{pack.fp.tell() - len(stored)}:{len(stored)}"
            speaker = int(name.partition("-")[0])
            rows[name] = {"id": librispeech_id(name), "audio": audio, "n_frames": frames, "speaker": speaker}
    write_table(table, ({**rows[name], "tgt_text": texts[name].lower()} for name in sorted(rows)))


def _recordings(files: archives.Files, texts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the recordings of an archive; what is said in them goes to ``texts``."""
    for name, contents in counted(files, "files"):
        path = PurePosixPath(name)
        if path.name.endswith(".trans.txt"):
            for line in filter(None, contents.read().decode("utf-8").split("\n")):
                utterance, _, words = line.partition(" ")
                texts[utterance] = words
        elif path.suffix == ".flac":
            yield path.stem, contents.read()


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a manifest as fairseq reads it: tab-separated, nothing quoted."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, COLUMNS, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, escapechar="\\", quotechar=None
        )
        writer.writeheader()
        writer.writerows(rows)


def settings(dictionary: str, model: Path, audio_root: Path) -> str:
    """Return config.yaml as fairseq's prep_librispeech_data.py writes it, but the folder of features named once."""
    transforms: dict[str, Sequence[str]] = {"_train": ["utterance_cmvn", "specaugment"], "*": ["utterance_cmvn"]}
    return yaml.safe_dump(
        {
            "audio_root": str(audio_root),
            "bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": str(model)},
            "input_channels": 1,
            "input_feat_per_channel": MEL_BINS,
            "specaugment": SPECAUGMENT_LD,
            "transforms": transforms,
            "vocab_filename": dictionary,
        }
    )


def plan(job: Job) -> tuple[Step, ...]:
    wanted = dataclasses.replace(PIECES, size=job.size("pieces", PIECES.size))
    audio_root, data = job.out.resolve() / "fbank80", job.out.resolve() / "data-bin"

    def features(split: str) -> Step:
        source = SOURCES[split]

        def make(folder: Path) -> None:
            archive = job.downloads.fetch(source)
            pack_librispeech(archive, folder / ZIP, folder / TABLE, f"{split}/{ZIP}", job.workers)

        return Step(f"fbank80/{split}", make, {"source": source.urls})

    def write_text(folder: Path, *made: Path) -> None:
        for path in made:
            with (path / TABLE).open(encoding="utf-8", newline="") as table:
                rows = csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)
                clean.write(((row["tgt_text"],) for row in rows), [folder / path.name])

    def make(folder: Path, text: Path, *made: Path) -> None:
        wanted.train([text / split for split in SOURCES if split.startswith("train")], folder)
        for path in made:
            (folder / f"{path.name}.tsv").write_bytes((path / TABLE).read_bytes())
        config = settings(f"{wanted.name}.txt", data / f"{wanted.name}.model", audio_root)
        (folder / "config.yaml").write_text(config, encoding="utf-8")

    splits = tuple(features(split) for split in SOURCES)
    text = Step("text", write_text, {}, splits)
    return (*splits, text, Step("data-bin", make, {"pieces": wanted, "at": str(data)}, (text, *splits)))


TEST_SETS = {split: split for split in ("dev-clean", "dev-other", "test-clean", "test-other")}
LIBRISPEECH = Corpus(
    "librispeech",
    {"960h": Variant(plan, tuple(SOURCES.values()), "all of it, 10,000 unigram pieces", TEST_SETS)},
)
