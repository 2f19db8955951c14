"""What ``from_pretrained`` gets from elsewhere: archives are unpacked into their folder, and code is not fetched."""

import os
import shutil
import tarfile
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.free_space import check_space
from modern_fairseq.proxies import override

MOST_FILES = 10_000
"""Of a model's archive; fairseq's own have less than 100."""
LARGEST_RATIO = 100
"""Between what is unpacked and the archive; parameters are hardly compressed at all."""


class _Archive(tarfile.TarFile):
    def bounded(self, path: str) -> "_Archive":
        """Read the list of members, which fairseq does anyway.

        Raises:
            UserError: there are too many of them, or they are too large.
        """
        largest = LARGEST_RATIO * max(os.path.getsize(path), 1 << 20)
        total = 0
        for number, member in enumerate(self, start=1):
            total += member.size
            if number > MOST_FILES or total > largest:
                raise UserError(
                    f"{path} is not unpacked: it has more than {MOST_FILES:,} files, or more than {LARGEST_RATIO} times"
                    " its own size"
                )
        return self

    def extractall(self, path: Any = ".", *args: Any, **kwargs: Any) -> None:
        try:
            check_space(str(self.name), sum(member.size for member in self), path)
            for member in self:
                tarfile.data_filter(member, path)
            super().extractall(path, filter="data")
        except UserError:
            shutil.rmtree(path)
            raise
        except tarfile.FilterError as error:
            shutil.rmtree(path)
            raise UserError(
                f"{self.name!s} is not unpacked: {error.tarinfo.name!r} in it is none of"
                " the plain files, folders and links inside that an archive may have"
            ) from error


def archives_stay_in_their_folder(module: types.ModuleType) -> None:
    """Unpack plain files, folders and links inside only, and in bounds.

    file_utils.py:90 unpacks whatever an archive names, outside of the folder too. Can go when fairseq > 0.12.2 passes a
    filter.
    """

    def open_archive(name: str, mode: Any) -> _Archive:
        try:
            archive = _Archive.open(name, mode)
        except (tarfile.TarError, EOFError) as error:
            raise UserError(f"{name} is no archive that can be unpacked: {error}") from error
        try:
            return archive.bounded(name)
        except (tarfile.TarError, EOFError) as error:
            archive.close()
            raise UserError(f"{name} is damaged: {error}") from error
        except UserError:
            archive.close()
            raise

    override(module, "tarfile", open=open_archive)


def no_code_that_an_archive_names(module: types.ModuleType) -> None:
    """Refuse to fetch and run a repository's code.

    models/speech_to_text/hub_interface.py:106 hands the name that a model's config.yaml gives (``hub: tts_model_id``)
    to ``torch.hub.load``. Can go when fairseq > 0.12.2 asks.
    """

    def load(repository: str, *args: Any, **kwargs: Any) -> Any:
        raise UserError(
            f"the model's configuration names {repository} for speech synthesis, whose code torch.hub would fetch and"
            " run: load it yourself by torch.hub.load where you trust it, and pass it the text"
        )

    hub = module.torch.hub
    override(module, "torch", hub=hub)
    override(module.torch, "hub", load=load)
