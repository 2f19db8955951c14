"""What a ``MIRROR`` setting comes to for a corpus: a folder, addresses, the sizes of its stand-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.data.pipeline.corpus import STAND_IN, Corpus
from fairseq_residuals.lab.data.pipeline.download import Downloads, is_address, mirror_folder
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_record


@dataclass(frozen=True)
class Mirror:
    """Where the files of a corpus are looked for first."""

    folder: Path | None = None
    addresses: tuple[str, ...] = ()
    """Below which files lie by name."""
    stand_in: Mapping[str, Any] | None = None
    """Of a folder whose files stand in for the published ones: their sizes and digests."""

    @classmethod
    def of(cls, setting: str | None, corpus: Corpus, *, stand_in: bool = False) -> Mirror:
        """Return the mirror that the user names, or that this machine knows of for the corpus.

        Args:
            setting: a folder or an address; None or empty: none is named.
            stand_in: whether files may stand in for the published ones, whose digests and sizes they do not have.

        Raises:
            UserError: there is no such folder, its files stand in for the published ones though that was not asked for,
                or what it says of them is not valid.
        """
        if setting is None or not setting:
            return cls(addresses=corpus.mirrors() if corpus.mirrors else ())
        if is_address(setting):
            return cls(addresses=(setting,))
        folder = mirror_folder(setting)
        path = folder / STAND_IN
        if path.is_file() and not stand_in:
            raise UserError(
                f"{path} says that the files there stand in for the published ones, whose digests and sizes they do not"
                " have; --stand-in takes them, for tests"
            )
        return cls(folder, stand_in=_read_stand_in(path) if path.is_file() else None)

    def downloads(self, folder: Path) -> Downloads:
        """Return the folder of downloads that takes from this mirror first."""
        digests = None if self.stand_in is None else self.stand_in.get("digests", {})
        return Downloads(folder, self.folder, digests, self.addresses)


def _read_stand_in(path: Path) -> dict[str, Any]:
    stand_in = read_record(path)
    for key in ("lines", "digests"):
        if not isinstance(stand_in.get(key, {}), dict):
            raise UserError(f"{path}: {key} must be a JSON object, not {stand_in[key]!r}")
    return stand_in
