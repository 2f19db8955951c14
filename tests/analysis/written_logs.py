"""Logs of fairseq-train written by hand."""

from __future__ import annotations

LAYERS = 6
VANISHING = {n: 10.0 ** (n - LAYERS) for n in range(1, LAYERS + 1)}
"""Gradient norms that fall from the top to the bottom."""
DONE = "2026 | INFO | fairseq_cli.train | done training in 9.5 seconds"
ANEW = "2026 | INFO | fairseq.trainer | No existing checkpoint found save/checkpoint_last.pt"
RESUMED = "2026 | INFO | fairseq.trainer | Loaded checkpoint save/checkpoint_best.pt (epoch 2 @ 20 updates)"


def each(norm: float) -> dict[int, float]:
    """The same gradient norm of each layer."""
    return dict.fromkeys(range(1, LAYERS + 1), norm)


def record(update: int, loss: float, norms: dict[int, float] | None = None, **others: float) -> str:
    values = {"loss": loss, "num_updates": update} | others
    values |= {f"gnorm/decoder.layers.{layer - 1}": norm for layer, norm in (norms or {}).items()}
    return "epoch 001:  1 / 9 " + ", ".join(f"{key}={value}" for key, value in values.items())


def healthy(updates: int = 12) -> list[str]:
    """Losses that fall, gradient norms that fall slowly."""
    return [record(10 * i, 8 / i, each(1 / i**0.3)) for i in range(1, updates + 1)]
