"""One model between English and German, Spanish and French, as for OPUS-100; the text is the Unicode CLDR's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from babel import Locale

from fairseq_residuals.lab.data.pipeline import joint_sentencepiece
from fairseq_residuals.lab.data.pipeline.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.joint_sentencepiece import Pair
from fairseq_residuals.lab.data.pipeline.steps import Step
from fairseq_residuals.lab.data.synthetic.cldr import draw_sentence
from fairseq_residuals.lab.data.text import clean
from fairseq_residuals.lab.data.text.sentence_pieces import Pieces

LANGUAGES = ("de", "es", "fr")


def sentences(seed: int, languages: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Return sentences by language; no two mention the same values, or read the same in any language."""
    rng = random.Random(seed)
    locales = {language: Locale(language) for language in ("en", *languages)}
    seen: set[object] = set()
    while True:
        sentence = draw_sentence(rng)
        said = {language: " ".join(sentence.text(locale).split()) for language, locale in locales.items()}
        keys = {frozenset(sentence.items), *said.items()}
        if seen.isdisjoint(keys):
            seen |= keys
            yield said


def write(folder: Path, languages: tuple[str, ...], counts: dict[str, int]) -> None:
    """Deal each sentence to one pair of languages and one split: no model meets it in another language."""
    stream = sentences(0, languages)
    drawn = [next(stream) for _ in range(len(languages) * sum(counts.values()))]
    random.Random(0).shuffle(drawn)
    dealt = iter(drawn)
    for other in languages:
        pair = folder / "-".join(sorted(("en", other)))
        pair.mkdir()
        for split, count in counts.items():
            chosen = [next(dealt) for _ in range(count)]
            texts = ((said["en"], said[other]) for said in chosen)
            clean.write(texts, [pair / f"{split}.{language}" for language in ("en", other)])


def made(languages: tuple[str, ...], sentences_of_a_pair: int, held_out: int, pieces: int, summary: str) -> Variant:
    """Return the variant between English and these languages."""
    counts = {"train": sentences_of_a_pair, "dev": held_out, "test": held_out}

    def pairs(folder: Path) -> Iterator[Pair]:
        return (Pair.of(pair, "{split}.{language}") for pair in sorted(folder.glob("*-*")))

    def plan(job: Job) -> tuple[Step, ...]:
        described = {"languages": languages, "counts": counts, "Babel": version("Babel")}
        step = Step("work/sentences", lambda folder: write(folder, languages, counts), described)
        return joint_sentencepiece.steps(job, step, pairs, Pieces("bpe", pieces), Source("sentences"))

    return Variant(plan, (), summary, {})


CORPUS = Corpus(
    "cldr_multilingual",
    {
        "made": made(LANGUAGES, 10_000, 100, 1500, "10,000 pairs of English and each of de, es, fr"),
        "tiny": made(("de", "fr"), 40, 4, 130, "40 pairs of each of de and fr, to try every step"),
    },
)
