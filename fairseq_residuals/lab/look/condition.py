"""``fairseq-residuals condition``: why Adam does not make up for gradients that vanish.

Xie et al. 2023, "ResiDual", section 3.1 and appendix B: the absolute condition number is the norm of the derivative
of the update u(g) = lr m / (sqrt(v) + eps), m and v corrected for their bias, by the gradient of the step.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.utils.tables import few, markdown_table


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


HELP = "plot the condition number of Adam's update against step and scale of the gradients"
STEPS, SIGMAS, SEED = 20, [i * 1e-8 for i in range(11)], 1
"""Updates, scales of the gradients, and the seed that these are drawn by: those of the paper's figure."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_output_flags(parser, "condition")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: nothing can be written."""
    check_folder(args)
    numbers = {sigma: condition_numbers(Adam(), sigma, STEPS, SEED) for sigma in SIGMAS}
    figure, axes = plots.new_figure(1, 2, height=2.4, sharey=True)
    lines = plots.sequence_styles(5)
    chosen, steps = [SIGMAS[i] for i in few(range(len(SIGMAS)), 5)], few(range(1, STEPS + 1), 5)
    for sigma, line in zip(chosen, lines, strict=True):
        axes[0][0].plot(range(1, STEPS + 1), numbers[sigma], label=f"{sigma:.2g}", **line)
    for step, line in zip(steps, lines, strict=True):
        values = [numbers[sigma][step - 1] for sigma in SIGMAS]
        axes[0][1].plot([sigma / max(SIGMAS) for sigma in SIGMAS], values, label=f"{step}", **line)
    axes[0][0].set_yscale("log")
    plots.finish(axes[0][0], "update", "condition number of Adam", whole_x=True)
    plots.finish(axes[0][1], f"gradient scale σ / {max(SIGMAS):g}")
    for panel, title in zip(axes[0], ("σ", "update"), strict=True):
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}  # above the panel
        panel.legend(title=title, fontsize=6.5, title_fontsize=7, frameon=False, **place)
    head = ("sigma", *(f"update {step}" for step in steps))
    print(markdown_table(head, [[f"{sigma:.2g}", *(numbers[sigma][n - 1] for n in steps)] for sigma in chosen]))
    adam = Adam()
    print(f"lr sqrt(dim) / eps = {adam.lr * adam.dim**0.5 / adam.eps:.4g}")
    rows = [[sigma, step, k] for sigma in SIGMAS for step, k in enumerate(numbers[sigma], start=1)]
    write(args, figure, ("sigma", "update", "condition_number"), rows)
    return 0
