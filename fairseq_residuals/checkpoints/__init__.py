"""Checkpoints of fairseq and of the authors' repositories: averaging, and comparing what they compute."""
