"""What a user did wrong, in one sentence."""

from fairseq_residuals_errors import UserError, did_you_mean

__all__ = ["UserError", "did_you_mean"]
