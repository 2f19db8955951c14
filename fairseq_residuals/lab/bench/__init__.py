"""Costs of models in time and memory, beside stock fairseq and what else a user would pick; the command ``bench``."""
