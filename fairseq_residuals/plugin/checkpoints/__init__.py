"""Checkpoints of fairseq and of the authors' repositories: averaged, imported, exported; and what they compute."""

# registering with fairseq needs modules of this package whole, so it comes before any of them is begun
import fairseq  # noqa: F401
