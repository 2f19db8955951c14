"""``fairseq-residuals condition``: why Adam does not make up for gradients that vanish.

Xie et al. 2023, "ResiDual", section 3.1 and appendix B: the absolute condition number is the norm of the derivative
of the update u(g) = lr m / (sqrt(v) + eps), m and v corrected for their bias, by the gradient of the step.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.utils.tables import few, text_table
from fairseq_residuals.wirings.core.errors import UserError


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


def configure(parser: argparse.ArgumentParser) -> None:
    defaults = Adam()
    look = parser.add_argument_group("simulation", "gradients are drawn from N(0, sigma^2)")
    look.add_argument("--sigmas", nargs="+", type=float, metavar="S", help="default: 0 to 1e-7 in 10 steps")
    look.add_argument("--steps", type=int, default=20, metavar="N", help="updates (%(default)s)")
    look.add_argument("--lr", type=float, default=defaults.lr, metavar="LR", help="%(default)s")
    look.add_argument("--eps", type=float, default=defaults.eps, metavar="E", help="Adam's (%(default)s)")
    betas = (defaults.beta1, defaults.beta2)
    look.add_argument("--betas", nargs=2, type=float, default=betas, metavar="B", help="Adam's (0.9 0.98)")
    look.add_argument("--dim", type=int, default=defaults.dim, metavar="D", help="parameters (%(default)s)")
    look.add_argument("--seed", type=int, default=1, metavar="N", help="of the gradients (%(default)s)")
    add_output_flags(parser, "condition")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: a number is out of range, or nothing can be written.
    """
    check_folder(args)
    sigmas = args.sigmas or [i * 1e-8 for i in range(11)]
    _check(args, sigmas)
    numbers = {
        sigma: condition_numbers(
            Adam(args.lr, args.eps, args.betas[0], args.betas[1], args.dim), sigma, args.steps, args.seed
        )
        for sigma in sigmas
    }
    figure, axes = plots.new_figure(1, 2, height=2.4, sharey=True)
    lines = plots.sequence_styles(5)
    chosen = [sigmas[i - 1] for i in few(range(1, len(sigmas) + 1), 5)]
    for sigma, line in zip(chosen, lines, strict=False):
        axes[0][0].plot(range(1, args.steps + 1), numbers[sigma], label=f"{sigma:.2g}", **line)
    unit = 10.0 ** math.floor(math.log10(max(sigmas))) if max(sigmas) else 1.0
    for step, line in zip(few(range(1, args.steps + 1), 5), lines, strict=False):
        values = [numbers[sigma][step - 1] for sigma in sigmas]
        axes[0][1].plot([sigma / unit for sigma in sigmas], values, label=f"{step}", **line)
    axes[0][0].set_yscale("log")
    plots.finish(axes[0][0], "update", "condition number of Adam", whole_x=True)
    plots.finish(axes[0][1], f"gradient scale σ / {unit:g}")
    for panel, title in zip(axes[0], ("σ", "update"), strict=True):
        plots.legend_above(panel, title)
    head = ("sigma", *(f"update {step}" for step in few(range(1, args.steps + 1), 5)))
    print(
        text_table(head, [[f"{s:.2g}", *(numbers[s][n - 1] for n in few(range(1, args.steps + 1), 5))] for s in chosen])
    )
    print(f"lr sqrt(dim) / eps = {args.lr * args.dim**0.5 / args.eps:.4g}")
    rows = [[s, step, k] for s in sigmas for step, k in enumerate(numbers[s], start=1)]
    write(args, figure, ("sigma", "update", "condition_number"), rows)
    return 0


def _check(args: argparse.Namespace, sigmas: list[float]) -> None:
    for name, valid, words in (
        ("steps", args.steps >= 1, "at least 1"),
        ("dim", args.dim >= 1, "at least 1"),
        ("lr", args.lr > 0, "more than 0"),
        ("eps", args.eps > 0, "more than 0"),
        ("betas", all(0 <= beta < 1 for beta in args.betas), "at least 0 and less than 1"),
        ("sigmas", all(0 <= sigma < float("inf") for sigma in sigmas), "at least 0"),
    ):
        if not valid:
            raise UserError(f"--{name} must be {words}, not {getattr(args, name)}")
