"""The one exception for what a user did wrong.  Imports neither torch nor fairseq."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something that the user can put right, told in one sentence; commands print it without a traceback.

    torch re-raises the exception of a DataLoader worker as ``type(e)(traceback_text)``; of such a text,
    which ends in the original sentence, only that sentence is kept.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.rpartition(f"{__name__}.UserError: ")[2].split()))


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`` (did you mean b2t?)``; empty where nothing valid is near."""
    return "".join(f" (did you mean {match}?)" for match in difflib.get_close_matches(name, list(valid), n=1))
