"""Golden files of the older layouts, converted: no number changes, only names, and padding of generated sentences.

``slashed``     ``in/src_tokens out/enc_layer0 sub/enc0_ffn train/logits loss/train_own gen/beam4/0/1/tokens``
``flat``        ``src_tokens enc_layer_0 enc_layer_0_in logits loss nll_loss gen/tokens``
``host``        models that are not fairseq's: ``in/ids out/embed out/layer0 out/final_norm out/loss sub/in0``

All have ``param/* grad/* init/*``, which stay. ``tests/golden/README.md`` describes the layout that they become.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification.archive import Arrays

Sidecar = dict[str, Any]
Renames = tuple[tuple[str, str], ...]

SLASHED: Renames = (
    (r"sub/(.*)", r"out/\1"),
    (r"train/logits", "out/logits_training"),
    (r"loss/train_own", "loss/train"),
    (r"loss/eval_own", "loss/eval"),
    (r"loss/eval_ls_fairseq09", "loss/fairseq-0.9"),
    (r"loss/eval_ls_fairseq012", "loss/fairseq-0.12"),
    (r"loss/eval_nll", "loss/nll"),
    (r"in/gen_prefix", "gen/prefix"),
)
FLAT: Renames = (
    (r"(src_tokens|src_lengths|tgt_lengths|prev_output_tokens|target)", r"in/\1"),
    (r"(enc|dec)_layer_(\d+)(_in|_cell)?", r"out/\1_layer\2\3"),
    (r"(enc|dec)_layer_(\d+)_(self|cross)scores", r"out/\1_layer\2_\3_scores"),
    (r"(encoder_out|logits|logits_incremental)", r"out/\1"),
    (r"loss", "loss/train"),
    (r"nll_loss", "loss/nll"),
    (r"init_loss", "loss/at_initialization"),
    # Google's encoder
    (r"enc_layer_(\d+)_scores", r"out/enc_layer\1_self_scores"),
    (r"input", "in/src_vectors"),
    (r"mask", "in/src_mask"),
    (r"loss_proj", "in/loss_weight"),
    (r"grad_input", "grad_in/src_vectors"),
)
HOST: Renames = (
    (r"in/ids", "in/prev_output_tokens"),
    (r"in/(?:x|src)", "in/src_vectors"),
    (r"in/tgt", "in/tgt_vectors"),
    (r"in/src_key_padding_mask", "in/src_padding"),
    (r"out/embed", "out/dec_embed"),
    (r"out/loss", "loss/train"),
    (r"out/logits", "out/logits"),
)
_HOST_LANGUAGE_MODEL = (
    (r"out/layer(\d+)(.*)", r"out/dec_layer\1\2"),
    (r"out/final_norm", "out/decoder_features"),
    (r"sub/in(\d+)", r"out/dec_sublayer\1_in"),
)
_HOST_PAIR = ((r"in/src", "in/src_tokens"), (r"in/tgt_in", "in/prev_output_tokens"))
_WITHOUT_TEARS = (
    (r"in/src", "in/src_tokens"),
    (r"in/tgt_in", "in/prev_output_tokens"),
    (r"out/loss", "loss/train"),
    (r"out/positions", "buf/positions"),
    (r"out/decoder_out", "out/decoder_features"),
    (r"out/(enc|dec)_norm(\d+)_in", r"out/\1_sublayer\2_in"),
    (r"out/(enc|dec)_norm(\d+)", r"out/\1_sublayer\2_norm"),
)
_EVALUATED = ((r"out/loss", "loss/train"), (r"out/(src|tgt)_positions", r"buf/\1_positions"))
_HOST_ENCODER = ((r"out/layer(\d+)(.*)", r"out/enc_layer\1\2"), (r"out/final_norm", "out/encoder_out"))
_TWO_STREAMS = (
    (r"(.*_layer\d+)\.(?:[x0]|lane0)", r"\1"),
    (r"(.*_layer\d+)\.[y1]", r"\1_y"),
    (r"(.*_layer\d+)\.lane1", r"\1_b"),
)

_SIZES = {
    "encoder_layers": ("el", "enc", "layers"),
    "decoder_layers": ("dl", "dec"),
    "dim": ("d",),
    "ffn_dim": ("ffn", "f"),
    "heads": ("h", "heads"),
    "source_words": ("vs",),
    "target_words": ("vt", "V"),
}
"""What the sections of the sidecars call them."""
_SECTIONS = ("config_values", "hyper", "config")
_OF_THE_LAYOUT = {
    *("layout", "layout2", "keys", "keys_note", "param_list", "state_dict_only", "files", "gradients"),
    "independent_check",
}
"""Entries of sidecars that describe the old file and not what it was made with."""


def variant_name(path: Path, sidecar: Sidecar) -> str:
    """Name the variant: the first word in the sidecar, else that in the file's name (``b2t_S``: b2t)."""
    of_file = re.sub(r"_(init|[A-Z][a-z]?\d*(_initweights)?)$", "", path.stem)
    return str(sidecar.get("variant") or sidecar.get("name") or of_file).partition(" ")[0]


