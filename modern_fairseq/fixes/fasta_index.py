"""Names of FASTA files say nothing to a shell."""

import shlex
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


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
