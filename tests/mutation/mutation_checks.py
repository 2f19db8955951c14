"""What a mutant has to survive: the printed equations, the authors' numbers, the contract, and tests by their files."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("", "data", "verification")]

import pytest  # noqa: E402
import test_contract  # noqa: E402
from golden_files import VERIFIED  # noqa: E402
from random_stacks import Draw  # noqa: E402
from test_init import ALIKE, SAME  # noqa: E402
from test_printed_equations import (  # noqa: E402
    DEEP,
    TOLERANCE,
    difference,
    test_the_printed_equations_are_what_runs,
)
from tiny import choices, pairs_of_choices  # noqa: E402

from fairseq_residuals.core.base import StackShape  # noqa: E402
from fairseq_residuals.core.registry import VARIANTS  # noqa: E402
from fairseq_residuals.core.wiring import Wiring  # noqa: E402
from fairseq_residuals.verification.parity import compare_golden, read  # noqa: E402

CONTRACT: tuple[Callable[[str, str], None], ...] = (
    test_contract.test_a_gradient_reaches_every_parameter,
    test_contract.test_incremental_decoding_equals_full,
    test_contract.test_padding_and_batch_composition_do_not_matter,
    test_contract.test_activation_checkpointing_equals_plain,
    test_contract.test_layerdrop_skips_layers_in_training_only,
    partial(test_contract.test_depth, layers=24),
    test_contract.test_beam_score_is_the_teacher_forced_score,
    test_contract.test_no_module_keeps_a_tensor_between_two_calls,
)
PAIR = {"dim": 4, "ffn_dim": 6, "heads": 2, "enc_depth": 3, "dec_depth": 4}
SHAPES = (
    DEEP,
    StackShape("encoder", depth=3, cross=True, **PAIR),  # type: ignore[arg-type]
    StackShape("decoder", depth=4, cross=False, **PAIR | {"enc_depth": 0}),  # type: ignore[arg-type]
    StackShape("encoder", depth=3, cross=False, **PAIR | {"dec_depth": 0}),  # type: ignore[arg-type]
)
FILES = {
    "core/attention": ("test_attention.py",),
    "core/layer": ("test_hooks_of_a_layer.py", "test_stock_equality.py"),
    "core/norms": ("test_norm_types.py",),
    "core/stack": ("test_wiring.py",),
    "core/value_residual": ("test_value_residual.py",),
    "variants/_augmented_skip": ("test_laurel.py",),
    "variants/_dense_mixes": ("test_mudd.py", "test_dense_former.py"),
    "variants/_layer_history": ("test_dense_former.py", "test_ode_transformer.py"),
    "variants/_mixed_reads": ("test_mudd.py",),
    "variants/_multi_stream": ("test_mhc_lite.py", "test_hyper_connections.py"),
    "variants/_mup": ("test_depth_mup.py",),
    "variants/_read_out": ("test_mhc.py",),
    "variants/_runge_kutta": ("test_ode_transformer.py",),
    "variants/_siamese_connections": ("test_siamese_norm.py",),
    "variants/_softmax_over_depth": ("test_attention_residuals.py", "test_delta_attnres.py"),
    "variants/_stream_router": ("test_mhc_lite.py", "test_hyper_connections.py"),
    "variants/_two_lane_connection": ("test_shipped_wirings.py",),
    "variants/admin": ("test_admin_training.py", "verification/test_admin_profile.py"),
    "variants/complete_p": ("test_depth_mup.py",),
    "variants/identity_hc": ("test_mhc_lite.py",),
    "variants/realformer": ("verification/test_realformer.py",),
}
"""The tests of a module; those of a variant's are called by its name."""
OF_VARIANTS = ("test_shipped_wirings.py", "verification/test_newer_simple.py")
BY_VARIANT = ("test_variants.py", "test_export.py", "verification/test_newer_export.py")
"""Of these, only the tests with a variant's name in their own."""


@dataclass(frozen=True)
class Check:
    name: str
    variants: frozenset[str]
    run: Callable[[], object]


def equation_checks(variants: Iterable[str]) -> list[Check]:
    """Each value of an option and each pair of them in a decoder, and the defaults in the other stacks."""
    found = []
    for variant in variants:
        draws = [(choice, DEEP) for choice in ("", *choices(variant), *pairs_of_choices(variant))]
        draws += [("", s) for s in SHAPES[1:] if not VARIANTS[variant].refusal(alone=not s.cross, topmost=True)]
        for i, (args, shape) in enumerate(draws):
            run = partial(_equations, variant, args, shape)
            found.append(Check(f"equations of {variant}({args}) {i}", frozenset({variant}), run))
    return found


def drawn_checks(variants: Iterable[str]) -> Iterator[Check]:
    """Options, depths and widths at random, the same each time."""
    for variant in variants:
        run = partial(test_the_printed_equations_are_what_runs, variant)
        yield Check(f"equations of {variant} at random", frozenset({variant}), run)


def _equations(variant: str, args: str, shape: StackShape) -> None:
    assert difference(Draw(variant, args, shape, seed=1), Wiring.parse(variant, args).equations) <= TOLERANCE


@cache
def golden_checks() -> tuple[Check, ...]:
    """Every file of the authors' numbers, the smallest first."""

    def compared(path: Path) -> None:
        assert compare_golden(read(path)).failures() == {}

    files = sorted(VERIFIED, key=lambda path: path.stat().st_size)
    return tuple(Check(f"golden {path.stem}", _wired_by(path), partial(compared, path)) for path in files)


def _wired_by(path: Path) -> frozenset[str]:
    return frozenset(part.name for part in Wiring.parse(read(path).wiring).parts)


def contract_checks(variants: Iterable[str]) -> Iterator[Check]:
    for variant in variants:
        for function in CONTRACT:
            name = getattr(function, "func", function).__name__
            yield Check(f"{name}[{variant}]", frozenset({variant}), partial(function, "translation", variant))


def file_checks(module: str, variants: Iterable[str]) -> tuple[list[Check], list[Check]]:
    """Return the test modules of a module, and those of all variants, as far as they concern ``variants``."""
    folder, _, name = module.rpartition("/")
    own = [_tests(file) for file in FILES.get(module, (f"test_{name.strip('_')}.py",)) if (TESTS / file).exists()]
    if folder != "variants":
        return own, []
    variants = set(variants)
    wired = {case: set(re.split(r"\W|transformer_(?:lm_)?", arch)) for case, arch in (SAME | ALIKE).items()}
    started = [case for case, words in wired.items() if words & variants]
    others = [_tests(file) for file in OF_VARIANTS] + [_tests(file, variants) for file in BY_VARIANT]
    return own, others + ([_tests("verification/test_init.py", started)] if started else [])


def _tests(file: str, names: Iterable[str] = ()) -> Check:
    """Run a test module, or its tests that have one of ``names`` in their own."""
    return Check(f"tests/{file}", frozenset(), partial(_pytest, TESTS / file, " or ".join(sorted(names))))


def _pytest(path: Path, names: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status: Any = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", names, str(path)])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
