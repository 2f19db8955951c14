"""fairseq-train in this process: seconds faster than a command of its own; and what its updates are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fairseq_cli.train
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer


def config_of(*flags: Any) -> Any:
    """What fairseq-train makes of ``flags``."""
    arguments = [str(flag) for flag in flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))


def train(*flags: Any) -> None:
    """Train as a new process would.

    Raises:
        Exception: what fairseq-train would report.
    """
    train_by(config_of(*flags))


def train_by(config: Any) -> None:
    fairseq_cli.train.main(config)


def recording(seen: list[Any]) -> Callable[..., Any]:
    """Return a ``Trainer.train_step`` that adds to ``seen`` what each update was made from and what it gave."""
    original = Trainer.train_step

    def train_step(self: Any, samples: Any, *args: Any, **kwargs: Any) -> Any:
        logged = original(self, samples, *args, **kwargs)
        gradients = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        # a process that has no batch left at the end of an epoch takes part with none
        seen.append([samples[0].get("id"), float(logged["loss"]), self.get_lr(), *gradients, torch.get_rng_state()])
        return logged

    return train_step
