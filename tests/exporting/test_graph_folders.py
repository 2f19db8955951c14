"""Folders of graphs that are not loaded: one sentence says what is wrong with each."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.models import SETTINGS_FILE, write_settings
from fairseq_residuals.wirings.blocks.settings import EOS, ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.export.graphs import Graphs, load_onnx, load_torch_export

LOADERS = {"onnx": load_onnx, "torch_export": load_torch_export}
SUFFIX = {"onnx": "onnx", "torch_export": "pt2"}


def settings() -> ModelSettings:
    """Those of a language model."""
    decoder = StackSettings(
        residual="b2t",
        residual_args=Wiring.parse("b2t").args,
        words=40,
        layers=2,
        dim=16,
        heads=2,
        ffn_dim=32,
        activation="relu",
        positions="sinusoidal",
        max_positions=64,
        embed_scale=4.0,
        input_dim=16,
        norm_embedding=False,
    )
    return ModelSettings(None, decoder, 16, share_input_output=True, share_all=False)


@pytest.mark.parametrize("kind", LOADERS)
def test_folders_that_are_not_loaded(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

    def refused(because: str) -> None:
        with pytest.raises(UserError, match=because):
            LOADERS[kind](tmp_path)

    def rewrite(**changes: Any) -> None:
        write_settings(settings(), kind, tmp_path)
        content = json.loads((tmp_path / SETTINGS_FILE).read_text())
        (tmp_path / SETTINGS_FILE).write_text(json.dumps(content | changes))

    refused("holds no exported model: .* cannot be read")
    (tmp_path / SETTINGS_FILE).write_text("[")
    refused("holds no exported model: .* cannot be read")
    rewrite(format="hf")
    refused(f"was not written by export --to {kind}")
    rewrite(model=replace(settings(), version=2).to_json())
    refused("of version 2, and this program reads version 1; export the checkpoint again")
    rewrite(model=settings().to_json() | {"decoder": None})
    refused("decoder must be an object")
    rewrite()
    refused(rf"there is no decoder\.{SUFFIX[kind]} in ")
    (tmp_path / f"decoder.{SUFFIX[kind]}").write_bytes(b"half a file")
    refused({"onnx": r"cannot load .*decoder\.onnx", "torch_export": r"decoder\.pt2 is damaged"}[kind])


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("pair", {"source": [[5, 2]]}, r"source must be the numbers of one sentence's tokens in a row, not \(1, 2\)"),
        ("pair", {"source": [5.0, 2.0]}, "source must be the numbers"),
        ("pair", {"source": []}, "source must be the numbers"),
        ("pair", {"source": [40, 2]}, "source has tokens 2 to 40, and the model 40 words"),
        ("pair", {"source": [-1, 2]}, "source has tokens -1 to 2"),
        ("pair", {"source": [5] * 65}, "source has 65 tokens, and the model reads at most 64"),
        ("pair", {}, "a model of translation needs a source"),
        ("alone", {"source": [5, 2]}, "a model of translation needs a source, and a language model has none"),
        ("alone", {"prompt": [2, 40]}, "prompt has tokens 2 to 40"),
        ("alone", {"beam": 0}, "beam must be at least 1 and longest at least 0, not 0 and 200"),
    ],
)
def test_what_cannot_be_searched(task: str, arguments: dict[str, Any], message: str) -> None:
    def unreachable(*_: Any) -> Any:
        raise AssertionError("a graph ran")

    pair = task == "pair"
    model = replace(settings(), encoder=settings().decoder) if pair else settings()
    graphs = Graphs(model, unreachable if pair else None, unreachable)
    if "source" in arguments:
        arguments = arguments | {"source": torch.tensor(arguments["source"])}
    with pytest.raises(UserError, match=message):
        graphs.search(**arguments)


def test_a_search_ends_where_positions_end() -> None:
    """The graph is given as many positions as the model has, and the last word has to be an end."""
    lengths = []

    def never_ends(tokens: Tensor, keys: Tensor, values: Tensor) -> list[Tensor]:
        past = keys.size(3) + tokens.size(1)
        lengths.append(past)
        logits = torch.zeros(tokens.size(0), tokens.size(1), 40)
        logits[..., EOS] = -100
        grown = keys.new_zeros(*keys.shape[:3], past, keys.size(4))
        return [logits, grown, grown]

    found = Graphs(settings(), None, never_ends).search(prompt=[EOS, 7, 7], beam=2)
    assert lengths == list(range(3, 65))
    assert {len(hypothesis.tokens) for hypothesis in found} == {62}


class Adds(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(2)


class RunsCode:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch called",)


def hostile_program(folder: Path, **records: bytes) -> Path:
    """An exported program with other contents of its records, as somebody else may have written them."""
    program = torch.export.export(Adds(), (torch.zeros(2),))
    torch.export.save(program, folder / "sound.pt2")
    path = folder / "decoder.pt2"
    with zipfile.ZipFile(folder / "sound.pt2") as sound, zipfile.ZipFile(path, "w") as archive:
        named = {info.filename.partition("/")[2]: sound.read(info) for info in sound.infolist()}
        for name, contents in (named | {name.replace("|", "/"): data for name, data in records.items()}).items():
            archive.writestr(f"decoder/{name}", contents)
    write_settings(settings(), "torch_export", folder)
    return path


def pickle_of(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_a_folder_of_torch_export_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(because: str, **records: bytes) -> None:
        hostile_program(tmp_path, **records)
        with pytest.raises(UserError, match=f"^[^\n]*decoder.pt2 {because}[^\n]*$"):
            load_torch_export(tmp_path)
        assert not (tmp_path / "called").exists()

    hostile_program(tmp_path)
    load_torch_export(tmp_path)  # sample inputs that are tensors, as former versions wrote them
    refused("is damaged or would run code", **{"data|sample_inputs|model.pt": pickle_of(RunsCode())})
    refused("is damaged or would run code", **{"data|sample_inputs|model.pt": pickle.dumps(RunsCode())})
    for name in ("constants|opaque_obj_0", "constants|custom_obj_0", "constants|model.pt", "weights|model.pt"):
        refused(f"holds data/{name.replace('|', '/')}, which no", **{f"data|{name}": pickle.dumps(RunsCode())})
    refused("holds serialized_state_dict.json, which no", **{"serialized_state_dict.json": pickle_of(RunsCode())})
    weight = {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}
    config = {"data|weights|model_weights_config.json": json.dumps({"config": {"w": weight}}).encode()}
    refused("holds a pickled tensor, which no", **config, **{"data|weights|weight_0": pickle_of(RunsCode())})
    with zipfile.ZipFile(tmp_path / "sound.pt2") as sound:
        (graph,) = (sound.read(name) for name in sound.namelist() if name.endswith("models/model.json"))
    for function in ("torch.os.system", "torch.ops.aten.from_file.default"):
        called = graph.replace(b"torch.ops.aten.add.Tensor", function.encode())
        refused(".*calls what no exported model does", **{"models|model.json": called})
