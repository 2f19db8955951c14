"""Optimizers and schedules that the papers' recipes need and fairseq lacks; importing this registers them with fairseq.

===============================================  ===================================================================
recipe                                           flags
===============================================  ===================================================================
T-Fixup: inverse square root without warm-up     ``--lr-scheduler inverse_sqrt_nowarmup --decay-period 4000``
Admin: RAdam                                     ``--optimizer radam --adam-betas '(0.9, 0.98)'``
ResiDual, Table 8: linear decay without warm-up  ``--lr-scheduler polynomial_decay --total-num-update T``
===============================================  ===================================================================

``--optimizer fused_adam`` is fairseq's Adam, but faster.

The last line of the table is fairseq's own: with its defaults (power 1, no warm-up, final learning rate 0) the learning
rate after n of T updates is lr * (1 - n / T), exactly.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from fairseq.utils import eval_str_list
from omegaconf import II
from torch import nn
from torch.optim.adamw import adamw

from fairseq_residuals.wirings.core.errors import UserError


@dataclass
class RAdamConfig(FairseqDataclass):
    """Hold the flags of RAdam."""

    adam_betas: Any = field(default="(0.9, 0.999)", metadata={"help": "betas for RAdam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for RAdam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay, decoupled from the gradient"})
    lr: list[float] = field(default=II("optimization.lr"))


@register_optimizer("radam", dataclass=RAdamConfig)
class FairseqRAdam(FairseqOptimizer):  # type: ignore[misc]
    """Run ``torch.optim.RAdam`` with decoupled weight decay.

    Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond". The flags are those of the authors'
    recipes (LiyuanLucasLiu/Transformer-Clinic), where, as in fairseq's Adam, the weights decay by lr * weight_decay.
    """

    def __init__(self, cfg: RAdamConfig, params: Iterable[nn.Parameter]) -> None:
        """Build PyTorch's optimizer.

        Raises:
            UserError: a setting out of range, or parameters in half precision.
        """
        super().__init__(cfg)
        params = refuse_half_precision("radam", params)
        try:
            self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **self.optimizer_config)
        except ValueError as error:
            raise UserError(
                f"--optimizer radam: {error}; --lr, --adam-eps and --weight-decay must be at least 0"
            ) from error

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Return what replaces, when training is resumed, the settings in the checkpoint."""
        return {
            "lr": self.cfg.lr[0],
            "betas": tuple(eval_str_list(self.cfg.adam_betas)),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    @property
    def supports_flat_params(self) -> bool:
        """Return True: every weight is updated by itself, so ``--fp16`` may keep its fp32 copy in one vector."""
        return True


def refuse_half_precision(optimizer: str, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters.

    Raises:
        UserError: some are in half precision.
    """
    params = list(params)
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in params):
        raise UserError(
            f"--optimizer {optimizer} does not go with --memory-efficient-fp16 or --memory-efficient-bf16, for its"
            " statistics must be kept in fp32; use --fp16 or --bf16"
        )
    return params


class FusedAdam(Adam):  # type: ignore[misc]
    """Compute Adam in one kernel.

    State, settings and, up to rounding, trajectory are those of ``fairseq.optim.adam.Adam``, so a run may change from
    one to the other.

    PyTorch adds eps to the root of the bias-corrected second moment, fairseq to that of the moment itself:
    sqrt(v) / sqrt(c) + eps / sqrt(c) is fairseq's denominator over sqrt(c), so PyTorch is given eps / sqrt(c).
    """

    def allocate(self) -> None:
        """Allocate the moments of all parameters.

        With the first update they would come between gradients, and an allocator that keeps its memory would find no
        room for large activations between them.
        """
        for group in self.param_groups:
            for p in group["params"]:
                self._state_of(p)

    def state_dict(self) -> dict[str, Any]:
        """Return fairseq's state, without moments of what was not updated yet: ``--use-bmuf`` begins anew from that."""
        state = super().state_dict()
        return state | {"state": {number: of for number, of in state["state"].items() if of["step"]}}

    def _state_of(self, p: nn.Parameter) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, and return what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            # layer dropout leaves some parameters behind
            by_step: dict[int, list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self._state_of(p)
                state["step"] += 1
                by_step[state["step"]].append(p)
            for number, params in by_step.items():
                self._update(group, number, params)
        return loss

    def _update(self, group: dict[str, Any], number: int, params: list[nn.Parameter]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in params]
        # PyTorch counts by itself, in a tensor on the parameter's device
        counts = torch.full((len(params),), float(number - 1), device=params[0].device).unbind()
        adamw(
            list(params),
            [p.grad for p in params if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            list(counts),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"] / (1 - beta2**number) ** 0.5,
            maximize=False,
        )


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FairseqFusedAdam(FairseqAdam):  # type: ignore[misc]
    """``--optimizer fused_adam``: the flags of ``--optimizer adam``, but for those about its implementation."""

    @classmethod
    def build_optimizer(cls, cfg: FairseqAdamConfig, params: Iterable[nn.Parameter]) -> FairseqAdam:
        """Return fairseq's own optimizer, which computes by :class:`FusedAdam`.

        A checkpoint names the class of its optimizer, and fairseq resumes by that class alone.

        Raises:
            UserError: parameters in half precision, or moments that are to be.
        """
        if cfg.fp16_adam_stats:
            raise UserError("--fp16-adam-stats is not for --optimizer fused_adam; leave it out, or take adam")
        params = refuse_half_precision("fused_adam", params)
        optimizer = FairseqAdam(cfg, params)
        optimizer._optimizer = FusedAdam(params, **optimizer.optimizer_config)
        optimizer._optimizer.allocate()
        return optimizer


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
