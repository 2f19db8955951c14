"""Golden files of other depths, widths, heads and vocabularies than those of tests/golden are read and rebuilt.

Their parameters are those of a file that is there, under the authors' own names, with other layers and dimensions and
random values: so this shows that names and shapes are understood, not that numbers agree.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from fairseq_residuals.verification.rebuild import read, rebuild
from golden_files import FOLDER

from fairseq_residuals.verification.recompute import recompute

ENCODER, DECODER = 3, 1
DIM, FFN, HEADS = 24, 20, 3
WORDS = {"enc": 50, "dec": 44}
NAMES = (
    *("postln", "tfixuprepo_preln", "dlclrepo_prenorm_baseline", "preln_lm", "b2t", "b2t_noln", "residual_s005"),
    *("clinic_deepnet", "deepnet", "deepnet_lm", "subln", "subln_enc", "normformer_encdec", "normformer_resids_lm"),
    *("dlcl_pre_vector", "dlcl_post_fixavg", "dlcl_pre_fixavg_noln", "simple_dlcl_post", "admin", "tfixup"),
    *("realformer_preln_fairseq_reimpl", "dwlstm_reimpl_gate1add", "dwlstm_reimpl_gate2concat"),
    "dwlstm_reimpl_none2add",
)


def resized(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters or gradients of a golden file of two layers, 16 channels, 32 in the FFN, 2 heads and 40 words."""
    ffn = 2 * DIM if name.startswith("dwlstm") else FFN
    indices = defaultdict(set)
    index = re.compile(r"^(.*?\.)(\d+)(\..*)$")
    for match in filter(None, map(index.match, arrays)):
        indices[match[1]].add(int(match[2]))
    shapes = {}
    for key, array in arrays.items():
        side = "dec" if key.startswith("dec") else "enc"
        depth = ENCODER if side == "enc" else DECODER
        sizes = {16: DIM, 32: ffn, 48: 3 * DIM, 40: WORDS[side], 2: HEADS, 3: depth + 1}
        shape = tuple(sizes.get(n, n) for n in array.shape)
        match = index.match(key)
        if match and len(indices[match[1]]) > 1:
            first = min(indices[match[1]])
            shapes |= {f"{match[1]}{i}{match[3]}": shape for i in range(first, first + depth)}
        else:
            shapes[key] = shape
    random = np.random.default_rng(1)
    return {key: random.normal(0, 0.2, shape).astype(np.float32) for key, shape in shapes.items()}


def write_resized(name: str, folder: Path) -> Path:
    source = FOLDER / f"{name}_S.npz"
    with np.load(source) as file:
        arrays = {key: file[key] for key in file.files}
    sidecar = json.loads(source.with_suffix(".json").read_text())
    for kind in ("param/", "grad/"):
        values = {key.removeprefix(kind): arrays.pop(key) for key in list(arrays) if key.startswith(kind)}
        arrays |= {f"{kind}{key}": value for key, value in resized(name, values).items()}
    if "param/decoder.embed_tokens.weight" in arrays:
        # no table is shared, so each has a gradient; until fairseq 0.9 the output's had a name of its own
        tables = [t for t in ("embed_tokens.weight", "output_projection.weight") if f"param/decoder.{t}" in arrays]
        for table in tables if len(tables) == 2 else [*tables, "embed_out"]:
            for kind in ("param/", "grad/"):
                arrays[f"{kind}decoder.{table}"] = np.random.default_rng(len(table)).normal(0, 0.2, (WORDS["dec"], DIM))
    if "in/loss_weight" in arrays:
        arrays["in/loss_weight"] = np.ones((*arrays["in/src_tokens"].shape, DIM))
    # not read beyond their names: what layers gave, for a layer that the file did not have
    for layer in ("out/enc_layer{}", "enc_layer_{}"):
        if layer.format(1) in arrays:
            arrays[layer.format(2)] = arrays[layer.format(1)]
    sizes = sidecar.get("config_values") or sidecar["hyper"]
    sizes |= {"el": ENCODER, "enc": ENCODER, "dl": DECODER, "dec": DECODER, "d": DIM, "f": FFN, "ffn": FFN}
    sizes |= {"h": HEADS, "heads": HEADS} | ({"ffn": 2 * DIM} if name.startswith("dwlstm") else {})
    path = folder / f"{name}_H.npz"
    np.savez(path, **{key: x.astype(np.float32) if x.dtype == np.float64 else x for key, x in arrays.items()})
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_other_sizes_are_understood(name: str, tmp_path: Path) -> None:
    golden, recipe = read(write_resized(name, tmp_path))
    model = rebuild(golden, recipe)
    depths = [len(getattr(model, side).layers) for side in ("encoder", "decoder") if hasattr(model, side)]
    assert depths == ([DECODER] if name.endswith("_lm") else [ENCODER] if name.endswith("_enc") else [ENCODER, DECODER])
    computed = recompute(golden, model)
    assert {key: value.shape for key, value in computed.gradients.items()} == {
        key: value.shape for key, value in golden.gradients.items()
    }
    for mode, logits in computed.logits.items():
        assert logits.shape == (*golden.logits[mode].shape[:2], WORDS["dec"])
        assert logits.isfinite().all()
