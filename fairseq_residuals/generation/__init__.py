"""Beam search that finds the hypotheses of fairseq's, sooner."""
