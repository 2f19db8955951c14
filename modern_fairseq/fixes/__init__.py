"""Bugs of fairseq 0.12.2, and the hooks that it lacks."""
