"""fairseq's Adam, computed by PyTorch's fused kernel: one pass over the memory of all parameters, not eight."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import nn
from torch.optim.adamw import adamw

from fairseq_residuals.plugin.training.optim.radam import refuse_half_precision
from fairseq_residuals.wirings.core.errors import UserError


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
