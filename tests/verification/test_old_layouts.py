"""Golden files of the older layouts become those of the layout, number for number, always with the same bytes."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import FOLDER, GOLDENS, arrays_of

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification import repack
from fairseq_residuals.verification.archive import FORMAT, Arrays, read_sidecar, write
from fairseq_residuals.verification.old_layouts import convert
from fairseq_residuals.verification.repack import read_whole

B, S, T, C, V, BEAM = 2, 5, 4, 8, 11, 2
SMOOTHED = {"loss_formula": "fairseq-0.9: (1-eps)*nll + eps/V*smooth", "cli_equivalent": "data --label-smoothing 0.2"}


def numbers(*shape: int) -> np.ndarray:
    """All different."""
    return np.random.default_rng(sum(shape) + len(shape)).normal(size=shape).astype(np.float32)


def words(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(4, V, shape)


def convert_file(stem: str, arrays: Arrays, **sidecar: Any) -> tuple[Arrays, dict[str, Any]]:
    return convert(Path(f"{stem}_H.npz"), arrays, {"config_values": {"h": 2}} | sidecar)


def assert_same(converted: Arrays, old: Arrays, names: dict[str, str]) -> None:
    """Bit for bit, each under its new name (by the old one; without an entry it stays), and there are no others."""
    assert converted.keys() >= {names.get(name, name) for name in old}
    for name, array in old.items():
        other = converted[names.get(name, name)]
        assert (other.dtype, other.shape, other.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def test_slashed() -> None:
    renamed = {
        "in/src_tokens": "in/src_tokens",
        "in/prev_output_tokens": "in/prev_output_tokens",
        "out/enc_layer0": "out/enc_layer0",
        "out/dec_embed_dual": "out/dec_embed_dual",
        "sub/enc0_self_attn": "out/enc0_self_attn",
        "train/logits": "out/logits_training",
        "loss/train_own": "loss/train",
        "loss/eval_own": "loss/eval",
        "loss/eval_ls_fairseq09": "loss/fairseq-0.9",
        "loss/eval_ls_fairseq012": "loss/fairseq-0.12",
        "loss/eval_nll": "loss/nll",
        "param/encoder.version": "param/encoder.version",
        "grad/encoder.layers.0.fc1.weight": "grad/encoder.layers.0.fc1.weight",
        "buf/src_positions": "buf/src_positions",
    }
    arrays = {name: numbers(i + 1) for i, name in enumerate(renamed)}
    converted, description = convert_file("b2t", arrays, **SMOOTHED, keys=["grad/x"], torch="1.11")
    assert_same(converted, arrays, renamed)
    assert converted.keys() == set(renamed.values())
    assert (description["loss"], description["label_smoothing"], description["pad"]) == ("fairseq-0.9", 0.2, 1)
    assert description["variant"] == "b2t"
    assert description["provenance"] == SMOOTHED | {"torch": "1.11", "config_values": {"h": 2}}


def test_generated_sentences_of_different_lengths() -> None:
    lengths = {(0, 0): 3, (0, 1): 2, (1, 0): 4}
    arrays: Arrays = {"in/src_tokens": words(B, S), "in/prev_output_tokens": words(B, T)}
    for (i, rank), n in lengths.items():
        place = f"gen/beam2/{i}/{rank}/"
        arrays |= {f"{place}tokens": words(n), f"{place}score": np.float32(-i - rank / 2 - 0.25)}
        arrays[f"{place}positional_scores"] = numbers(n)
    converted, description = convert_file("b2t", arrays, **SMOOTHED, generation={"max_len_b": 7, "min_len": 2})
    tokens, scores, positional = (converted[f"gen/beam2/{part}"] for part in ("tokens", "scores", "positional_scores"))
    assert tokens.shape == positional.shape == (2, 2, 4)
    for (i, rank), n in lengths.items():
        place = f"gen/beam2/{i}/{rank}/"
        assert tokens[i, rank].tolist() == [*arrays[f"{place}tokens"], *[1] * (4 - n)]
        assert positional[i, rank, :n].tobytes() == arrays[f"{place}positional_scores"].tobytes()
        assert scores[i, rank] == arrays[f"{place}score"]
    # there was no second hypothesis
    assert tokens[1, 1].tolist() == [1] * 4
    assert converted["gen/src_tokens"] is arrays["in/src_tokens"]
    assert description["generation"] == {"max_len": 7, "min_len": 2, "lenpen": 1.0}


def test_flat() -> None:
    renamed = {
        "src_tokens": "in/src_tokens",
        "prev_output_tokens": "in/prev_output_tokens",
        "enc_layer_10_in": "out/enc_layer10_in",
        "dec_layer_1": "out/dec_layer1",
        "dec_layer_0_cell": "out/dec_layer0_cell",
        "dec_layer_0_crossscores": "out/dec_layer0_cross_scores",
        "enc_layer_1_selfscores": "out/enc_layer1_self_scores",
        "encoder_out": "out/encoder_out",
        "logits": "out/logits",
        "logits_incremental": "out/logits_incremental",
        "loss": "loss/train",
        "nll_loss": "loss/nll",
        "param/dec.cls.bias": "param/dec.cls.bias",
        "gen/src_tokens": "gen/src_tokens",
    }
    arrays = {name: numbers(i + 1) for i, name in enumerate(renamed)}
    generated = {"gen/tokens": words(B, BEAM, T), "gen/scores": numbers(B, BEAM)}
    generated["gen/positional_scores"] = numbers(B, BEAM, T)
    labels = {name: name.replace("gen/", "gen/beam2/") for name in generated}
    converted, description = convert_file("dlcl_pre", arrays | generated, argv=["--label-smoothing", "0.3"])
    assert_same(converted, arrays | generated, renamed | labels)
    assert converted.keys() == {*renamed.values(), *labels.values()}
    assert (description["loss"], description["label_smoothing"], description["pad"]) == ("fairseq-0.9", 0.3, 1)


def test_host() -> None:
    renamed = {
        "in/ids": "in/prev_output_tokens",
        "in/target": "in/target",
        "out/embed": "out/dec_embed",
        "out/layer1": "out/dec_layer1",
        "out/layer0.0": "out/dec_layer0",
        "out/layer0.1": "out/dec_layer0_y",
        "out/final_norm": "out/decoder_features",
        "out/logits": "out/logits",
        "out/loss": "loss/train",
        "sub/in3": "out/dec_sublayer3_in",
        "init/layers.0.gain": "init/layers.0.gain",
        "more": "more",
    }
    arrays = {name: numbers(i + 1) for i, name in enumerate(renamed)}
    converted, description = convert_file("lns", arrays, name="lns", streams=3)
    assert_same(converted, arrays, renamed)
    assert converted.keys() == set(renamed.values())
    assert (description["loss"], description["pad"]) == ("nll", None)
    assert description["provenance"]["streams"] == 3


def test_host_of_vectors() -> None:
    arrays = {
        name: numbers(B, S, C) for name in ("in/x", "in/loss_weight", "out/layer0.x", "out/layer0.y", "out/final_norm")
    }
    converted, description = convert_file("siamesenorm_deit", arrays, name="siamesenorm_deit")
    names = ("in/src_vectors", "in/loss_weight", "out/enc_layer0", "out/enc_layer0_y", "out/encoder_out")
    assert_same(converted, arrays, dict(zip(arrays, names, strict=True)))
    assert (description["loss"], description["pad"]) == ("weighted", None)


def test_axes_in_another_order() -> None:
    """Time first, and streams as a part of the batch (the stream being what changes first)."""
    arrays = {"in/ids": words(B, T), "out/embed": numbers(B, T, C), "out/layer0": numbers(T, B, C)}
    converted, _ = convert_file("rezero", arrays, name="rezero")
    assert np.array_equal(converted["out/dec_layer0"], np.moveaxis(arrays["out/layer0"], 0, 1))
    assert converted["out/dec_embed"] is arrays["out/embed"]
    n = 3
    arrays["out/layer0"] = numbers(B * n, T, C)
    converted, _ = convert_file("hc_lucidrains", arrays, name="hc_lucidrains", streams=n)
    for b in range(B):
        for stream in range(n):
            assert np.array_equal(converted["out/dec_layer0"][b, :, stream], arrays["out/layer0"][b * n + stream])


@pytest.mark.parametrize(
    ("arrays", "sidecar", "message"),
    [
        ({"x": numbers(1)}, {}, "has no layout of golden files"),
        ({"in/ids": words(1, 1)}, {"config_values": {}}, "must say in config_values.h, hyper.heads or config.heads"),
        ({"in/src_tokens": words(1, 1)}, {"loss_formula": "mine"}, "loss_formula must start with"),
        (
            {"in/src_tokens": words(1, 1), "gen/greedy/0/0/tokens": words(2)},
            SMOOTHED,
            "lacks gen/greedy/0/0/score",
        ),
        (
            {
                "in/src_tokens": words(1, 1),
                "gen/greedy/0/0/tokens": words(2),
                "gen/greedy/0/0/score": numbers(1),
                "gen/greedy/0/0/positional_scores": numbers(3),
            },
            SMOOTHED,
            "gen/greedy/0/0/tokens and the scores beside it do not belong together",
        ),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(arrays: Arrays, sidecar: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        convert_file("b2t", arrays, **sidecar)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_every_golden_is_in_the_layout(path: Path) -> None:
    """Reading checks the SHA-256 of every array."""
    sidecar = read_sidecar(path)
    assert sidecar["format"] == FORMAT
    assert sidecar["arrays"].keys() == arrays_of(path).keys()
    assert {"variant", "sizes", "provenance"} <= sidecar.keys()


def old_file(folder: Path) -> Path:
    """A golden file in the older layout, of which the parameters are in a file of their own, and statistics."""
    folder.mkdir()
    arrays = {"src_tokens": words(B, S), "prev_output_tokens": words(B, T), "loss": numbers(1)}
    sidecar = {"hyper": {"heads": 2}, "variant": "x", "param_files": ["x_params0.npz"]}
    path = folder / "x_S.npz"
    np.savez(path, **arrays)
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    np.savez(folder / "x_params0.npz", **{"param/w": numbers(3)})
    figures = {"w": {"shape": [3], "mean": 0.1, "std": [0.25], "absmax": 1e-9}}
    (folder / "x_init.json").write_text(json.dumps({"variant": "x", "seeds": [1], "stats": figures}))
    return path


def test_repacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = old_file(tmp_path / "old")
    for folder in ("once", "again"):
        assert repack.main([str(path.parent), str(tmp_path / folder)]) == 0
        assert capsys.readouterr().out == f"2 golden files in {tmp_path / folder}\n"
    assert repack.main([str(tmp_path / "once"), str(tmp_path / "repacked")]) == 0
    written = {file.name: file.read_bytes() for file in (tmp_path / "once").iterdir()}
    assert written.keys() == {"x_S.npz", "x_S.json", "x_init.json"}
    for folder in ("again", "repacked"):
        assert {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()} == written

    arrays, description = read_whole(tmp_path / "once" / "x_S.npz")
    assert_same(arrays, {"param/w": numbers(3), "in/src_tokens": words(B, S), "loss/train": numbers(1)}, {})
    with zipfile.ZipFile(tmp_path / "once" / "x_S.npz") as file:
        digest = hashlib.sha256(file.read("param/w.npy")).hexdigest()
    assert description["arrays"]["param/w"] == digest
    statistics = json.loads(written["x_init.json"])
    assert statistics["initialization"] == {"w": {"shape": [3], "mean": 0.1, "std": [0.25], "absmax": 1e-9}}
    assert statistics["seeds"] == [1]


def test_repacking_does_not_write_two_files_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old_file(tmp_path / "a")
    (tmp_path / "a" / "b").mkdir()
    (tmp_path / "a" / "b" / "x_S.json").write_text("{}")
    assert repack.main([str(tmp_path / "a"), str(tmp_path / "out")]) == 1
    assert "there are two files x_S.json in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert repack.main([str(tmp_path / "none.npz"), str(tmp_path / "out")]) == 1
    assert f"there is no {tmp_path / 'none.json'}" in capsys.readouterr().err


def test_the_order_of_arrays_and_axes_changes_no_byte(tmp_path: Path) -> None:
    arrays = {"b": numbers(3, 4), "a": numbers(2)}
    other = {"a": arrays["a"].astype(">f4"), "b": np.asfortranarray(arrays["b"])}
    for name, content in (("one", arrays), ("two", other)):
        write(tmp_path / f"{name}.npz", content, {"variant": "x"})
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_statistics_of_initialisations_are_in_the_layout() -> None:
    files = sorted(FOLDER.glob("*_init.json"))
    assert files
    for file in files:
        description = json.loads(file.read_text())
        assert description["format"] == FORMAT, file
        assert all(
            {"shape", "mean", "std", "absmax"} <= figures.keys() for figures in description["initialization"].values()
        )
