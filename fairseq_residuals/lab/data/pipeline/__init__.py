"""The steps that lead from published files to data for fairseq."""
