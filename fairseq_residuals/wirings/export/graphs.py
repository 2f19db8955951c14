"""Exported graphs to run, with a beam search over :mod:`.decoder_steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.models import read_settings
from fairseq_residuals.wirings.blocks.search import Hypothesis, beam_search, check_tokens
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError

ENCODER, DECODER = "encoder", "decoder"
Graph = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Graphs:
    """The two graphs of a model, as functions of tensors.

    Attributes:
        settings: of the model.
        encode: None of a language model.
        decode: one step, as :mod:`.decoder_steps` describes it.
    """

    settings: ModelSettings
    encode: Graph | None
    decode: Graph

    def logits(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits of given tokens in one step, (B, T) -> (B, T, words)."""
        rows = tokens.size(0)
        return self.decode(tokens, *empty_cache(self.settings.decoder, rows), *self.memory(source, rows))[0]

    def search(
        self,
        source: Tensor | None = None,
        *,
        beam: int = 5,
        longest: int = 200,
        length_penalty: float = 1.0,
        prompt: Sequence[int] = (EOS,),
    ) -> list[Hypothesis]:
        """Search a beam as ``fairseq-generate`` does, for one sentence.

        Args:
            source: (S), with its end; None of a language model.
            beam: hypotheses at a time, and in the end.
            longest: tokens before the end; fewer where the model has not as many positions.
            length_penalty: to which power of the length a score is divided.
            prompt: what the decoder begins with.

        Returns:
            The finished hypotheses, the best first.

        Raises:
            UserError: a source where the model has none, or none where it needs one; or tokens that it does not know.
        """
        if beam < 1 or longest < 0:
            raise UserError(f"beam must be at least 1 and longest at least 0, not {beam} and {longest}")
        prompts = torch.tensor([list(prompt)])
        _check("prompt", prompts[0], self.settings.decoder)
        if source is not None and self.settings.encoder is not None:
            _check("source", source, self.settings.encoder)
        longest = min(longest, self.settings.decoder.max_positions - len(prompt))
        steps = GraphSteps(self, None if source is None else source[None], beam)
        (found,) = beam_search(
            steps, prompts, beam=beam, longest=longest, length_penalty=length_penalty, padding=PAD, end=EOS
        )
        return found

    def memory(self, source: Tensor | None, rows: int) -> tuple[Tensor, ...]:
        """Return what a decoder of a pair is given of its source, for as many rows."""
        if (source is None) != (self.encode is None):
            raise UserError("a model of translation needs a source, and a language model has none")
        if source is None or self.encode is None:
            return ()
        keys, values = self.encode(source)
        each = rows // source.size(0)
        return (
            keys.repeat_interleave(each, 1),
            values.repeat_interleave(each, 1),
            source.eq(PAD).repeat_interleave(each, 0),
        )


def empty_cache(s: StackSettings, rows: int, positions: int = 0) -> tuple[Tensor, Tensor]:
    """Return keys and values of ``positions`` positions, zeros."""
    shape = s.layers, rows, s.kv_heads or s.heads, positions, s.dim // s.heads
    return torch.zeros(shape), torch.zeros(shape)


class GraphSteps:
    """The :class:`~.search.Steps` of two graphs, whose caches are tensors."""

    def __init__(self, graphs: Graphs, source: Tensor | None, rows: int) -> None:
        """Encode the source (1, S) of a pair."""
        self.decode, self.memory = graphs.decode, graphs.memory(source, rows)
        self.keys, self.values = empty_cache(graphs.settings.decoder, rows)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read new tokens, (rows, T), and return the logits behind the last of them, (rows, words)."""
        logits, self.keys, self.values = self.decode(tokens, self.keys, self.values, *self.memory)
        return logits[:, -1]

    def reorder(self, rows: Tensor) -> None:
        """Go on with other rows; all have one memory."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


def _check(name: str, tokens: Tensor, stack: StackSettings) -> None:
    """Check what a user gives, of which a graph would say less.

    Raises:
        UserError: tokens are not in a row, not those of the model, or too many.
    """
    check_tokens(name, tokens, stack, dims=1)
    if len(tokens) > stack.max_positions:
        raise UserError(f"{name} has {len(tokens)} tokens, and the model reads at most {stack.max_positions}")


def load_onnx(folder: str | Path) -> Graphs:
    """Load what ``export --to onnx`` wrote, for onnxruntime on the CPU.

    Raises:
        UserError: the folder holds something else, or another version's files, or lacks one; or onnxruntime is missing.
    """
    folder = Path(folder)
    settings = read_settings(folder, "onnx", "export --to onnx")
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
    except ModuleNotFoundError as error:
        raise UserError("this needs the package onnxruntime: pip install onnxruntime") from error

    def graph(name: str) -> Graph:
        options = onnxruntime.SessionOptions()
        # initializers of zero size and the like are no news
        options.log_severity_level = 3
        path = folder / f"{name}.onnx"
        if not path.is_file():
            raise UserError(f"there is no {path.name} in {folder}; export the checkpoint again")
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.InvalidGraph, errors.InvalidProtobuf) as error:
            version, reason = onnxruntime.__version__, " ".join(str(error).split())
            raise UserError(f"onnxruntime {version} cannot load {path}: {reason}") from error
        names = [i.name for i in session.get_inputs()]

        def run(*inputs: Tensor) -> list[Tensor]:
            feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
            return [torch.from_numpy(array) for array in session.run(None, feeds)]

        return run

    return Graphs(settings, graph(ENCODER) if settings.encoder else None, graph(DECODER))
