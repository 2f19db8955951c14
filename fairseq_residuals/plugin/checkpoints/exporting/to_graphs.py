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
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.halves import Decoder, open_all_attention
from fairseq_residuals.wirings.blocks.models import TransformerModel, write_settings
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings
from fairseq_residuals.wirings.core.attention import KeysValues
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.export.graphs import DECODER, ENCODER, empty_cache

Programs = dict[str, ExportedProgram]
"""The decoder's step, and of a pair the encoder, by the names of their files."""
OPSET = 20
"""Version of ONNX's operators; onnxruntime reads it since 1.17."""
MEMORY = ("memory_keys", "memory_values")
CACHE = ("keys", "values")
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


def _copy_shared_modules(model: nn.Module) -> None:
    """Give each layer modules of its own, with the parameters of those that it shared.

    Where a module is there twice, torch.export sees a new wrapper around each module at each look, and what is kept by
    module is not found again.
    """
    seen: set[nn.Module] = set()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module in seen:
            model.set_submodule(path, copy.deepcopy(module, {id(p): p for p in module.parameters()}))
        seen.add(module)


def _trace(graph: nn.Module, inputs: tuple[Tensor, ...], shapes: dict[str, dict[int, object]]) -> ExportedProgram:
    return torch.export.export(graph.eval(), inputs, dynamic_shapes=shapes, strict=False)


class EncoderGraph(nn.Module):
    """The encoder, and of each decoder layer the keys and values that it reads from it."""

    def __init__(self, model: TransformerModel) -> None:
        super().__init__()
        assert model.encoder is not None
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> keys, values, each (layers, B, H, S, channels of a head)"""
        # what a first step would keep; the step itself is no part of the graph, since nothing of it is returned
        cache = DecoderCache()
        self.decoder(torch.full_like(source[:, :1], EOS), self.encoder(source), source.eq(PAD), cache)
        memories = [cache.memories[layer.encoder_attn] for layer in _layers(self.decoder)]
        return torch.stack([memory.keys for memory in memories]), torch.stack([m.values for m in memories])


class DecoderGraph(nn.Module):
    """Some positions of a decoder after those in the cache; a language model has no memory."""

    def __init__(self, model: TransformerModel) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        tokens: Tensor,
        keys: Tensor,
        values: Tensor,
        memory_keys: Tensor | None = None,
        memory_values: Tensor | None = None,
        source_padding: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, T, words) and the cache of P + T positions."""
        layers, cache, memory = _layers(self.decoder), DecoderCache(), None
        cache.positions = keys.size(3)
        pairs = zip(keys.unbind(), values.unbind(), strict=True)
        cache.words = {layer.self_attn: pair for layer, pair in zip(layers, pairs, strict=True)}
        if memory_keys is not None and memory_values is not None:
            for layer, k, v in zip(layers, memory_keys.unbind(), memory_values.unbind(), strict=True):
                cache.memories[layer.encoder_attn] = KeysValues(k, v, None, source_padding)
            # read nowhere, since what every layer reads of it is in the cache
            memory = keys.new_zeros(1, 1, layers[0].encoder_attn.kdim)
        logits = self.decoder(tokens, memory, source_padding, cache)
        new_keys, new_values = zip(*(cache.words[layer.self_attn] for layer in layers), strict=True)
        return logits, torch.stack(new_keys), torch.stack(new_values)


def _layers(decoder: Decoder) -> list[Any]:
    return [decoder.layers[i] for i in range(len(decoder.layers))]
