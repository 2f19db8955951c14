"""Half precision goes on from a checkpoint exactly where it was: with the weights in single precision."""

import logging
import types
from typing import Any

import torch

from modern_fairseq.proxies import replaces

_LOG = logging.getLogger(__name__)

WEIGHTS = "fp32_params"
"""Key of the optimizer's state: the weights that ``--fp16`` and ``--bf16`` update, in their layout (one vector of all,
or one tensor per parameter)."""
SCALER = "loss_scaler"
"""Key of the optimizer's state: the counts that decide when the scale of the loss changes next."""
_COUNTS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def save_with_optimizer(module: types.ModuleType) -> None:
    """Save the weights in single precision, and when the scale of the loss changes, with the optimizer's state.

    optim/fp16_optimizer.py:75-96 saves the moments and the scale alone, so a resumed run began from rounded weights.
    fairseq without this patch loads such a state and leaves the additions aside. The memory-efficient optimizers have
    no weights in single precision. Can go when fairseq > 0.12.2 saves them.
    """
    _save(module._FP16OptimizerMixin, weights=True)
    _save(module._MemoryEfficientFP16OptimizerMixin, weights=False)


def _save(mixin: Any, weights: bool) -> None:
    @replaces(mixin, "state_dict")
    def state_dict(original: Any, self: Any) -> dict[str, Any]:
        state: dict[str, Any] = original(self)
        if self.scaler is not None:
            state[SCALER] = {name: getattr(self.scaler, name) for name in _COUNTS}
        if weights:
            state[WEIGHTS] = [weight.detach() for weight in _weights(self)]
        return state

    @replaces(mixin, "load_state_dict")
    def load_state_dict(original: Any, self: Any, state: dict[str, Any], optimizer_overrides: Any = None) -> None:
        original(self, state, optimizer_overrides)
        if self.scaler is not None and SCALER in state:
            vars(self.scaler).update({name: state[SCALER][name] for name in _COUNTS})
        if weights and WEIGHTS in state:
            _take(self, state[WEIGHTS])


def _weights(optimizer: Any) -> list[torch.Tensor]:
    weights = optimizer.fp32_params
    return list(weights.values() if isinstance(weights, dict) else weights)


@torch.no_grad()
def _take(optimizer: Any, saved: list[torch.Tensor]) -> None:
    """Go on from the saved weights, unless they belong to other parameters than the model has.

    Those from before checkpoints were averaged do, say: averaging leaves the optimizer's state as it was.
    """
    rounded = [p.detach() for p in optimizer.fp16_params]
    if optimizer.has_flat_params:
        rounded = [torch.cat([p.flatten() for p in rounded])]
    weights = _weights(optimizer)
    shapes = [[tensor.shape for tensor in tensors] for tensors in (saved, rounded, weights)]
    if shapes[0] == shapes[1] == shapes[2] and all(
        torch.equal(p32.to(p16.device, p16.dtype), p16) for p32, p16 in zip(saved, rounded, strict=True)
    ):
        torch._foreach_copy_(weights, [p32.to(weight.device) for p32, weight in zip(saved, weights, strict=True)])
        return
    _LOG.warning(
        "the checkpoint's weights in single precision are not those of its parameters: training goes on from the"
        " rounded parameters"
    )
