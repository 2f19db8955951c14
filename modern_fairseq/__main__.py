"""Print what is patched, why, until when, and whether it is active: ``python -m modern_fairseq``."""

from modern_fairseq.listing import listing

print(listing())
