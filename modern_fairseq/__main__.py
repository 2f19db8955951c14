"""Print what is patched, why, until when, and whether it is active: ``python -m modern_fairseq``."""

import os
import sys

from modern_fairseq.listing import listing

try:
    print(listing(), flush=True)
except BrokenPipeError:
    # who reads it (head) wants no more of it; Python would say so again when it closes stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
