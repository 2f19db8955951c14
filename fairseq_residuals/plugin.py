"""Everything that fairseq learns from this plugin."""

from __future__ import annotations

from fairseq_residuals.core.registry import import_variants

import_variants()

from fairseq_residuals.checkpoints import override_check  # noqa: E402, F401
from fairseq_residuals.generation import patches  # noqa: E402
from fairseq_residuals.models import architectures  # noqa: E402
from fairseq_residuals.models.language_model import LANGUAGE_MODEL  # noqa: E402
from fairseq_residuals.models.speech_to_text import SPEECH  # noqa: E402
from fairseq_residuals.models.translation import TRANSLATION  # noqa: E402
from fairseq_residuals.scoring import scorers, validation  # noqa: E402, F401
from fairseq_residuals.training import optim, resume_check  # noqa: E402, F401
from fairseq_residuals.training.criterions import chunked_label_smoothed_cross_entropy  # noqa: E402, F401


def register() -> None:
    """Register every variant in every task, and what else the plugin adds to fairseq."""
    architectures.register_architectures(
        TRANSLATION,
        "transformer",
        architectures.translation_bases(),
        ("6l", "12l", "18l", "24l", "36l", "50l", "100l"),
    )
    architectures.register_architectures(
        LANGUAGE_MODEL, "transformer_lm", architectures.language_model_bases(), ("6l", "16l")
    )
    architectures.register_architectures(SPEECH, "s2t_transformer", architectures.speech_bases(), ("6l", "12l_6l"))
    patches.search_faster()
    patches.search_in_bf16()
