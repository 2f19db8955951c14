"""Machine and versions with which a number was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def machine(device: torch.device) -> dict[str, str]:
    """Return on what it was timed."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads"
    return {
        "device": name,
        "torch": torch.__version__,
        "fairseq": version("fairseq"),
        "python": platform.python_version(),
    }


def processor() -> str:
    """Return the processor's name, as Linux knows it where this is Linux."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
