"""Adam's update as a function of the gradient: how much it changes when the gradient does.

Xie et al. 2023, "ResiDual", section 3.1 and appendix B: the absolute condition number is the norm of the derivative
of the update u(g) = lr m / (sqrt(v) + eps), m and v corrected for their bias, by the gradient of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Adam:
    """The state of Adam for parameters whose gradients are drawn from N(0, sigma^2); the defaults are the paper's."""

    lr: float = 1e-4
    eps: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.98
    dim: int = 1024
    step: int = 0

    def __post_init__(self) -> None:
        self.m = torch.zeros(self.dim, dtype=torch.float64)
        self.v = torch.zeros(self.dim, dtype=torch.float64)

    def update(self, g: Tensor) -> Tensor:
        """Take a step with gradient ``g`` (dim,), and return the derivative of the update by it, (dim,)."""
        self.step += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m_correction, v_correction = 1 - self.beta1**self.step, 1 - self.beta2**self.step
        root = (self.v / v_correction).sqrt()
        # of a root of 0 the derivative is taken to be 0
        d_root = torch.where(root > 0, (1 - self.beta2) * g / (v_correction * root), 0.0)
        direct = (1 - self.beta1) / m_correction / (root + self.eps)
        return self.lr * (direct - self.m / m_correction * d_root / (root + self.eps) ** 2)


def condition_numbers(adam: Adam, sigma: float, steps: int, seed: int) -> list[float]:
    """Return the condition number at each of the first steps."""
    generator = torch.Generator().manual_seed(seed)
    draws = (sigma * torch.randn(adam.dim, dtype=torch.float64, generator=generator) for _ in range(steps))
    return [adam.update(g).norm().item() for g in draws]
