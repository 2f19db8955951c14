"""Add the options that say how large models and batch are, and what they become on the command line of a model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_residuals.core.errors import UserError

PREFIXES = {"translation": "transformer", "language_modeling": "transformer_lm", "speech_to_text": "s2t_transformer"}


def add_size_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how large models and batch are."""
    sizes = parser.add_argument_group("sizes", "of models, where the architecture's are not wanted, and of the batch")
    sizes.add_argument("--task", choices=tuple(PREFIXES), default="translation", help="of variants (%(default)s)")
    sizes.add_argument("--layers", metavar="N", help="of each stack, or 12-6 for encoder and decoder")
    for flag, words in (("dim", "model dimension"), ("ffn-dim", "width of the FFNs"), ("heads", "attention heads")):
        sizes.add_argument(f"--{flag}", type=int, metavar="N", help=f"{words} of each stack")
    sizes.add_argument("--sentences", type=int, default=16, metavar="N", help="in the batch (%(default)s)")
    sizes.add_argument("--tokens", type=int, default=20, metavar="N", help="synthetic, per sentence (%(default)s)")
    sizes.add_argument("--vocabulary", type=int, default=1000, metavar="N", help="synthetic words (%(default)s)")
    sizes.add_argument("--seed", type=int, default=1, metavar="N", help="of weights, batch and dropout (%(default)s)")
    # what is meant for the models must not be taken for an abbreviation of these
    parser.allow_abbrev = False
    parser.set_defaults(further=[])


def size_flags(args: argparse.Namespace, stacks: Sequence[str]) -> list[str]:
    """Return fairseq's flags for ``--layers``, ``--dim``, ``--ffn-dim`` and ``--heads`` of each stack.

    Raises:
        UserError: ``--layers`` is not a number, or one for each stack.
    """
    layers = re.split("[-,]", args.layers) if args.layers else []
    if not all(n.isdigit() and int(n) > 0 for n in layers) or len(layers) > len(stacks):
        raise UserError(f"--layers must be a number such as 18, or 12-6 for encoder and decoder, not {args.layers!r}")
    flags = []
    for i, stack in enumerate(stacks):
        sizes = {"embed-dim": args.dim, "ffn-embed-dim": args.ffn_dim, "attention-heads": args.heads}
        sizes |= {"layers": layers[min(i, len(layers) - 1)]} if layers else {}
        flags += [f"--{stack}-{name}={value}" for name, value in sizes.items() if value is not None]
    return flags


def refuse_meaningless(flags: Sequence[str], arch: str, task: str) -> None:
    """Refuse flags of fairseq-train (of optimizers, ...) that would change nothing here.

    Raises:
        UserError: one of ``flags`` is neither of the architecture's model nor of the task.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    TASK_REGISTRY[task].add_args(parser)
    for action in parser._actions:
        action.required = False
    unknown = [flag for flag in parser.parse_known_args(flags)[1] if flag.startswith("-")]
    if unknown:
        raise UserError(f"{unknown[0]} is neither a flag of this command nor of {arch} or task {task}")
