"""The one exception for what a user did wrong.

A module of its own, since both packages raise it and neither may import the other: ``fairseq_residuals`` does not need
fairseq, and ``modern_fairseq`` serves fairseq without the plugin.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable


class UserError(Exception):
    """Something that the user can put right, said in one sentence; commands print it without a traceback.

    torch hands on the exception of another process as the text of its traceback; of such a text, which ends in the
    original sentence, only that sentence is kept.
    """

    NAME = f"{__name__}.UserError: "
    """How a traceback ends before the sentence."""

    def __init__(self, message: str) -> None:
        sentence = " ".join(message.rpartition(self.NAME)[2].split())
        # a name in a file must not speak to the terminal
        super().__init__("".join(c if unicodedata.category(c) not in ("Cc", "Cf") else repr(c)[1:-1] for c in sentence))


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return `` (did you mean b2t?)``, or nothing where no valid name is near; case and dashes do not matter."""
    names = {_plain(one): one for one in valid}
    return "".join(f" (did you mean {names[match]}?)" for match in difflib.get_close_matches(_plain(name), names, n=1))


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())
