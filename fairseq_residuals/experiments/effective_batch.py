"""The effective batch stays what the recipe says, whatever the number of devices and their memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairseq_residuals.core.errors import UserError


@dataclass(frozen=True)
class Batch:
    """How an update's tokens are shared out."""

    devices: int
    max_tokens: int
    """Per device and pass."""
    update_freq: int
    """Passes per update."""
    wanted: int
    """Tokens per update that the recipe asks for."""
    idle: str = ""
    """Which devices have nothing to do, and why."""

    @property
    def tokens(self) -> int:
        """Tokens per update that it comes to."""
        return self.devices * self.max_tokens * self.update_freq

    def __str__(self) -> str:
        made = f"{self.max_tokens} tokens x {self.update_freq} passes x {self.devices} devices = {self.tokens:,}"
        made = made if self.tokens == self.wanted else f"{made} (the recipe: {self.wanted:,})"
        return f"{made}; {self.idle}" if self.idle else made


def share_out_among(wanted: int, devices: int, at_most: int, longest: int) -> Batch:
    """Return the same as :func:`share_out` on as many of the devices as let the longest sample fit into a pass.

    Raises:
        UserError: it fits into no pass.
    """
    for used in range(devices, 0, -1):
        if wanted < used:
            continue
        batch = share_out(wanted, used, at_most)
        if batch.max_tokens >= longest:
            idle = f"{devices - used} devices stay idle, for one sample has {longest} tokens" if used < devices else ""
            return replace(batch, idle=idle)
    raise UserError(f"one sample of this corpus has {longest} tokens: a device must take at least as many")


def share_out(wanted: int, devices: int, at_most: int, at_least: int = 1) -> Batch:
    """Return the fewest passes in which ``devices`` see ``wanted`` tokens.

    A remainder makes the passes smaller, never larger.

    Args:
        wanted: tokens per update.
        at_most: tokens that a device can take in a pass.
        at_least: tokens of one sample, where all have as many: a pass is filled with whole ones.

    Raises:
        UserError: it cannot be done.
    """
    if at_most < at_least:
        raise UserError(f"one sample of this recipe has {at_least} tokens: a device must take at least as many")
    if at_least > 1:
        tokens, passes = _whole_samples(wanted // at_least, devices, at_most // at_least)
        tokens *= at_least
    else:
        passes = -(-wanted // (devices * at_most))
        tokens = wanted // (devices * passes)
    if not tokens:
        fitting = [n for n in range(1, wanted // at_least + 1) if wanted % (n * at_most) == 0]
        raise UserError(
            f"{wanted} tokens per update on {devices} devices would be passes of less than the {at_least} tokens that"
            f" one sample of this recipe has; choose a number of devices out of {', '.join(map(str, fitting))}"
        )
    return Batch(devices, tokens, passes, wanted)


def _whole_samples(wanted: int, devices: int, at_most: int) -> tuple[int, int]:
    """Return samples in a pass, and passes, that come closest to ``wanted`` samples per update from below.

    Both are 0 if none do. fairseq takes less than eight samples at a time, or a multiple of eight.
    """
    sizes = [n for n in range(1, at_most + 1) if n < 8 or n % 8 == 0]
    _, size = max((wanted // (devices * n) * n, n) for n in sizes)
    passes = wanted // (devices * size)
    return (size, passes) if passes else (0, 0)