def convert(path: Path, arrays: Arrays, sidecar: Sidecar) -> tuple[Arrays, Sidecar]:
    """Convert the arrays and the sidecar of the file ``path``.

    Raises:
        UserError: it has none of the layouts, or its sidecar lacks what its layout has.
    """
    json, variant = path.with_suffix(".json"), variant_name(path, sidecar)
    description: Sidecar
    if {"in/src_tokens", "out/loss"} <= arrays.keys():
        description, converted = {"pad": 1, "loss": "nll"}, _renamed(arrays, _EVALUATED)
        converted["in/src_lengths"] = (converted["in/src_tokens"] != 1).sum(1)
    elif "in/src_tokens" in arrays or "in/prev_output_tokens" in arrays:
        description = {"pad": 1, "loss": "weighted"}
        if "in/loss_weight" not in arrays:
            epsilon = _label_smoothing(str(sidecar.get("cli_equivalent", "")))
            description = {"pad": 1, "loss": _formula(json, sidecar), "label_smoothing": epsilon}
        converted = _generated_lists(path, _renamed(arrays, SLASHED))
        if "in/src_tokens" in arrays and "gen/src_tokens" not in converted and _generations(converted):
            converted["gen/src_tokens"] = arrays["in/src_tokens"]
    elif "prev_output_tokens" in arrays:
        epsilon = _label_smoothing(" ".join(map(str, sidecar.get("argv", []))))
        # Neutron starts sentences with word 1 and pads with word 0
        pad = 0 if any(name.startswith("param/enc.wemb.") for name in arrays) else 1
        description = {"pad": pad, "loss": "fairseq-0.9", "label_smoothing": epsilon}
        converted = _generated_arrays(_renamed(arrays, FLAT))
    elif "in/tgt_in" in arrays and "in/src_mask" not in arrays:
        description, converted = {"pad": 0, "loss": "nll"}, _without_tears(arrays, sidecar)
    elif any(name.startswith("in/") for name in arrays):
        # but for a pair's padding, every word is a word like any other
        description = {
            "pad": 0 if "in/src_mask" in arrays else None,
            "loss": "nll" if "in/target" in arrays else "weighted",
        }
        converted = _host(variant, arrays, sidecar)
    elif "input" in arrays or any(name.startswith("init/") for name in arrays):
        description, converted = {"pad": None, "loss": "weighted"}, _renamed(arrays, FLAT)
    else:
        raise UserError(f"{path} has no layout of golden files: it holds nothing that a model was given")
    description |= described(variant, sidecar, arrays)
    if "heads" not in description["sizes"]:
        raise UserError(f"{json} must say in config_values.h, hyper.heads or config.heads how many heads there are")
    settings = sidecar.get("generation")
    settings = settings if isinstance(settings, dict) else {}
    if _generations(converted):
        description["generation"] = {
            "max_len": settings.get("max_len_b", 20),
            "min_len": settings.get("min_len", 1),
            "lenpen": settings.get("lenpen", 1.0),
        }
    return converted, description


