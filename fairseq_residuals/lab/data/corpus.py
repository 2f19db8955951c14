"""Definition of a corpus: a name, its variants, and for each the steps that end in data for fairseq."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.data import archives
from fairseq_residuals.lab.data.download import Downloads, Source, digest_of
from fairseq_residuals.lab.data.parallel_map import count_lines
from fairseq_residuals.lab.data.steps import STAMP, Step, foreign, remove
from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

SUMMARY = "prepared.json"


@dataclass
class Job:
    """One preparation: where to, from where, on how many processes."""

    out: Path
    downloads: Downloads
    workers: int
    stand_in: Mapping[str, Any] | None = None
    """Values for the files of tests, which stand in for the published ones: ``lines`` by data set,
    ``merges`` of a BPE, ``pieces`` of a SentencePiece model, ``held_out`` examples."""

    def lines(self, published: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many lines the data sets must have."""
        return published if self.stand_in is None else self.stand_in.get("lines", {})

    def size(self, what: str, published: Any) -> Any:
        """Return a parameter that is too large for a stand-in, which then states its own."""
        return published if self.stand_in is None else self.stand_in.get(what, published)

    def unpacked(self, source: Source, wanted: tuple[str, ...]) -> Step:
        """Return the step that gets an archive, or a user's folder, and takes out of it what is wanted."""

        def make(folder: Path) -> None:
            if source.is_folder:
                for name in wanted:
                    shutil.copyfile(self.downloads.fetch(source.file(name)), folder / name)
                return
            archive = self.downloads.fetch(source)
            with self.trusting(source):
                archives.unpack(archive, folder, wanted)

        described = {"source": source.urls or source.name, "files": wanted, "stand_in": self.stand_in is not None}
        return Step(self._unpacked_name(source), make, described)

    def _unpacked_name(self, source: Source) -> str:
        return f"work/unpacked/{source.name.rstrip('/')}"

    @contextmanager
    def trusting(self, *sources: Source) -> Iterator[None]:
        """Remove these sources if what is in them turns out to be wrong within this context.

        Not to be put around `Downloads.fetch`: what it refuses is still refused the next time.
        """
        try:
            yield
        except UserError:
            for source in sources:
                self.downloads.forget(source)
                shutil.rmtree(self.out / self._unpacked_name(source), ignore_errors=True)
            raise


Plan = Callable[[Job], tuple[Step, ...]]
"""The steps whose folders are the result; all others are work that is thrown away when these are done."""


@dataclass(frozen=True)
class Variant:
    """One way to prepare a corpus."""

    plan: Plan
    sources: tuple[Source, ...]
    summary: str
    test_sets: Mapping[str, str]
    """fairseq's names of the test sets, by ours."""


@dataclass(frozen=True)
class Corpus:
    """A corpus as papers use it. The first variant is the default."""

    name: str
    variants: Mapping[str, Variant] = field(default_factory=dict)
    mirrors: Callable[[], tuple[str, ...]] | None = None
    """Addresses of mirrors that this machine knows of."""

    def variant(self, name: str | None) -> tuple[str, Variant]:
        """Return the variant of that name, or the default for None.

        Raises:
            UserError: there is none of that name.
        """
        chosen = next(iter(self.variants)) if name is None else name
        if chosen not in self.variants:
            raise UserError(f"{self.name} has no variant {chosen}: choose one of {', '.join(self.variants)}")
        return chosen, self.variants[chosen]


def check_lines(path: Path, data_set: str, expected: Mapping[str, int]) -> None:
    """Compare the number of lines of a file with what is known of the data set.

    Raises:
        UserError: it is another.
    """
    count = count_lines(path)
    if count != expected.get(data_set, count):
        raise UserError(
            f"{data_set} has {count:,} lines and should have {expected[data_set]:,}: it is another data set"
        )


def prepare(corpus: Corpus, variant_name: str | None, job: Job) -> Path:
    """Make all of a corpus that is not there yet, and its summary last; returns the summary's path.

    Raises:
        UserError: whatever a user can put right; what was being made is removed.
    """
    chosen, variant = corpus.variant(variant_name)
    if {",", ":"} & set(str(job.out)):
        raise UserError(f"{job.out}: fairseq takes commas and colons for separators; choose a folder without any")
    with locked(job.out, wait=True):  # two tables of one corpus may be reproduced side by side
        results = variant.plan(job)
        key = hashlib.sha256("".join(step.key for step in results).encode()).hexdigest()
        summary = job.out / SUMMARY
        if summary.is_file():
            known = read_record(summary, "corpus", "variant", "key")
            if (known["corpus"], known["variant"]) != (corpus.name, chosen):
                raise UserError(
                    f"{job.out} holds {known['corpus']}, variant {known['variant']}: name another folder for"
                    f" {corpus.name}, variant {chosen}"
                )
            if known["key"] == key and all(step.is_done(job.out) for step in results):
                for name, digest in known.get("sha256", {}).items():
                    if not (job.out / name).is_file() or digest_of(job.out / name) != digest:
                        folder = (job.out / name).parent
                        raise UserError(
                            f"{job.out / name} was changed or removed since it was made: remove {folder}, and what is"
                            " missing is made again"
                        )
                return summary
        for name in ("work", *(step.name for step in results)):
            if alien := foreign(job.out / name):
                raise UserError(
                    f"prepare did not make {alien}, and would remove {job.out / name}: move it, or name another folder"
                )
        summary.unlink(missing_ok=True)
        for step in results:
            step.ensure(job.out)
        remove(job.out / "work")
        described = {
            "corpus": corpus.name,
            "variant": chosen,
            "test_sets": variant.test_sets,
            "key": key,
            **_contents(job.out, [job.out / step.name for step in results]),
        }
        text = json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False)
        with atomic_write(summary) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return summary


def _contents(out: Path, folders: list[Path]) -> dict[str, dict[str, Any]]:
    """Count and digests of the files of the finished folders."""
    lines: dict[str, int] = {}
    vocabulary: dict[str, int] = {}
    digests: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name == STAMP:
                continue
            name = path.relative_to(out).as_posix()
            digests[name] = digest_of(path)
            if folder.name == "text":
                lines.setdefault(path.relative_to(folder).with_suffix("").as_posix(), count_lines(path))
            elif path.name.startswith("dict.") or (folder.name == "data-bin" and path.name.startswith("spm_")):
                vocabulary[path.name] = count_lines(path)
    return {"lines": lines, "vocabulary": vocabulary, "sha256": digests}


def downloads_of(corpus: Corpus, folder: Path, mirror: str | None) -> Downloads:
    """Return the folder of downloads, and the mirror that is looked into first.

    Args:
        mirror: a folder or an address; None or empty: what this machine knows of for the corpus.

    Raises:
        UserError: there is no such folder.
    """
    if not mirror:
        return Downloads(folder, addresses=corpus.mirrors() if corpus.mirrors else ())
    if "://" in mirror:
        return Downloads(folder, addresses=(mirror,))
    if not Path(mirror).is_dir():
        raise UserError(f"the mirror {mirror} is not a folder: give a folder or an address")
    return Downloads(folder, Path(mirror))
