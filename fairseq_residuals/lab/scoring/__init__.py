"""Scores: the metrics of the papers, for files, for fairseq-generate and for validation."""
