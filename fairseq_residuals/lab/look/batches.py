"""One batch to run a model on: synthetic tokens, or the first batch of a corpus."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_residuals.lab.look.subjects import SPECIAL
from fairseq_residuals.wirings.core.errors import UserError

SOUND_FEATURES = 80
"""Features of a frame; fairseq's recipes for speech have as many."""
FRAMES_PER_POSITION = 4
"""Frames of sound that fairseq's convolutions make one position of the encoder."""


@dataclass(frozen=True)
class Batch:
    """``sample`` is laid out as fairseq's tasks make it: "net_input" for the model, "target" (B, T)."""

    sample: dict[str, Any]
    padding: int
    """Index of the token that is none."""

    def loss(self, model: Any) -> Tensor:
        """Return mean negative log-likelihood per target token, in nats."""
        output = model(**self.sample["net_input"])
        adaptive = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
        if adaptive is None:
            log_probabilities = model.get_normalized_probs(output, log_probs=True, sample=self.sample)
        else:
            log_probabilities = _log_probabilities(adaptive, output[0])
        target = self.sample["target"].unsqueeze(-1)
        return -log_probabilities.gather(-1, target)[target.ne(self.padding)].mean()

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Move tensors to a device; what is no index takes a precision."""
        moved = utils.apply_to_sample(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), self.sample)
        return Batch(moved, self.padding)


def _log_probabilities(softmax: Any, features: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, V) by an adaptive softmax, whose own ``get_log_prob`` is not differentiable."""
    x = features.reshape(-1, features.size(-1))
    head, shortlist = softmax.head(x).log_softmax(-1), softmax.cutoff[0]
    tails = [tail(x).log_softmax(-1) + head[:, shortlist + i, None] for i, tail in enumerate(softmax.tail)]
    return torch.cat([head[:, :shortlist], *tails], -1).unflatten(0, features.shape[:2])


def make_up(args: Any, settings: Namespace, task: Any, model: Any) -> Batch:
    """Return ``args.sentences`` sequences of ``args.tokens`` tokens, the last of which ends the sentence."""
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.sentences, args.tokens)
    target = _tokens(shape, task.target_dictionary, generator)
    end = torch.full((args.sentences, 1), task.target_dictionary.eos())
    previous = torch.cat([end, target[:, :-1]], 1)
    lengths = torch.full((args.sentences,), args.tokens)
    if not hasattr(model, "encoder"):
        inputs = {"src_tokens": previous, "src_lengths": lengths}
    elif getattr(settings, "input_feat_per_channel", None):
        frames = FRAMES_PER_POSITION * lengths
        width = settings.input_feat_per_channel * settings.input_channels
        features = torch.randn(args.sentences, int(frames[0]), width, generator=generator)
        inputs = {"src_tokens": features, "src_lengths": frames, "prev_output_tokens": previous}
    else:
        source = _tokens(shape, task.source_dictionary, generator)
        inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    return Batch({"net_input": inputs, "target": target}, task.target_dictionary.pad())


def _tokens(shape: tuple[int, int], words: Dictionary, generator: torch.Generator) -> Tensor:
    made = torch.randint(SPECIAL, len(words), shape, generator=generator)
    made[:, -1] = words.eos()
    return made


def read(args: Namespace, settings: Namespace, task: Any, model: Any) -> Batch:
    """Return a batch of ``args.sentences`` sentences of a corpus, chosen by the seed.

    Raises:
        UserError: the corpus has no such split.
    """
    load_split(args, task, args.split)
    sample = next(iter(epochs(args, task, model, args.split).next_epoch_itr(shuffle=True)), None)
    if not sample:
        raise UserError(f"--split {args.split} of {args.data} has no sentence that the model can take")
    return Batch({"net_input": sample["net_input"], "target": sample["target"]}, task.target_dictionary.pad())


def load_split(args: Namespace, task: Any, split: str) -> None:
    """Load a split of the corpus ``args.data``.

    Raises:
        UserError: it has no such split.
    """
    try:
        task.load_dataset(split)
    except (FileNotFoundError, KeyError):
        raise UserError(
            f"--split {split}: {args.data} has none of that name; valid are mostly train, valid, test"
        ) from None


def epochs(args: Namespace, task: Any, model: Any, split: str) -> Any:
    """Return fairseq's iterator over the epochs of a split: batches of ``args.sentences``, in the order of the seed."""
    return task.get_batch_iterator(
        task.dataset(split),
        max_sentences=args.sentences,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        ignore_invalid_inputs=True,
        seed=args.seed,
    )
