"""Machines that training runs on, and how it is started there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Devices of one node, or of several that are alike."""

    gpus: int
    """GPUs per node; 0: the CPU."""
    nodes: int = 1
    rendezvous: str = ""
    """HOST:PORT of the first of several nodes."""
    slurm: bool = False
    """Whether srun starts the nodes."""
    cores: int | None = None
    """Cores that Slurm gave to each node's task; None: it did not say."""

    @property
    def devices(self) -> int:
        return max(1, self.gpus) * self.nodes

    def launch(self, command: list[str]) -> list[str]:
        """Return the command that trains on all nodes; on one, fairseq starts a process per GPU itself."""
        if self.nodes == 1:
            return command
        srun = ["srun", f"--nodes={self.nodes}", "--ntasks-per-node=1"] if self.slurm else []
        if srun and self.cores:  # Slurm 22.05 to 23.02 gives a step one core where this is not said again
            srun.append(f"--cpus-per-task={self.cores}")
        return [
            *srun,
            "torchrun",
            f"--nnodes={self.nodes}",
            f"--nproc-per-node={self.gpus}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.rendezvous}",
            "--no-python",
            *command,
        ]
