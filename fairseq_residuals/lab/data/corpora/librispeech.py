"""LibriSpeech, 960 hours of reading: features, tables and 10,000 unigram pieces as fairseq's example prepares them.

Each split is a step of its own, with its features in a zip of its own (fairseq's script makes one zip for all).
The features take about 110 GB; the recordings are read out of the archives and never unpacked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fairseq_residuals.lab.data.audio.utterances import pack_librispeech, read_texts, settings
from fairseq_residuals.lab.data.pipeline.corpus import Corpus, Job, Variant, check_lines
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.steps import Step
from fairseq_residuals.lab.data.text.sentence_pieces import Pieces

UTTERANCES = {
    "train-clean-100": 28_539,
    "train-clean-360": 104_014,
    "train-other-500": 148_688,
    "dev-clean": 2703,
    "dev-other": 2864,
    "test-clean": 2620,
    "test-other": 2939,
}
DIGESTS = {  # as torchaudio.datasets.LIBRISPEECH has them, and TensorFlow Datasets, from where the sizes are
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
}
SIZES = {  # tensorflow/datasets, url_checksums/librispeech.txt, commit 24211da
    "train-clean-100": 6_387_309_499,
    "train-clean-360": 23_049_477_885,
    "train-other-500": 30_593_501_606,
    "dev-clean": 337_926_286,
    "dev-other": 314_305_928,
    "test-clean": 346_663_984,
    "test-other": 328_757_843,
}
SOURCES = {
    split: Source(
        f"{split}.tar.gz",
        tuple(f"https://{server}/resources/12/{split}.tar.gz" for server in ("www.openslr.org", "us.openslr.org")),
        f"sha256:{digest}",
        size=SIZES[split],
    )
    for split, digest in DIGESTS.items()
}
PIECES = Pieces("unigram", 10000)
ZIP, TABLE = "fbank80.zip", "utterances.tsv"


def plan(job: Job) -> tuple[Step, ...]:
    wanted = dataclasses.replace(PIECES, size=job.size("pieces", PIECES.size), sha256=job.size("sha256", PIECES.sha256))
    return steps(job, wanted, job.lines(UTTERANCES))


def steps(job: Job, wanted: Pieces, lines: Mapping[str, int], recorded: Step | None = None) -> tuple[Step, ...]:
    """Return the steps from recordings to data for fairseq.

    Args:
        lines: how many utterances the splits must have.
        recorded: the step that makes the archives, in place of downloads.
    """
    audio_root, data = job.out.resolve() / "fbank80", job.out.resolve() / "data-bin"

    def features(split: str) -> Step:
        source = SOURCES[split]

        def make(folder: Path, *made: Path) -> None:
            archive = made[0] / source.name if made else job.downloads.fetch(source)
            with job.trusting(source):
                pack_librispeech(archive, folder / ZIP, folder / TABLE, f"{split}/{ZIP}", job.workers)
                check_lines(folder / TABLE, split, {k: n + 1 for k, n in lines.items()})

        described = {"source": source.urls, "utterances": lines.get(split)}
        return Step(f"fbank80/{split}", make, described, (recorded,) if recorded else ())

    def write_text(folder: Path, *made: Path) -> None:
        for path in made:
            text = "".join(f"{line}\n" for line in read_texts(path / TABLE))
            (folder / path.name).write_text(text, encoding="utf-8")

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
CORPUS = Corpus(
    "librispeech",
    {"960h": Variant(plan, tuple(SOURCES.values()), "all of it, 10,000 unigram pieces", TEST_SETS)},
)
