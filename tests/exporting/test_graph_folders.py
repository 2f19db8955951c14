"""Folders of graphs that are not loaded: one sentence says what is wrong with each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.portable.graphs import SETTINGS_FILE, load_onnx, load_torch_export, write_settings
from fairseq_residuals.portable.settings import ModelSettings, StackSettings

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
