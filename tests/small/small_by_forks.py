"""``python -m fairseq_residuals.experiments.synthetic_tasks[.variants]``, whose commands are forks: each import takes
seconds. The first argument, ``variants`` or a task, chooses."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from warm_processes import run_script


def printed_by_forks(call: Sequence[str], streams: Path, **environment: str) -> str:
    """What the command prints, which has to succeed.

    Args:
        streams: a new folder for its input and output.
    """
    streams.mkdir()
    (streams / "in").touch()
    status = run_script(
        [__file__, *call], cwd=streams, environment=os.environ | environment, streams=streams, timeout=600
    )
    assert status == 0, (streams / "err").read_text("utf-8")
    return (streams / "out").read_text("utf-8")


def main() -> int:
    from fairseq_residuals.experiments.synthetic_tasks import __main__, multilingual, variants
    from fairseq_residuals.verification.reliability.zygote import prepare_to_fork

    # the fewest that have pairs among them
    multilingual.LANGUAGES = ("de", "fr")
    prepare_to_fork()
    return variants.main(sys.argv[2:]) if sys.argv[1] == "variants" else __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
