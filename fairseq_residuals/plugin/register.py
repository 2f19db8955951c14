"""Everything that fairseq learns from this plugin."""

from __future__ import annotations

import functools

PATCHES = {
    "fairseq.tasks.fairseq_task": "fairseq_residuals.plugin.search.beam_search:search_faster",
    "fairseq.models.fairseq_model": "fairseq_residuals.plugin.search.beam_search:search_in_bf16",
    "fairseq.trainer": "fairseq_residuals.plugin.training.trainer_hooks:patch_trainer",
}
"""Patches that the plugin enters in the table of ``modern_fairseq``: the trainer's once a model asks for its hooks, the
others by :func:`register`."""


@functools.cache
def register() -> None:
    """Register every variant in every task, and what else the plugin adds to fairseq; a second call does nothing."""
    from fairseq_residuals.wirings.core.registry import import_variants

    import_variants()

    from fairseq_residuals.plugin.checkpoints import wiring_check  # noqa: F401
    from fairseq_residuals.plugin.models import architectures
    from fairseq_residuals.plugin.models.language_model import LANGUAGE_MODEL
    from fairseq_residuals.plugin.models.speech_to_text import SPEECH
    from fairseq_residuals.plugin.models.translation import TRANSLATION
    from fairseq_residuals.plugin.scoring import scorers  # noqa: F401
    from fairseq_residuals.plugin.search import beam_search

    # extensions act in this order: packed asks whether fast_paths records steps
    from fairseq_residuals.plugin.training import (  # noqa: F401
        admin_profile,
        chunked_label_smoothed_cross_entropy,
        fast_paths,
        layer_statistics,
        optim,
        packed,
        update_scales,
        word_dropout,
    )
    from modern_fairseq import table

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
    table.when_imported("fairseq.tasks.fairseq_task", beam_search.search_faster)
    table.when_imported("fairseq.models.fairseq_model", beam_search.search_in_bf16)
