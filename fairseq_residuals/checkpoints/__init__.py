"""Checkpoints of fairseq and of the authors' repositories: averaged, imported, exported; and what they compute."""
