"""``python -m fairseq_residuals.experiments.device_session``, which ``scripts/gpu.sh`` runs."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from fairseq_residuals.experiments.device_session import needs


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(
        prog="gpu.sh",
        description="Test and measure on a GPU, in order of worth: correctness, fairseq's own commands, steps beside"
        " stock fairseq, what each wiring costs, searches. What is finished is not done again by the next call.",
    )
    options.add_argument("--budget", type=float, default=30, metavar="MINUTES", help="for all pieces (%(default)g)")
    options.add_argument("--device", default="cuda", metavar="NAME", help="cpu tries the session out (%(default)s)")
    options.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for results (results/bench/DEVICE-DATE); on another day, name the folder to go on with",
    )
    options.add_argument("--again", action="store_true", help="repeat the pieces that failed")
    options.add_argument("--list", action="store_true", help="print the pieces and do nothing")
    return options


def run(args: argparse.Namespace) -> bool:
    """Run a session, and return whether everything passed that was done.

    Raises:
        UserError: there is no such device, no time, or no checkout.
    """
    import torch

    from fairseq_residuals.analysis.models import device_of
    from fairseq_residuals.core.errors import UserError
    from fairseq_residuals.experiments.device_session.agenda import pieces
    from fairseq_residuals.experiments.device_session.session import Session, check_budget
    from fairseq_residuals.experiments.runner import cores
    from fairseq_residuals.experiments.synthetic_tasks.summarization import TASK
    from fairseq_residuals.experiments.workspace import Workspace
    from fairseq_residuals.utils.checkout import RESULTS, ROOT, require_checkout
    from fairseq_residuals.utils.machine import machine
    from fairseq_residuals.utils.tables import text_table

    check_budget(args.budget)
    require_checkout(ROOT / "tests" / "golden")
    device = device_of(args.device)
    if device.type == "cuda" and (reason := needs.why_not(*needs.ON_A_GPU)):
        raise UserError(f"{reason}, which PyTorch's builds for CUDA bring; install such a build")
    described = machine(device)
    name = re.sub(r"[^a-z0-9]+", "-", described["device"].lower()).strip("-")
    out = (args.out or RESULTS / "bench" / f"{name[:40]}-{date.today().isoformat()}").resolve()
    small = replace(TASK.sizes, examples=400, subwords=300) if device.type == "cpu" else TASK.sizes
    work = Workspace.under(out / "work", TASK, small, any_code=True)
    todo = pieces(device.type, out, work.corpus / "data-bin")
    if args.list:
        print(text_table(["piece", "minutes", "what it shows"], [[p.name, p.minutes, p.about] for p in todo]))
        return True
    print(f"{described['device']}, PyTorch {torch.__version__}: results go to {out}", flush=True)
    if reason := needs.why_not(*needs.COMPARED):
        print(f"{reason}: nothing is compared with it", flush=True)
    work.prepare(cores())
    return Session(out, described, todo).run(args.budget, args.again)


def main() -> int:
    """Run a session and return the exit status: 1 where a piece failed."""
    args, passed = parser().parse_args(), [True]
    if reason := needs.why_not(*needs.NEEDED):  # PyTorch among them, which what follows imports
        print(f"gpu.sh: error: {reason}; leave SETUP out, or install what is missing", file=sys.stderr)
        return 1
    from fairseq_residuals.experiments.synthetic_tasks.command_line import exit_status

    def work() -> None:
        passed[0] = run(args)

    status = exit_status("gpu.sh", work)
    return status or int(not passed[0])


if __name__ == "__main__":
    sys.exit(main())
