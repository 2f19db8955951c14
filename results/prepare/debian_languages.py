"""Count the pairs of English and each language in the pinned release: ``debian_languages.py DOWNLOADS [LANGUAGE ...]``.

The files come from the mirror that apt names. Each English text counts once; nothing is held out yet.
"""

import sys
from pathlib import Path

from fairseq_residuals.lab.data.corpora import debian_release
from fairseq_residuals.lab.data.corpora.debian import BOOKWORM, DEBIAN, LANGUAGES
from fairseq_residuals.lab.data.corpora.debian_descriptions import Descriptions
from fairseq_residuals.lab.data.corpus import downloads_of

OTHERS = ("ru", "ja", "cs", "es", "pt")


def main(folder: str, *languages: str) -> None:
    """Print a line for each language."""
    downloads = downloads_of(DEBIAN, Path(folder), None)
    release = debian_release.read_release(
        downloads.fetch(debian_release.in_release(BOOKWORM.codename)), BOOKWORM.codename
    )
    said = Descriptions(lambda name: downloads.fetch(release.source(name)))
    for language in languages or (*LANGUAGES, *OTHERS):
        print(language, f"{len({example.key for example in said.translated(language)}):,}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
