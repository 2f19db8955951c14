"""The demo's corpus: text, joint BPE by subword-nmt, and fairseq's binary data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.data.synthetic.cldr import make_corpus, write_corpus
from fairseq_residuals.experiments.demo.processes import Children, program
from fairseq_residuals.experiments.demo.settings import PLUGIN, Settings, code_digest, fresh_folder, key, versions
from fairseq_residuals.experiments.losses import entropy

LANGUAGES = ("en", "de")
MERGES = 1000
SEED = 0


@dataclass(frozen=True)
class Data:
    """The corpus as text, in BPE, and as fairseq reads it (``bin``), in one folder."""

    folder: Path

    def text(self, split: str, language: str, bpe: bool = False) -> Path:
        return self.folder / f"{split}{'.bpe' if bpe else ''}.{language}"

    def lines(self, split: str, language: str) -> list[str]:
        return self.text(split, language).read_text(encoding="utf-8").splitlines()

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def unigram_loss(self) -> float:
        """Bits per token of a model that knows only how frequent each token is in the training targets."""
        counts: Counter[Hashable] = Counter()
        with self.text("train", LANGUAGES[1], bpe=True).open(encoding="utf-8") as lines:
            for line in lines:
                counts.update([*line.split(), "</s>"])
        return entropy(counts)


def prepare_data(settings: Settings, children: Children) -> Data:
    """Makes the corpus, joint BPE, and fairseq's binary data, or finds them finished."""
    made_by = [code_digest(PLUGIN / "data"), *versions("Babel", "subword-nmt", "fairseq")]
    folder = settings.out / f"data-{key(settings.sizes, SEED, MERGES, made_by)}"
    if folder.exists():
        print(f"corpus: made before, reused from {folder}")
    else:
        print(f"corpus: making {settings.pairs:,} pairs and their BPE in {folder}", flush=True)
        work = Data(fresh_folder(folder))
        write_corpus(work.folder, make_corpus(settings.sizes, SEED))
        _segment(work, settings, children)
        _preprocess(work, children)
        work.folder.rename(folder)
    return Data(folder)


def _segment(data: Data, settings: Settings, children: Children) -> None:
    log = data.folder / "subword-nmt.log"
    codes = data.folder / "bpe.codes"
    tool = program("subword-nmt")
    learn = [tool, "learn-joint-bpe-and-vocab", "--symbols", str(MERGES), "--output", str(codes), "--input"]
    learn += [str(data.text("train", language)) for language in LANGUAGES]
    learn += ["--write-vocabulary", *(str(data.folder / f"bpe.{language}.txt") for language in LANGUAGES)]
    children.run(learn, log)
    for split in settings.sizes:
        for language in LANGUAGES:
            source, target = data.text(split, language), data.text(split, language, bpe=True)
            children.run([tool, "apply-bpe", "--codes", str(codes)], log, stdin=source, stdout=target)


def _preprocess(data: Data, children: Children) -> None:
    command = [program("fairseq-preprocess"), "--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1]]
    command += ["--joined-dictionary", "--destdir", str(data.bin)]
    for option, split in (("--trainpref", "train"), ("--validpref", "valid"), ("--testpref", "test")):
        command += [option, str(data.folder / f"{split}.bpe")]
    children.run(command, data.folder / "preprocess.log")
