"""The inverse square root of the number of updates, from the first update on: the schedule of T-Fixup."""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_residuals.wirings.core.errors import UserError


@dataclass
class InverseSqrtNoWarmupConfig(FairseqDataclass):
    """Hold the flags of the schedule."""

    decay_period: int = field(
        default=4000,
        metadata={"help": "updates after which the learning rate has fallen to 1/sqrt(2) of --lr"},
    )
    lr: list[float] = field(default=II("optimization.lr"))


@register_lr_scheduler("inverse_sqrt_nowarmup", dataclass=InverseSqrtNoWarmupConfig)
class InverseSqrtNoWarmup(FairseqLRScheduler):  # type: ignore[misc]
    """Set the learning rate to lr * sqrt(P / (P + n)) after n updates, P the decay period: first it is lr itself.

    Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization". Name, flag and default are
    those of layer6ai-labs/T-Fixup@cce506a (``fairseq/optim/lr_scheduler/inverse_sqrt_nowarmup_schedule.py``).
    """

    def __init__(self, cfg: InverseSqrtNoWarmupConfig, optimizer: FairseqOptimizer) -> None:
        """Start at lr.

        Raises:
            UserError: several learning rates, or a decay period of less than 1.
        """
        super().__init__(cfg, optimizer)
        if len(cfg.lr) != 1:
            raise UserError(f"--lr-scheduler inverse_sqrt_nowarmup takes one --lr, not {len(cfg.lr)}")
        if cfg.decay_period < 1:
            raise UserError(f"--decay-period must be a whole number of at least 1, not {cfg.decay_period}")
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        """Set, and return, the learning rate of the update that follows ``num_updates`` updates."""
        period = self.cfg.decay_period
        lr: float = self.cfg.lr[0] * (period / (period + num_updates)) ** 0.5
        self.optimizer.set_lr(lr)
        return lr
