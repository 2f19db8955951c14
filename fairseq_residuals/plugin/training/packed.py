"""``--packed``: train on the sentences of a batch end to end, so that nothing is computed for padding.

Loss, gradients and sentences of an update are those of the padded batch. Validation and generation stay padded.
"""

from __future__ import annotations

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from fairseq.dataclass.configs import DatasetConfig
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.speed import cuda_graph_step, packed_forward
from fairseq_residuals.plugin.training.packed_batches import PackedDataset
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.errors import UserError

CRITERIONS = (
    "adaptive_loss",
    "chunked_label_smoothed_cross_entropy",
    "cross_entropy",
    "label_smoothed_cross_entropy",
)
"""Criterions that are sums over words, each of which is looked at by itself."""
TASKS = {
    "translation": TranslationTask,
    "language_modeling": LanguageModelingTask,
    "speech_to_text": SpeechToTextTask,
}
"""Tasks whose batches can be packed; so can those of tasks derived from them."""


@register_extension("packed")
class Packed(Extension):
    """Train without padding."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the flag."""
        parser.add_argument(
            "--packed",
            nargs="?",
            const="same",
            metavar="BATCHES",
            help="train without padding, on sentences end to end: the same batches with the same loss as without (same,"
            " the default), or batches that --max-tokens words fill (full), which hold more sentences",
        )

    def check(self, args: Namespace) -> None:
        """Refuse what the flag does not know."""
        if args.packed is None:
            return
        if args.packed not in ("same", "full"):
            raise UserError(f"--packed may be same or full, not {args.packed!r}")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Let the model take packed batches, and have training data packed before it is read."""
        if args.packed is not None:
            packed_forward.attach(model)
            hooks_of(model).after_load_checkpoint.append(functools.partial(_pack, full=args.packed == "full"))


def _pack(trainer: Any, *, full: bool) -> None:
    """Have the trainer's task pack the batches that it trains on, and its criterion count their sentences.

    Raises:
        UserError: the task, the criterion or the subsets do not serve.
    """
    task, criterion, settings = trainer.task, trainer.get_criterion(), trainer.cfg
    if not any(isinstance(task, kind) for kind in TASKS.values()):
        raise UserError(f"--packed is for --task {', '.join(TASKS)}, not {type(task).__name__}; leave it out")
    if full and isinstance(task, SpeechToTextTask):
        raise UserError("--packed full is for words on both sides, of which speech has none; give --packed alone")
    if full and not settings.dataset.max_tokens:
        raise UserError("--packed full fills batches up to --max-tokens; give that, or --packed alone")
    if full and settings.dataset.required_batch_size_multiple not in (1, DatasetConfig.required_batch_size_multiple):
        raise UserError(
            "--packed full fills batches by words, and --required-batch-size-multiple counts sentences;"
            " leave it out, or give --packed alone"
        )
    if settings.criterion._name not in CRITERIONS:
        raise UserError(
            f"--packed is not for --criterion {settings.criterion._name}; it is for {', '.join(CRITERIONS)}"
        )
    if getattr(criterion, "ignore_prefix_size", 0):
        raise UserError("--packed does not go with --ignore-prefix-size, which would be that of a row; leave one out")
    train = settings.dataset.train_subset
    if train in settings.dataset.valid_subset.split(","):
        raise UserError(f"--packed validates on padded batches, and {train} is for training; choose other subsets")
    if not isinstance(criterion.forward, functools.partial):  # a trainer may load a second checkpoint
        criterion.forward = functools.partial(_count_sentences, criterion.forward, criterion.sentence_avg)
        graphs = cuda_graph_step.records_steps(criterion)
        reason = packed_forward.why_no_one_shape(trainer.get_model(), trainer.device) if graphs else ""
        if reason:
            raise UserError(f"--packed does not go with --cuda-graphs here: {reason}; leave one of them out")
        packing = {"full": full, "one_shape": graphs}
        task.load_dataset = functools.partial(_load_packed, task, task.load_dataset, train, packing)


def _load_packed(
    task: Any, load: Callable[..., object], subset: str, packing: dict[str, bool], split: str, *args: Any, **kwargs: Any
) -> None:
    """Load a subset by a task's own method; the one to train on comes packed, as :class:`.PackedDataset` is told."""
    load(split, *args, **kwargs)
    if split == subset:
        task.datasets[split] = PackedDataset(task.datasets[split], task.target_dictionary.pad(), **packing)


def _count_sentences(
    forward: Callable[..., Any], by_sentence: bool, model: Any, sample: dict[str, Any], *args: Any, **kwargs: Any
) -> tuple[Tensor, int, dict[str, Any]]:
    """Run a criterion's forward, and count the sentences of a packed batch, which it takes for one.

    Args:
        by_sentence: whether the loss is averaged over sentences and not over words.

    Returns:
        the loss, its sample size, and what is logged.
    """
    loss, size, logged = forward(model, sample, *args, **kwargs)
    if "target_bounds" in sample["net_input"]:
        size = sample["nsentences"] if by_sentence else size
        logged |= {"nsentences": sample["nsentences"], "sample_size": size}
    return loss, size, logged
