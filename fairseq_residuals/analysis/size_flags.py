"""What a look's options become on the command line of a model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_residuals.core.errors import UserError


def size_flags(args: argparse.Namespace, stacks: Sequence[str]) -> list[str]:
    """fairseq's flags for ``--layers``, ``--dim``, ``--ffn-dim`` and ``--heads`` of each stack.

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
    """fairseq-train has many flags (of optimizers, ...) that would be taken and change nothing here.

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
