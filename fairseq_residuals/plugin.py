"""Everything that fairseq learns from this plugin."""

from __future__ import annotations

import functools


@functools.cache
def register() -> None:
    """Register every variant in every task, and what else the plugin adds to fairseq; a second call does nothing."""
    from fairseq_residuals.core.registry import import_variants

    import_variants()

    from fairseq_residuals.checkpoints import override_check  # noqa: F401
    from fairseq_residuals.generation import patches
    from fairseq_residuals.models import architectures
    from fairseq_residuals.models.language_model import LANGUAGE_MODEL
    from fairseq_residuals.models.speech_to_text import SPEECH
    from fairseq_residuals.models.translation import TRANSLATION
    from fairseq_residuals.scoring import scorers, validation  # noqa: F401
    from fairseq_residuals.training import (  # noqa: F401
        admin_profile,
        fast_paths,
        layer_statistics,
        optim,
        resume_check,
        word_dropout,
    )
    from fairseq_residuals.training.criterions import chunked_label_smoothed_cross_entropy  # noqa: F401

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