def convert_statistics(path: Path, sidecar: Sidecar) -> Sidecar:
    """Convert a file X_init.json: statistics of parameters of freshly initialised models.

    Raises:
        UserError: it has none.
    """
    if not isinstance(sidecar.get("stats"), dict):
        raise UserError(f"{path} has no layout of golden files: it has neither an X.npz beside it nor stats")
    rest = {key: value for key, value in sidecar.items() if key not in ("stats", "seeds")}
    figures = {"seeds": sidecar.get("seeds"), "initialization": sidecar["stats"]}
    return described(variant_name(path, sidecar), rest, {}) | figures


def described(variant: str, sidecar: Sidecar, arrays: Arrays) -> Sidecar:
    """Return the variant, the sizes, and as ``provenance`` what the sidecar says of how the file was made."""
    section: Sidecar = next((sidecar[key] for key in _SECTIONS if isinstance(sidecar.get(key), dict)), {})
    absent = {
        "encoder_layers": any(f"{name}prev_output_tokens" in arrays for name in ("in/", ""))
        and not any(f"{name}src_tokens" in arrays for name in ("in/", "")),
        "decoder_layers": "in/loss_weight" in arrays and "in/tgt" not in arrays,
        # hosts may have another than their sidecar's f: the parameters tell
        "ffn_dim": "L" in section,
    }
    sizes = {
        name: next(section[key] for key in keys if key in section)
        for name, keys in _SIZES.items()
        if not absent.get(name) and any(key in section for key in keys)
    }
    provenance = {key: value for key, value in sidecar.items() if key not in _OF_THE_LAYOUT | {"variant", "name"}}
    return {"variant": variant, "sizes": sizes, "provenance": provenance}


def _renamed(arrays: Arrays, renames: Renames) -> Arrays:
    def rename(name: str) -> str:
        return next((re.sub(pattern, new, name) for pattern, new in renames if re.fullmatch(pattern, name)), name)

    return {rename(name): array for name, array in arrays.items()}


def _host(variant: str, arrays: Arrays, sidecar: Sidecar) -> Arrays:
    side = _HOST_ENCODER if "in/x" in arrays else _HOST_LANGUAGE_MODEL
    if "in/tgt_in" in arrays:
        arrays = _renamed(arrays, _HOST_PAIR) | {"in/src_lengths": arrays["in/src_mask"].sum(-1)}
    renamed = _renamed(_renamed(_renamed(arrays, _OTHER_NAMES.get(variant, ())), (*HOST, *side)), _TWO_STREAMS)
    change = _OTHER_AXES.get(variant)
    return renamed if change is None else {name: change(name, array, sidecar) for name, array in renamed.items()}


def _without_tears(arrays: Arrays, sidecar: Sidecar) -> Arrays:
    """Of norms that are numbered, the last is that on top in Pre-LN."""
    renamed = _renamed(arrays, _WITHOUT_TEARS)
    for side in ("enc", "dec") if sidecar.get("pre_act") else ():
        last = sum(bool(re.fullmatch(rf"out/{side}_sublayer\d+_norm", name)) for name in renamed) - 1
        renamed = _renamed(renamed, ((rf"out/{side}_sublayer{last}_(in|norm)", rf"out/{side}_top_\1"),))
    return renamed | {"in/src_lengths": (renamed["in/src_tokens"] != 0).sum(1)}


def _time_first(name: str, array: np.ndarray, sidecar: Sidecar) -> np.ndarray:
    """(T, B, C) -> (B, T, C)"""
    vectors = re.fullmatch(r"in/(src_vectors|tgt_vectors|loss_weight)|out/\w+_layer\d+", name)
    return array.swapaxes(0, 1) if vectors and array.ndim == 3 else array


def _streams_in_the_batch(name: str, array: np.ndarray, sidecar: Sidecar) -> np.ndarray:
    """(B n, T, C) -> (B, T, n, C)"""
    n, of_streams = sidecar.get("streams"), re.fullmatch(r"out/\w+_(layer\d+|top_norm)", name)
    if not of_streams or array.ndim != 3 or not isinstance(n, int) or len(array) % n:
        return array
    return array.reshape(-1, n, *array.shape[1:]).swapaxes(1, 2)


