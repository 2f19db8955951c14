"""Archives are unpacked into their folder, code that they name is not fetched, and names of data reach no shell."""

import shlex
import shutil
import tarfile
import types
from pathlib import PurePosixPath
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import ModuleProxy, override, replaces


class _Archive(tarfile.TarFile):
    def extractall(self, path: Any = ".", *args: Any, **kwargs: Any) -> None:
        try:
            if hasattr(tarfile, "data_filter"):
                super().extractall(path, filter="data")
            else:  # Python before 3.11.4, such as Debian 12's
                super().extractall(path, members=map(_inside, self))  # type: ignore[arg-type]
        except (tarfile.TarError, EOFError) as error:
            shutil.rmtree(path)
            raise UserError(f"{self.name!s} is not unpacked: {error}") from error


def _inside(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a file or folder that is inside of its archive's folder; links are refused, even those inside.

    Raises:
        tarfile.ExtractError: it is another one.
    """
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name!r} is no file or folder inside of it")
    member.mode &= 0o755
    return member


def archives_stay_in_their_folder(module: types.ModuleType) -> None:
    """Unpack plain files, folders and links inside only.

    file_utils.py:90 unpacks whatever an archive names, outside of the folder too. Can go when fairseq > 0.12.2 passes a
    filter.
    """

    def open_archive(name: str, mode: Any) -> _Archive:
        try:
            return _Archive.open(name, mode)
        except (tarfile.TarError, EOFError) as error:
            raise UserError(f"{name} is no archive that can be unpacked: {error}") from error

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

    override(module, "torch", hub=ModuleProxy(module.torch.hub, load=load))


def plain_names(module: types.ModuleType) -> None:
    """Refuse FASTA files whose names a shell would not take as they are, and those in which it finds nothing.

    fasta_dataset.py:60 and :65 put the file's name, of which a data folder gives the languages, into a shell's command
    line, and take its failure for an empty file. Can go when fairseq > 0.12.2 quotes it, and asks how it ended.
    """

    @replaces(module.FastaDataset, "_build_index")
    def build_index(original: Any, self: Any, path: str) -> Any:
        if shlex.quote(path) != path:
            raise UserError(f"{path} has characters that mean something to a shell: give the file another name")
        index = original(self, path)
        if not len(index[0]):
            raise UserError(f"{path}.fasta was not read: it is missing or empty, or no program tqdm is in PATH")
        return index
