"""Scores: the metrics of the papers, for files and for fairseq-generate."""
