"""The commands ``export --to hf`` and ``import --from hf``: what comes back, and what is refused."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from refusals import refusal
from torch import nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.plugin.checkpoints.exporting import to_graphs

pytest.importorskip("safetensors", reason="the extra hf is not installed")


def write(folder: Path, task: str, variant: str, *flags: str) -> tuple[nn.Module, Path]:
    """Write a checkpoint, as fairseq-train does but for the optimizer; returns its model too."""
    dimensions = tiny.dimensions(task)
    args = tiny.settings(f"{tiny.PREFIX[task]}_{variant}", *dimensions, *flags)
    args.task, args.source_lang, args.target_lang = tiny.FAIRSEQ_TASKS[task], "de", "en"
    model = tiny.perturb(tiny.build(task, variant, *flags))
    torch.save({"model": model.state_dict(), "args": args}, folder / "model.pt")
    return model, folder / "model.pt"


def dictionaries(folder: Path) -> Path:
    (folder / "data").mkdir()
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        tiny.make_dictionary().save(str(folder / "data" / name))
    return folder / "data"


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """The sentence with which a command is refused that must write nothing."""
    before = sorted(folder.rglob("*"))
    said = refusal(capsys, *arguments)
    assert sorted(folder.rglob("*")) == before
    return said


@pytest.mark.parametrize(
    ("task", "variant"),
    [("translation", "pre_ln"), ("translation", "b2t"), ("language_modeling", "b2t"), ("translation", "mhc_lite")],
)
@pytest.mark.parametrize("shared", (True, False))
def test_import_after_export_is_the_identity(task: str, variant: str, shared: bool, tmp_path: Path) -> None:
    flag = "--share-all-embeddings" if task == "translation" else "--share-decoder-input-output-embed"
    model, path = write(tmp_path, task, variant, *([flag] if shared else []))
    assert main(["export", "--to", "hf", str(path), str(tmp_path / "hf")]) == 0
    assert main(["import", "--from", "hf", str(tmp_path / "hf"), str(tmp_path / "again.pt")]) == 0
    again = read_checkpoint(tmp_path / "again.pt")
    expected = {k: v for k, v in model.state_dict().items() if "_float_tensor" not in k and not k.endswith("version")}
    torch.testing.assert_close({name: again["model"][name] for name in expected}, expected, rtol=0, atol=0)
    rebuilt = tiny.build_model(again["args"], tiny.make_task()).eval()
    rebuilt.load_state_dict(again["model"])
    inputs = tiny.batch(task)
    with torch.no_grad():
        assert torch.equal(tiny.logits(rebuilt, task, inputs), tiny.logits(model, task, inputs))


def test_settings_of_the_model_come_back(tmp_path: Path) -> None:
    flags = ("--encoder-learned-pos", "--layernorm-embedding", "--no-scale-embedding", "--decoder-residual", "mhc")
    dropouts = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    flags += tuple(f"--{key.replace('_', '-')}={value}" for key, value in dropouts.items())
    _, path = write(tmp_path, "translation", "b2t", *flags)
    assert main(["export", "--to", "hf", str(path), str(tmp_path / "hf")]) == 0
    stacks = json.loads((tmp_path / "hf" / "config.json").read_text())["model_settings"]
    # who trains on in transformers does so with them
    assert all(stacks[side].items() >= dropouts.items() for side in ("encoder", "decoder"))
    assert main(["import", "--from", "hf", str(tmp_path / "hf"), str(tmp_path / "again.safetensors")]) == 0
    before, after = (vars(read_checkpoint(p)["args"]) for p in (path, tmp_path / "again.safetensors"))
    for key in ("residual", "residual_args", "decoder_residual", "decoder_residual_args", "encoder_learned_pos"):
        assert after[key] == before[key]
    assert {key: after[key] for key in dropouts} == dropouts
    assert after["layernorm_embedding"] and after["no_scale_embedding"] and not after.get("decoder_learned_pos")


REFUSED = [
    ("speech", "b2t", (), "its input is speech"),
    ("language_modeling", "b2t", ("--adaptive-softmax-cutoff", "10,20"), "an adaptive softmax"),
    ("translation", "b2t", ("--no-cross-attention",), "a decoder without cross-attention"),
]


def test_texts_that_begin_otherwise_than_the_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that learned with --add-bos-token would continue other texts than it learned."""
    _, path = write(tmp_path, "language_modeling", "b2t")
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["args"].add_bos_token = True
    torch.save(checkpoint, path)
    for kind in ("hf", "onnx"):
        assert "(--add-bos-token)" in refused(capsys, tmp_path, "export", "--to", kind, path, tmp_path / "out")


