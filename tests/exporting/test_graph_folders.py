"""Folders of graphs that are not loaded: one sentence says what is wrong with each."""

from __future__ import annotations

import json
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
from fairseq_residuals.wirings.export.graphs import Graphs, load_onnx


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


def test_folders_that_are_not_loaded(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

    def refused(because: str) -> None:
        with pytest.raises(UserError, match=because):
            load_onnx(tmp_path)

    def rewrite(**changes: Any) -> None:
        write_settings(settings(), "onnx", tmp_path)
        content = json.loads((tmp_path / SETTINGS_FILE).read_text())
        (tmp_path / SETTINGS_FILE).write_text(json.dumps(content | changes))

    refused("holds no exported model: .* cannot be read")
    (tmp_path / SETTINGS_FILE).write_text("[")
    refused("holds no exported model: .* cannot be read")
    rewrite(format="hf")
    refused("was not written by export --to onnx")
    rewrite(model=replace(settings(), version=2).to_json())
    refused("of version 2, and this program reads version 1; export the checkpoint again")
    rewrite(model=settings().to_json() | {"decoder": None})
    refused("decoder must be an object")
    rewrite()
    refused(r"there is no decoder\.onnx in ")
    (tmp_path / "decoder.onnx").write_bytes(b"half a file")
    refused(r"cannot load .*decoder\.onnx")


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
