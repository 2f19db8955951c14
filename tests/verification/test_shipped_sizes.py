"""Golden files of models that are not fairseq's in other depths, widths, heads and vocabularies are read and rebuilt.

As in ``test_golden_sizes.py``, values are random: names and shapes are understood. What a wiring computes is
compared in other sizes by ``test_printed_equations.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import Arrays, arrays_of, assert_shapes, golden_path

from fairseq_residuals.wirings.core.stack import Stack
from tests.golden_check.archive import read_sidecar, write
from tests.golden_check.hosts import RECIPES
from tests.golden_check.parity import read
from tests.golden_check.rebuild import rebuild

MIXED = {
    *("denseformer", "denseformer_dil2", "hybridnorm", "hybridnorm_star", "laurel_altup_gemma3n", "mhc_hf_dsv4"),
    *("muddformer", "ngpt", "rezero_encdec", "siamesenorm_deit", "siamesenorm_hybrid_pre"),
}
"""Files in which a number of layers is a dimension, several sizes make one, or vectors are given instead of words."""
NAMES = sorted(RECIPES.keys() - MIXED)
DIM, FFN, HEADS, WORDS = 48, 64, 6, 29
MORE = {"unet_x0_moddednanogpt": 2, "unet_gated_backout_moddednanogpt": 0}
"""Layers, where not one: the authors' classes are for even numbers, and for twelve."""
OF_ONE = {"longcat_scmoe": 2}
"""Layers of ours that one of the authors' is."""
BY_SUBLAYER = ("sublayers.", "connection.sites.", "connection.routers.", "dec.layers.")
"""Numbered so, attention and FFN in turn."""
NUMBERED = re.compile(
    r"(.*\b(?:layers|sublayers|sites|routers|h|blocks|atts|cross_atts|ffs|scales|value_embeds)\.)(\d+)(\..*)"
)
OF_ALL_LAYERS = ("resid_lambda", "resid_lambdas", "x0_lambda", "x0_lambdas", "w_post", "skip_weights")


def sublayers(stem: str) -> int:
    """How often a layer has what is numbered so: norms are numbered without regard to layers."""
    return {"encoder.scales.": 2, "decoder.scales.": 3}.get(stem, 1)


def resized(name: str, arrays: Arrays, provenance: dict[str, Any]) -> Arrays:
    """The parameters or gradients of a golden file; the layers above the highest are as it is."""
    sizes, more = provenance["config_values"], MORE.get(name, 1)
    d, f, depth = sizes["d"], sizes["f"], sizes["L"]
    meaning = {sizes["V"]: WORDS, f: FFN, d: DIM, 3 * d: 3 * DIM, 4 * d: 4 * DIM}
    if "fractions" in provenance:
        meaning[d // provenance["fractions"]] = DIM // provenance["fractions"]
    elif "streams" not in provenance:
        meaning[sizes["h"]] = HEADS
    shapes = {}
    for key, array in arrays.items():
        shape = tuple(meaning.get(n, n) for n in array.shape)
        if key in OF_ALL_LAYERS:
            shape = (len(array) * (depth + more) // depth, *array.shape[1:])
        shapes[key] = shape
        if match := NUMBERED.fullmatch(key):
            stem, number, rest = match[1], int(match[2]), match[3]
            highest = max(int(m[2]) for m in map(NUMBERED.fullmatch, arrays) if m and m[1] == stem)
            if stem in BY_SUBLAYER:
                shapes |= {f"{stem}{number + 2}{rest}": shape} if number > highest - 2 else {}
            elif number == highest:
                shapes |= {f"{stem}{number + i}{rest}": shape for i in range(1, more * sublayers(stem) + 1)}
    random = np.random.default_rng(1)
    return {key: random.normal(0, 0.2, shape).astype(np.float32) for key, shape in shapes.items()}


def write_resized(name: str, folder: Path) -> Path:
    source = golden_path(name)
    arrays, sidecar = arrays_of(source), read_sidecar(source)
    for kind in ("param/", "grad/", "init/"):
        values = {key.removeprefix(kind): arrays.pop(key) for key in list(arrays) if key.startswith(kind)}
        new = resized(name, values, sidecar["provenance"])
        arrays |= {f"{kind}{key}": value for key, value in new.items()}
    sidecar["sizes"] |= {"dim": DIM, "heads": HEADS}
    path = folder / source.name
    write(path, arrays, sidecar)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_other_sizes_are_understood(name: str, tmp_path: Path) -> None:
    small, golden = read(golden_path(name)), read(write_resized(name, tmp_path))
    model = rebuild(golden)
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    before = [module for module in rebuild(small).modules() if isinstance(module, Stack)]
    assert [len(stack) for stack in stacks] == [
        len(stack) + OF_ONE.get(name, 1) * MORE.get(name, 1) for stack in before
    ]
    assert {(stack.shape.dim, stack.shape.heads) for stack in stacks} == {(DIM, HEADS)}
    assert_shapes(golden, model, WORDS)
