"""Golden files of other depths, widths, heads and vocabularies than those of tests/golden are read and rebuilt.

Their parameters are those of a file that is there, under the authors' own names, with other layers and dimensions and
random values: so this shows that names and shapes are understood, not that numbers agree.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from golden_files import VERIFIED, arrays_of, assert_shapes

from tests.golden_check.archive import read_sidecar, variant_name, write
from tests.golden_check.fairseq_recipes import FairseqRecipe
from tests.golden_check.parity import read
from tests.golden_check.rebuild import rebuild
from tests.golden_check.recipes import find_recipe

ENCODER, DECODER = 3, 1
DIM, FFN, HEADS = 24, 20, 3
WORDS = {"enc": 50, "dec": 44}
FILES = [path for path in VERIFIED if isinstance(find_recipe(variant_name(path, read_sidecar(path))), FairseqRecipe)]


def resized(arrays: dict[str, np.ndarray], dim: int) -> dict[str, np.ndarray]:
    """The parameters or gradients of a golden file in other sizes.

    It has 16 channels, 32 in the FFN, 2 heads, 40 words, and two layers; or 32 channels, 48 in the FFN, 4 heads, 27
    words, and four layers in the encoder.
    """
    # the hidden layer of a depth-wise LSTM has twice the channels
    ffn = 2 * DIM if any(name.startswith("enc.") for name in arrays) else FFN
    small = dim == 16
    # the larger files have one table of words for both sides
    words, table = (40, "") if small else (27, "dec")
    meaning = {16: DIM, 32: ffn, 48: 3 * DIM, 2: HEADS} if small else {32: DIM, 48: ffn, 64: 2 * DIM, 96: 3 * DIM}
    indices = defaultdict(set)
    index = re.compile(r"^(.*?\.)(\d+)(\..*)$")
    for match in filter(None, map(index.match, arrays)):
        indices[match[1]].add(int(match[2]))
    shapes = {}
    for key, array in arrays.items():
        side = "dec" if key.startswith("dec") else "enc"
        depth = ENCODER if side == "enc" else DECODER
        sizes = meaning | dict.fromkeys((3, 5), depth + 1) | {words: WORDS[table or side]}
        shape = tuple(sizes.get(n, n) for n in array.shape)
        match = index.match(key)
        if match and len(indices[match[1]]) > 1:
            first = min(indices[match[1]])
            shapes |= {f"{match[1]}{i}{match[3]}": shape for i in range(first, first + depth)}
        else:
            shapes[key] = shape
    random = np.random.default_rng(1)
    return {key: random.normal(0, 0.2, shape).astype(np.float32) for key, shape in shapes.items()}


def write_resized(source: Path, folder: Path) -> Path:
    arrays, sidecar = arrays_of(source), read_sidecar(source)
    for kind in ("param/", "grad/", "init/"):
        values = {key.removeprefix(kind): arrays.pop(key) for key in list(arrays) if key.startswith(kind)}
        arrays |= {f"{kind}{key}": value for key, value in resized(values, sidecar["sizes"]["dim"]).items()}
    if "param/decoder.embed_tokens.weight" in arrays:
        # no table is shared, so each has a gradient; until fairseq 0.9 the output's had a name of its own
        tables = [t for t in ("embed_tokens.weight", "output_projection.weight") if f"param/decoder.{t}" in arrays]
        for table in tables if len(tables) == 2 else [*tables, "embed_out"]:
            for kind in ("param/", "grad/"):
                arrays[f"{kind}decoder.{table}"] = np.random.default_rng(len(table)).normal(0, 0.2, (WORDS["dec"], DIM))
    if "in/loss_weight" in arrays:
        arrays["in/loss_weight"] = np.ones((*arrays["in/src_tokens"].shape, DIM))
    sizes = {"encoder_layers": ENCODER, "decoder_layers": DECODER, "dim": DIM, "heads": HEADS, "ffn_dim": FFN}
    sidecar["sizes"] = sizes | ({"ffn_dim": 2 * DIM} if "param/enc.wemb.weight" in arrays else {})
    path = folder / source.name
    write(path, {key: x.astype(np.float32) if x.dtype == np.float64 else x for key, x in arrays.items()}, sidecar)
    return path


@pytest.mark.parametrize("source", FILES, ids=lambda path: path.stem)
def test_other_sizes_are_understood(source: Path, tmp_path: Path) -> None:
    golden = read(write_resized(source, tmp_path))
    model = rebuild(golden)
    depths = {side: len(getattr(model, side).layers) for side in ("encoder", "decoder") if hasattr(model, side)}
    expected = {"encoder": ENCODER, "decoder": DECODER}
    given = {"encoder": "src_tokens" in golden.inputs, "decoder": "prev_output_tokens" in golden.inputs}
    assert depths == {side: depth for side, depth in expected.items() if given[side]}
    assert_shapes(golden, model, WORDS["dec"])
