"""Exported graphs to run: beam search over :mod:`.steps`, whatever computes them."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils import torch_private
from fairseq_residuals.wirings.utils.documents import parse_json

SETTINGS_FILE = "model.json"
ENCODER, DECODER = "encoder", "decoder"
Graph = Callable[..., Sequence[Tensor]]


class Hypothesis(NamedTuple):
    """A finished sentence.

    Attributes:
        tokens: with the end, without what the search began with.
        score: sum of log-probabilities over length to the power of the penalty.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Graphs:
    """The two graphs of a model, as functions of tensors.

    Attributes:
        settings: of the model.
        encode: None of a language model.
        decode: one step, as :mod:`.steps` describes it.
    """

    settings: ModelSettings
    encode: Graph | None
    decode: Graph

    def logits(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits of given tokens in one step, (B, T) -> (B, T, words)."""
        rows = tokens.size(0)
        return self.decode(tokens, *self.empty_cache(rows), *self._memory(source, rows))[0]

    def empty_cache(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of no positions."""
        s = self.settings.decoder
        shape = s.layers, rows, s.heads, 0, s.dim // s.heads
        return torch.zeros(shape), torch.zeros(shape)

    @torch.no_grad()
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
        self._check(torch.tensor(prompt), self.settings.decoder, "prompt")
        if source is not None and self.settings.encoder is not None:
            self._check(source, self.settings.encoder, "source")
        longest = min(longest, self.settings.decoder.max_positions - len(prompt))
        memory = self._memory(None if source is None else source[None], beam)
        tokens = torch.tensor([list(prompt)] * beam)
        keys, values = self.empty_cache(beam)
        words, scores = torch.zeros(beam, 0, dtype=torch.long), torch.zeros(beam)
        finished: list[Hypothesis] = []
        for step in range(longest + 1):
            logits, keys, values = self.decode(tokens, keys, values, *memory)
            totals = scores[:, None] + _allowed(logits[:, -1].log_softmax(-1), first=step == 0, last=step == longest)
            if step == 0:
                totals = totals[:1]  # all rows are the same yet
            best, places = totals.flatten().topk(min(2 * beam, totals.numel() - 1))
            rows, new = places // totals.size(1), places % totals.size(1)
            ends = new.eq(EOS)
            for rank in range(min(beam, len(new))):
                if ends[rank] and best[rank] > -torch.inf and len(finished) < beam:
                    sentence = [*words[rows[rank]].tolist(), EOS]
                    finished.append(Hypothesis(sentence, float(best[rank]) / len(sentence) ** length_penalty))
            if len(finished) == beam or step == longest:
                break
            go_on = ends.logical_not().nonzero().flatten()[:beam]
            rows, tokens, scores = rows[go_on], new[go_on, None], best[go_on]
            words = torch.cat([words[rows], tokens], 1)
            keys, values = keys[:, rows], values[:, rows]
        return sorted(finished, key=lambda hypothesis: -hypothesis.score)

    @staticmethod
    def _check(tokens: Tensor, stack: StackSettings, name: str) -> None:
        """Check what a user gives, of which a graph would say less.

        Raises:
            UserError: tokens are not in a row, or not those of the model.
        """
        if tokens.dim() != 1 or tokens.is_floating_point() or not len(tokens):
            raise UserError(f"{name} must be the numbers of one sentence's tokens in a row, not {tuple(tokens.shape)}")
        if tokens.min() < 0 or tokens.max() >= stack.words:
            raise UserError(f"{name} has tokens {tokens.min()} to {tokens.max()}, and the model {stack.words} words")
        if len(tokens) > stack.max_positions:
            raise UserError(f"{name} has {len(tokens)} tokens, and the model reads at most {stack.max_positions}")

    def _memory(self, source: Tensor | None, rows: int) -> tuple[Tensor, ...]:
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


def _allowed(lprobs: Tensor, *, first: bool, last: bool) -> Tensor:
    """fairseq's rules: no padding, no empty sentence, and an end at the last position."""
    lprobs[:, PAD] = -torch.inf
    if first:
        lprobs[:, EOS] = -torch.inf
    if last:
        end = lprobs[:, EOS].clone()
        lprobs[:] = -torch.inf
        lprobs[:, EOS] = end
    return lprobs


def load_torch_export(folder: str | Path) -> Graphs:
    """Load what ``export --to torch_export`` wrote.

    Raises:
        UserError: the folder holds something else, or another version's files, or lacks one.
    """
    folder = Path(folder)
    settings = read_settings(folder, "torch_export")

    def graph(name: str) -> Graph:
        path = _file(folder, f"{name}.pt2")
        if not is_zipfile(path):  # of which PyTorch would log a page
            raise UserError(f"{path} is damaged; export the checkpoint again")
        _refuse_pickles(path)
        # the checks of shapes that PyTorch 2.13 writes end in an AttributeError here; wrong shapes fail in the graph
        return _load_program(path).module(check_guards=False)  # type: ignore[no-any-return]

    return Graphs(settings, graph(ENCODER) if settings.encoder else None, graph(DECODER))


RECORDS = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|models/model\.json|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|\.data/[a-z_]+"
)
"""What ``torch.export.save`` writes of a program that holds tensors alone."""
OUTSIDE = ("from_file", "save")
"""Operators of PyTorch that read and write files."""


