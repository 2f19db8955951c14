"""The refusal of what a file holds, and the values that every part of loading checks."""

from typing import Any


class Refused(Exception):
    """A file holds what no checkpoint of fairseq does; the message goes on after the file's name."""


class Foreign(Refused):
    """A file names a class or function that is not admitted."""


def plain_int(value: Any) -> int:
    """Return ``value`` if it is an integer that is not negative.

    Raises:
        Refused: it is not.
    """
    if type(value) is not int or value < 0:
        raise Refused("has a size, a stride or an offset that is no integer, or is negative")
    return value
