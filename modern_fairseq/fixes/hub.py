"""Archives are unpacked into their folder, code that they name is not fetched, and names of data reach no shell."""

import shlex
import tarfile
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import ModuleProxy, override, replaces


class _Archive(tarfile.TarFile):
    def extractall(self, path: Any = ".", *args: Any, **kwargs: Any) -> None:
        super().extractall(path, filter="data")  # a TypeError before Python 3.11.4, which has no filters


def archives_stay_in_their_folder(module: types.ModuleType) -> None:
    """Unpack plain files, folders and links inside only.

    file_utils.py:90 unpacks whatever an archive names, outside of the folder too. Can go when Python >= 3.14, whose
    filter this is, is required.
    """
    override(module, "tarfile", open=_Archive.open)


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
    """Refuse FASTA files whose names a shell would not take as they are.

    fasta_dataset.py:60 and :65 put the file's name, of which a data folder gives the languages, into a shell's command
    line. Can go when fairseq > 0.12.2 quotes it.
    """

    @replaces(module.FastaDataset, "_build_index")
    def build_index(original: Any, self: Any, path: str) -> Any:
        if shlex.quote(path) != path:
            raise UserError(f"{path} has characters that mean something to a shell: give the file another name")
        return original(self, path)