def _streams_first(name: str, array: np.ndarray, sidecar: Sidecar) -> np.ndarray:
    """(n, B, T, C) -> (B, T, n, C)"""
    of_streams = re.fullmatch(r"out/\w+_layer\d+", name) and array.ndim == 4
    return np.moveaxis(array, 0, 2) if of_streams else array


_OTHER_AXES: dict[str, Callable[[str, np.ndarray, Sidecar], np.ndarray]] = {
    "rezero": _time_first,
    "rezero_encdec": _time_first,
    "hc_lucidrains": _streams_in_the_batch,
    "laurel_altup_gemma3n": _streams_first,
    "mhc_lite": _streams_in_the_batch,
    "mhc_by_mhclite_authors": _streams_in_the_batch,
}
"""By design: how its axes come into the order of the others."""


_EACH_STREAM = ((r"out/final_norm", "out/dec_top_norm"),)
_OTHER_NAMES: dict[str, Renames] = {"mhc_lite": _EACH_STREAM, "mhc_by_mhclite_authors": _EACH_STREAM}
"""By design: what its file calls otherwise than the other hosts' do."""


def _generations(arrays: Arrays) -> set[str]:
    """Name what was generated in several ways: ``beam4``, ``greedy``."""
    return {m[1] for m in map(re.compile(r"gen/(\w+)/tokens").fullmatch, arrays) if m}


def _generated_lists(path: Path, arrays: Arrays) -> Arrays:
    """Return one array for all hypotheses of all sentences (B, beam, T) instead of one for each."""
    kept = {name: array for name, array in arrays.items() if not re.match(r"gen/\w+/\d+/", name)}
    keys = [m for m in map(re.compile(r"gen/(\w+)/(\d+)/(\d+)/tokens").fullmatch, arrays) if m]
    for label in sorted({m[1] for m in keys}):
        places = {(int(m[2]), int(m[3])): m[0].removesuffix("tokens") for m in keys if m[1] == label}
        sentences, beam = (1 + max(place[axis] for place in places) for axis in (0, 1))
        longest = max(arrays[f"{name}tokens"].size for name in places.values())
        tokens = np.full((sentences, beam, longest), 1, np.int64)
        scores = np.zeros((sentences, beam), np.float32)
        positional = np.zeros((sentences, beam, longest), np.float32)
        for place, name in places.items():
            lacking = [f"{name}{part}" for part in ("score", "positional_scores") if f"{name}{part}" not in arrays]
            if lacking:
                raise UserError(f"{path} lacks {lacking[0]}, which golden files of its kind have")
            words, score, by_position = (arrays[f"{name}{part}"] for part in ("tokens", "score", "positional_scores"))
            if words.ndim != 1 or words.shape != by_position.shape or score.size != 1:
                raise UserError(f"{path}: {name}tokens and the scores beside it do not belong together by their shapes")
            tokens[place][: len(words)], positional[place][: len(words)] = words, by_position
            scores[place] = score
        for part, array in (("tokens", tokens), ("scores", scores), ("positional_scores", positional)):
            kept[f"gen/{label}/{part}"] = array
    return kept


def _generated_arrays(arrays: Arrays) -> Arrays:
    """Name the arrays by how sentences were generated."""
    tokens = arrays.get("gen/tokens")
    if tokens is None or tokens.ndim != 3:
        return arrays
    label = f"beam{tokens.shape[1]}"
    return _renamed(arrays, ((r"gen/(tokens|scores|positional_scores)", rf"gen/{label}/\1"),))


def _formula(json: Path, sidecar: Sidecar) -> str:
    formula = str(sidecar.get("loss_formula", "")).partition(":")[0]
    if formula not in ("fairseq-0.9", "fairseq-0.12"):
        raise UserError(f"{json}: loss_formula must start with fairseq-0.9: or fairseq-0.12:")
    return formula


def _label_smoothing(command: str) -> float:
    """Read it from a command line; the harness that made the files used 0.1 where the command line does not tell."""
    value = re.search(r"--label-smoothing[ =](\d+(?:\.\d+)?)", command)
    return float(value[1]) if value else 0.1
