"""The package ``performance`` is removable: what it attaches makes the same computation faster, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
CONTRACT = ("translation-realformer", "translation-mhc", "language_modeling-dlcl_pre", "speech-b2t")
"""One task each; between them open attention, several streams, and sums over depth. Not compiled: that is dear, and a
stack that is compiled calls nothing of the package."""


def run(*command: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_contract_holds() -> None:
    out = run(
        *("-m", "pytest", "-q", "-x", "-p", "hide_performance", "-p", "no:cacheprovider", "-W", "ignore"),
        *("tests/test_contract.py", "-k", f"({' or '.join(CONTRACT)}) and not 24 and not compile"),
    )
    assert " passed" in out and "failed" not in out and "skipped" not in out


USES = """
import hide_performance
from tiny import batch, build, make_dictionary, perturb
from tiny_trainer import SGD, make_trainer, sample, update
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.generation.beam_search import FasterSequenceGenerator

trainer = make_trainer(*SGD, "--criterion", "chunked_label_smoothed_cross_entropy")
print(update(trainer, sample())["loss"] > 0)
model = perturb(build("translation", "b2t"))
generator = FasterSequenceGenerator([model], make_dictionary(), beam_size=2, max_len_b=5)
print(len(generator.generate([model], {"net_input": batch("translation")})))
for flag in ("--fast-on-cpu", "--keep-freed-memory", "--compile-stack", "--fused-kernels", "--cuda-graphs", "--packed"):
    try:
        build("translation", "b2t", flag)
    except UserError as error:
        print(error)
"""


def test_training_and_search_go_on_and_flags_say_what_is_missing() -> None:
    trained, searched, *refused = run("-c", USES).splitlines()
    assert (trained, searched) == ("True", "3")
    flags = ("--fast-on-cpu", "--keep-freed-memory", "--compile-stack", "--fused-kernels", "--cuda-graphs", "--packed")
    assert refused == [
        f"{flag} needs fairseq_residuals/performance, which is missing here; leave it out" for flag in flags
    ]
