"""Mistakes of a user, each told in one sentence."""

from fairseq_residuals_errors import UserError, did_you_mean

__all__ = ["UserError", "did_you_mean"]
