"""The wirings in anybody's model: what ``import fairseq_residuals`` offers, on PyTorch alone."""