def _refuse_pickles(path: Path) -> None:
    """Refuse what ``torch.export.load`` would unpickle without a restriction.

    Raises:
        UserError: the archive is damaged, holds other records than an exported program, or sample inputs that are no
            tensors.
    """
    try:
        archive = torch_private.archive_of(path)
        others = [name for name in archive.get_all_records() if not RECORDS.fullmatch(name)]
        configs = [
            json.loads(archive.get_record(f"data/{kind}/model_{kind}_config.json")) for kind in ("weights", "constants")
        ]
        pickled = any(entry["use_pickle"] for config in configs for entry in config["config"].values())
        if inputs := archive.get_record("data/sample_inputs/model.pt"):  # of files that were written before today's
            torch.load(io.BytesIO(inputs), weights_only=True)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is damaged or would run code ({reason}); export the checkpoint again") from error
    if others or pickled:
        what = others[0] if others else "a pickled tensor"
        raise UserError(f"{path} holds {what}, which no exported model has; export the checkpoint again")


def _load_program(path: Path) -> torch.export.ExportedProgram:
    """Load a program that calls PyTorch's operators on tensors alone; it has to be without pickles.

    Raises:
        UserError: it calls something else, which the file may have named freely (``torch.os.system``).
    """
    try:
        program = torch.export.load(path)
    except torch_private.program_failures() as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} is damaged, or calls what no exported model does ({reason}); export the checkpoint again"
        ) from error
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            operator = node.target
            if isinstance(operator, torch_private.Operator) and (
                operator.namespace != "aten" or operator.overloadpacket.__name__ in OUTSIDE
            ):
                raise UserError(f"{path} calls {operator}, which no exported model does; export the checkpoint again")
    return program


def load_onnx(folder: str | Path) -> Graphs:
    """Load what ``export --to onnx`` wrote, for onnxruntime on the CPU.

    Raises:
        UserError: the folder holds something else, or another version's files, or lacks one; or onnxruntime is missing.
    """
    folder = Path(folder)
    settings = read_settings(folder, "onnx")
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
    except ModuleNotFoundError as error:
        raise UserError("this needs the package onnxruntime: pip install onnxruntime") from error

    def graph(name: str) -> Graph:
        options = onnxruntime.SessionOptions()
        # initializers of zero size and the like are no news
        options.log_severity_level = 3
        path = str(_file(folder, f"{name}.onnx"))
        try:
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.InvalidGraph, errors.InvalidProtobuf) as error:
            version, reason = onnxruntime.__version__, " ".join(str(error).split())
            raise UserError(f"onnxruntime {version} cannot load {path}: {reason}") from error
        names = [i.name for i in session.get_inputs()]

        def run(*inputs: Tensor) -> list[Tensor]:
            feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
            return [torch.from_numpy(array) for array in session.run(None, feeds)]

        return run

    return Graphs(settings, graph(ENCODER) if settings.encoder else None, graph(DECODER))


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise UserError(f"there is no {name} in {folder}; export the checkpoint again")
    return folder / name


def write_settings(settings: ModelSettings, kind: str, folder: Path, **more: Any) -> None:
    """Write what :func:`read_settings` reads."""
    content = {"format": kind, "model": settings.to_json(), **more}
    (folder / SETTINGS_FILE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_settings(folder: Path, kind: str) -> ModelSettings:
    """Read the settings of exported graphs.

    Raises:
        UserError: the folder holds none of this kind, or those of another version.
    """
    try:
        content = parse_json((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no exported model: {SETTINGS_FILE} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise UserError(f"{folder} was not written by export --to {kind}")
    return ModelSettings.of_json(content.get("model"))
