"""Logging stays as the command sets it up."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def root_logger_kept() -> Iterator[None]:
    """Import fairseq's text-to-speech tasks without what they do to logging.

    See tasks/text_to_speech.py:23, tasks/frm_text_to_speech.py:13.

    They call ``logging.basicConfig`` when imported, which is always, so that every command that configures logging
    later is ignored and writes to stderr what it was to write to stdout. Can go when fairseq > 0.12.2 leaves logging
    alone.
    """
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
