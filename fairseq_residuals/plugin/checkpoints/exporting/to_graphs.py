"""``export --to onnx``: encoder and decoder step as graphs, through ``torch.export``."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from fairseq_residuals.wirings.blocks.halves import open_all_attention
from fairseq_residuals.wirings.blocks.models import TransformerModel, write_settings
from fairseq_residuals.wirings.blocks.settings import EOS, ModelSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.export.decoder_steps import (
    CACHE,
    MEMORY,
    DecoderGraph,
    EncoderGraph,
)
from fairseq_residuals.wirings.export.graphs import DECODER, ENCODER, empty_cache

Programs = dict[str, ExportedProgram]
"""The decoder's step, and of a pair the encoder, by the names of their files."""
OPSET = 20
"""Version of ONNX's operators; onnxruntime reads it since 1.17."""
OUTPUTS = {ENCODER: list(MEMORY), DECODER: ["logits", *(f"new_{name}" for name in CACHE)]}
_ROWS, _NEW, _PAST, _SOURCE = 2, 3, 4, 5
"""Sizes to trace with, which do not stay in a graph: none is 1, and no two are equal, which would be remembered."""


def write_onnx(programs: Programs, settings: ModelSettings, folder: Path) -> None:
    """Fill an empty folder with ``decoder.onnx``, ``encoder.onnx`` of a pair, and the settings.

    Args:
        programs: as :func:`trace_graphs` returns them.

    Raises:
        UserError: the packages onnx and onnxscript are missing.
        OSError: a file cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"this needs the package {error.name}: pip install -e '.[onnx]' in the clone") from error
    for name, program in programs.items():
        with _quiet():
            converted = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, output_names=OUTPUTS[name], verbose=False, optimize=False
            )
            assert converted is not None
            _simplify(converted.model)
        converted.save(folder / f"{name}.onnx")
    write_settings(settings, "onnx", folder, opset=OPSET)


def _simplify(model: Any) -> None:
    """Fold constants, and drop what is unused or there twice.

    These are the exporter's own passes without its patterns. To look for patterns takes a third of an export and is
    quadratic in the depth; onnxruntime fuses nearly all that they would when it loads the graph.
    """
    from onnx_ir.passes import Sequential, common
    from onnxscript import optimizer

    optimizer.fold_constants(model)
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter prints of its progress, and that optional packages of operators are missing."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def trace_graphs(model: TransformerModel) -> Programs:
    """Trace the graphs of a model, with any numbers of sentences and positions."""
    open_all_attention(model)
    _copy_shared_modules(model)
    tokens = torch.full((_ROWS, _NEW), EOS + 2)
    keys, values = empty_cache(model.settings.decoder, _ROWS, _PAST)
    rows, new, past, source = Dim.DYNAMIC, Dim.DYNAMIC, Dim.DYNAMIC, Dim.DYNAMIC
    inputs: tuple[Tensor, ...] = (tokens, keys, values)
    shapes = {"tokens": {0: rows, 1: new}, "keys": {1: rows, 3: past}, "values": {1: rows, 3: past}}
    if model.encoder is None:
        return {DECODER: _trace(DecoderGraph(model), inputs, shapes)}
    encoder = EncoderGraph(model)
    sentence = torch.full((_ROWS, _SOURCE), EOS + 2)
    memory = encoder(sentence)
    shapes |= {name: {1: rows, 3: source} for name in MEMORY} | {"source_padding": {0: rows, 1: source}}
    return {
        ENCODER: _trace(encoder, (sentence,), {"source": {0: rows, 1: source}}),
        DECODER: _trace(DecoderGraph(model), (*inputs, *memory, sentence.eq(0)), shapes),
    }


def _copy_shared_modules(model: torch.nn.Module) -> None:
    """Give each layer modules of its own, with the parameters of those that it shared.

    Where a module is there twice, torch.export sees a new wrapper around each module at each look, and what is kept by
    module is not found again.
    """
    seen: set[torch.nn.Module] = set()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module in seen:
            model.set_submodule(path, copy.deepcopy(module, {id(p): p for p in module.parameters()}))
        seen.add(module)


def _trace(graph: torch.nn.Module, inputs: tuple[Tensor, ...], shapes: dict[str, dict[int, object]]) -> ExportedProgram:
    return torch.export.export(graph.eval(), inputs, dynamic_shapes=shapes, strict=False)
