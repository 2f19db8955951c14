"""Whether fairseq is patched in this process: it is 0.12.2, and nobody has switched the patches off."""

import functools
import importlib.metadata
import os
import sys

VERSION = "0.12.2"
"""The only version of fairseq that the patches are for."""
SWITCH = "MODERN_FAIRSEQ"
"""Environment variable; set to 0, fairseq is left as it is."""


@functools.cache
def reason_if_off() -> str | None:
    """Return why fairseq is left alone, as the beginning of a sentence; None where it is patched.

    A fairseq without metadata, say a folder on PYTHONPATH, is taken for 0.12.2. The answer holds for the process.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 leaves fairseq as it is"
    try:
        installed = importlib.metadata.version("fairseq")
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed != VERSION:
        return f"fairseq {installed} is left as it is, since the patches of modern_fairseq are for {VERSION}"
    return None


@functools.cache
def say_why() -> None:
    """Say once, on stderr, that another version is left alone; who has set the variable knows."""
    reason = reason_if_off()
    if reason is not None and os.environ.get(SWITCH) != "0":
        print(reason, file=sys.stderr)