@pytest.mark.parametrize(("task", "variant", "flags", "message"), REFUSED, ids=[case[3] for case in REFUSED])
def test_what_a_format_cannot_hold(
    task: str,
    variant: str,
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, path = write(tmp_path, task, variant, *flags)
    for kind in ("hf", "onnx"):
        assert message in refused(capsys, tmp_path, "export", "--to", kind, path, tmp_path / "out")


def test_missing_files_of_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = write(tmp_path, "translation", "b2t")
    data, out = dictionaries(tmp_path), tmp_path / "out"
    export = ("export", "--to", "hf", path, out)
    assert "there is no file missing.codes" in refused(
        capsys, tmp_path, *export, "--data", data, "--codes", "missing.codes"
    )
    (data / "spm.model").write_text("no model\n")
    assert "spm.model is no model of SentencePiece" in refused(
        capsys, tmp_path, *export, "--data", data, "--sentencepiece", data / "spm.model"
    )
    assert "need --data" in refused(capsys, tmp_path, *export, "--codes", path)
    (data / "codes").write_text("not codes\n")
    assert "#version: 0.2" in refused(capsys, tmp_path, *export, "--data", data, "--codes", data / "codes")
    (data / "dict.en.txt").write_text("a 1\nb 1\n")
    assert "has 6 words and the model 40" in refused(capsys, tmp_path, *export, "--data", data)
    (data / "dict.en.txt").unlink()
    assert "dict.en.txt, the model's dictionary" in refused(capsys, tmp_path, *export, "--data", data)


@pytest.mark.parametrize(
    ("piece", "line"),
    [
        ("lo@@", "such as lo@@: without --codes, text is split at spaces alone"),
        ("\u2581lo", "such as \u2581lo: without --sentencepiece, text is split at spaces alone"),
        ("low", ""),
    ],
)
def test_pieces_that_nothing_makes(piece: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = write(tmp_path, "translation", "b2t")
    data = dictionaries(tmp_path)
    file = data / "dict.de.txt"
    _, *others = file.read_text().splitlines()
    file.write_text("\n".join([f"{piece} 1", *others]) + "\n")
    assert main(["export", "--to", "hf", "--data", str(data), str(path), str(tmp_path / "hf")]) == 0
    printed = capsys.readouterr().out
    assert line in printed and ("is split at" in printed) == bool(line)


def test_flags_of_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = write(tmp_path, "translation", "b2t")
    out = tmp_path / "out"
    assert "are for --to hf" in refused(capsys, tmp_path, "export", "--to", "onnx", "--data", tmp_path, path, out)
    out.mkdir()
    assert "is there already" in refused(capsys, tmp_path, "export", "--to", "hf", path, out)
    assert "there is no folder" in refused(capsys, tmp_path, "export", "--to", "hf", path, tmp_path / "no" / "out")
    assert "is for --to fairseq" in refused(capsys, tmp_path, "export", "--to", "hf", "--overwrite", path, out)


def test_a_file_is_replaced_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, ours = write(tmp_path, "translation", "post_ln")
    stock, best = tmp_path / "stock.pt", tmp_path / "best.pt"
    assert main(["export", "--to", "fairseq", str(ours), str(stock)]) == 0
    for command, file in (("export --to fairseq", ours), ("import --from fairseq", stock)):
        best.write_text("a training of weeks")
        assert "already; --overwrite replaces it" in refused(capsys, tmp_path, *command.split(), file, best)
        assert best.read_text() == "a training of weeks"
        assert main([*command.split(), "--overwrite", str(file), str(best)]) == 0
        assert read_checkpoint(best)["model"]


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_folders_that_are_not_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = write(tmp_path, "translation", "b2t")
    folder = tmp_path / "hf"
    assert main(["export", "--to", "hf", str(path), str(folder)]) == 0
    config = folder / "config.json"
    original, settings = config.read_text(), json.loads(config.read_text())["model_settings"]
    run = ("import", "--from", "hf", folder, tmp_path / "again.pt")
    for changes, message in (
        ({"model_settings": settings | {"version": 2}}, "of version 2, and this program reads version 1"),
        ({"model_settings": settings | {"output_dim": -1}}, "output_dim"),
        ({"model_settings": settings | {"decoder": settings["decoder"] | {"layers": "2"}}}, "layers of decoder"),
        ({"model_settings": settings | {"decoder": settings["decoder"] | {"residual": "x"}}}, "unknown wiring 'x'"),
        *(
            ({"model_settings": settings | {"decoder": settings["decoder"] | other}}, "cannot be imported: its logits")
            for other in ({"embed_scale": 1.0}, {"positions": "none"}, {"activation": "gelu"})
        ),
        ({"model_settings": settings | {"encoder": settings["encoder"] | {"layers": 2**30}}}, "has other sizes than"),
        ({"model_settings": None}, "of version None"),
        ({"model_type": "granite"}, "type 'granite'; what can be imported is fairseq_residuals"),
        ({"model_type": ["x"]}, "what can be imported is fairseq_residuals"),
    ):
        config.write_text(original)
        change(config, **changes)
        capsys.readouterr()
        assert message in refused(capsys, tmp_path, *run), changes
    config.write_text("[" * 100_000)
    assert "is not valid JSON" in refused(capsys, tmp_path, *run)
    config.write_text(original)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "there is pytorch_model.bin" in refused(capsys, tmp_path, *run)
    config.unlink()
    assert "there is no config.json" in refused(capsys, tmp_path, *run)


def test_a_folder_is_data(tmp_path: Path) -> None:
    """Its modelling file is not run, though transformers would."""
    _, path = write(tmp_path, "translation", "b2t")
    assert main(["export", "--to", "hf", str(path), str(tmp_path / "hf")]) == 0
    file = tmp_path / "hf" / "modeling_fairseq_residuals.py"
    file.write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    assert main(["import", "--from", "hf", str(tmp_path / "hf"), str(tmp_path / "again.pt")]) == 0
    assert not (tmp_path / "was_run").exists()


def test_a_failed_export_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = write(tmp_path, "translation", "b2t")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairseq_residuals.plugin.checkpoints.exporting.to_hf.write_tensors", full)
    assert "No space left" in refused(capsys, tmp_path, "export", "--to", "hf", path, tmp_path / "out")


def test_wrong_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    _, path = write(tmp_path, "language_modeling", "b2t")  # one graph, where a pair has two
    assert main(["export", "--to", "onnx", str(path), str(tmp_path / "onnx")]) == 0
    assert "of the graphs under onnxruntime" in capsys.readouterr().out
    trace = to_graphs.trace_graphs
    monkeypatch.setattr(to_graphs, "trace_graphs", lambda model: trace(tiny.perturb(model)))
    assert "under onnxruntime its logits" in refused(capsys, tmp_path, "export", "--to", "onnx", path, tmp_path / "out")


def test_half_a_checkpoint_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {}, "args": Namespace(arch="transformer_b2t", task="translation")}, tmp_path / "model.pt")
    message = refused(capsys, tmp_path, "export", "--to", "hf", tmp_path / "model.pt", tmp_path / "out")
    assert "its decoder has no embedding of words" in message
