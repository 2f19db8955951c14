"""Room on a disk, asked for before it is used."""

import os
import shutil

from fairseq_residuals_errors import UserError


def check_space(archive: str | os.PathLike[str], size: int, folder: str | os.PathLike[str]) -> None:
    """Check that ``size`` bytes, which are to be unpacked from ``archive``, fit on the disk of ``folder``.

    Raises:
        UserError: they do not.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            f"{os.fspath(archive)} is not unpacked: that needs {size:,} bytes, and the disk of {os.fspath(folder)} has"
            f" {free:,} left"
        )
