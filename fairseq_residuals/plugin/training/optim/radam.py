"""RAdam, the optimizer of Admin's recipes: PyTorch's, as a fairseq optimizer."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import nn

from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.fixes.literals import betas


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
            "betas": betas(self.cfg.adam_betas),
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
