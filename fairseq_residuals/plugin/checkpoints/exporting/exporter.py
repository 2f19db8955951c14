"""``fairseq-residuals export --to FORMAT FILE OUT``: trained models for other programs.

The exported model runs beside fairseq's on random input, and is refused if it computes something else: graphs as they
were written, other formats in memory, before they are written.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_new_folder, check_output, save
from fairseq_residuals.plugin.checkpoints.exporting import to_hf
from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import (
    PortableCheckpoint,
    read_own,
    read_portable,
)
from fairseq_residuals.plugin.checkpoints.exporting.stock_form import fold_model
from fairseq_residuals.plugin.checkpoints.fairseq_config import complete, load_model
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes, sharing
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.checkpoints.safetensors_file import NO_TRAINING_STATE
from fairseq_residuals.plugin.folders import new_folder
from fairseq_residuals.plugin.models.builder import wirings_of
from fairseq_residuals.plugin.models.language_model import LANGUAGE_MODEL
from fairseq_residuals.plugin.models.speech_to_text import SPEECH
from fairseq_residuals.plugin.models.translation import TRANSLATION
from fairseq_residuals.plugin.progress import quiet
from fairseq_residuals.wirings.blocks.settings import EOS, PAD
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.export.graphs import load_onnx

HELP = "turn a checkpoint of this plugin into a model for fairseq itself, transformers or ONNX"
STOCK = {TRANSLATION.model: "transformer", LANGUAGE_MODEL.model: "transformer_lm", SPEECH.model: "s2t_transformer"}
"""fairseq's own model for each of ours, an architecture by the same name."""
TOLERANCE = 1e-4
"""Difference of logits that rounding may cause, as a part of the largest one."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        required=True,
        choices=("fairseq", "hf", "onnx"),
        help="what is to read it: fairseq without this plugin, where its own models compute exactly the same;"
        " transformers; onnxruntime and others",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="with --to hf, the folder of the model's dictionaries: adds a tokenizer",
    )
    parser.add_argument("--codes", type=Path, metavar="FILE", help="with --data, the BPE codes of subword-nmt")
    parser.add_argument("--sentencepiece", type=Path, metavar="FILE", help="with --data, the model of SentencePiece")
    parser.add_argument("file", type=Path, metavar="FILE", help="a checkpoint of this plugin's models")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="what to write: a file with --to fairseq, otherwise a new folder"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="with --to fairseq, replace a file that is there already"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: the format cannot hold the model, or ``OUT`` cannot be written; nothing is written then.
    """
    if args.to != "hf" and (args.data or args.codes or args.sentencepiece):
        raise UserError("--data, --codes and --sentencepiece are for --to hf; leave them out")
    if args.to != "fairseq" and args.overwrite:
        raise UserError("--overwrite is for --to fairseq; the other formats need the name of a new folder")
    if args.to == "fairseq":
        check_output(args.out, [args.file], overwrite=args.overwrite)
    else:
        check_new_folder(args.out)
    with quiet():
        report = _to_fairseq(args.file, args.out) if args.to == "fairseq" else _to_folder(args)
    print("\n".join([*report, f"wrote {args.out}"]))
    return 0


def _to_fairseq(file: Path, out: Path) -> list[str]:
    exported = export_checkpoint(file)
    save(exported.checkpoint, out)
    return [
        f"architecture of fairseq's own: {exported.architecture}",
        *(
            f"{side}: the factor on its first residual is in its embedding, and in a table of positions"
            for side in exported.tables
        ),
        _deviation_line(exported.deviation),
        "the optimizer's state is left out",
    ]


def _deviation_line(deviation: float, of: str = "the model in memory") -> str:
    return (
        f"largest difference of logits on random input, of {of}: {deviation:.1e} of the largest"
        f" (tolerance {TOLERANCE:g})"
    )


@dataclass(frozen=True)
class Exported:
    checkpoint: dict[str, Any]
    """A checkpoint as fairseq wrote it until 0.10, and reads it since: settings in ``args``, no optimizer."""
    architecture: str
    deviation: float
    """The largest difference of logits on random input, as a part of the largest logit."""
    tables: list[str]
    """The stacks whose sinusoids became a table of positions, and whose embedding is no longer shared."""


def export_checkpoint(path: Path) -> Exported:
    """Return the model of a checkpoint as one of fairseq's own.

    Raises:
        UserError: the file is damaged or not this plugin's, its wiring or norms are none of fairseq's own, or the
            model for fairseq does not compute the same.
    """
    found, model_name = read_own(path)
    settings, sizes = found.settings, dictionary_sizes(found)
    args, _ = complete(settings["arch"], settings, {})
    if args.activation_fn == "silu":  # it is a patch of modern_fairseq
        raise UserError(f"{path} cannot be exported: fairseq itself has no activation {args.activation_fn}")
    wirings = wirings_of(args)
    ours = load_model(args, sizes, found.parameters, str(path))
    state = {name: value.double() if value.is_floating_point() else value for name, value in ours.state_dict().items()}
    try:
        exactly = fold_model(ours, wirings, state)
    except UserError as error:
        raise UserError(f"{path} cannot be exported: {error}") from error
    exactly |= sharing(Found(str(path), {}, state))
    stock = STOCK[model_name]
    args, _ = complete(stock, settings, exactly)
    args.criterion = args.criterion.removeprefix("chunked_")  # fairseq's own, which is the same loss
    buffers = (".version", "._float_tensor")
    folded = {name: value.float() for name, value in state.items() if not name.endswith(buffers)}
    theirs = load_model(args, sizes, folded, f"fairseq's own {stock}")
    batch = random_batch(ours.double())
    with torch.no_grad():
        expected, logits = (model.double().eval()(**batch)[0] for model in (ours, theirs))
    deviation = _checked(logits, expected, batch, f"{path} cannot be exported: folded into fairseq's own {stock}")
    whole = {"args": args, "cfg": None, "model": theirs.float().state_dict()} | NO_TRAINING_STATE
    tables = [side for side in wirings if exactly.get(f"{side}_learned_pos")]
    return Exported(whole, stock, deviation, tables)


def _to_folder(args: argparse.Namespace) -> list[str]:
    """Write the folder whole or not at all; return lines for the user.

    Raises:
        UserError: the format cannot hold the model, a file is missing, or what was written computes something else.
    """
    checkpoint = read_portable(args.file)
    deviation = check_logits(checkpoint, "exported: without fairseq")
    files = _tokenizer_files(checkpoint, args)
    with new_folder(args.out) as folder:
        if args.to == "hf":
            to_hf.write_hf(checkpoint, files, folder)
            report = [_deviation_line(deviation)]
            if files is None:
                return [*report, "no tokenizer: give --data DIR, the folder of the dictionaries, for one"]
            return report + to_hf.unsplit_words(files)
        # only here, since importing what exports graphs takes time
        from fairseq_residuals.plugin.checkpoints.exporting import to_graphs

        to_graphs.write_onnx(to_graphs.trace_graphs(checkpoint.model), checkpoint.model.settings, folder)
        if importlib.util.find_spec("onnxruntime") is None:
            report = [_deviation_line(deviation), "the graphs were not run: there is no package onnxruntime"]
        else:
            deviation = check_logits(checkpoint, "exported: under onnxruntime", load_onnx(folder).logits)
            report = [_deviation_line(deviation, "the graphs under onnxruntime")]
    return [*report, f"opset {to_graphs.OPSET}"]


def _tokenizer_files(checkpoint: PortableCheckpoint, args: argparse.Namespace) -> to_hf.TokenizerFiles | None:
    if args.data is None:
        if args.codes or args.sentencepiece:
            raise UserError("--codes and --sentencepiece need --data, the folder of the dictionaries that they go with")
        return None
    if args.codes and args.sentencepiece:
        raise UserError("--codes and --sentencepiece are two ways to split words; give one")
    for flag, path in (("--codes", args.codes), ("--sentencepiece", args.sentencepiece)):
        if path is not None and not path.is_file():
            raise UserError(f"{flag}: there is no file {path}")
    source, target = to_hf.find_dictionaries(args.data, checkpoint.settings)
    return to_hf.TokenizerFiles(source, target, args.codes, args.sentencepiece)


@torch.no_grad()
def check_logits(
    checkpoint: PortableCheckpoint, what: str, run: Callable[[Tensor, Tensor | None], Tensor] | None = None
) -> float:
    """Return how far logits are from fairseq's, as a part of the largest.

    Args:
        what: for messages, what cannot be done with the checkpoint, and of what the logits are.
        run: return logits of what the decoder is fed and, of a pair, the source; None: those on PyTorch alone.

    Raises:
        UserError: by more than rounding.
    """
    batch, model = random_batch(checkpoint.fairseq_model), checkpoint.model
    expected: Tensor = checkpoint.fairseq_model(**batch)[0]
    source = batch["src_tokens"]
    if run is None:
        memory = () if model.encoder is None else (model.encoder(source), source.eq(PAD))
        logits = model.decoder(_previous(batch), *memory)
    else:
        logits = run(_previous(batch), None if model.encoder is None else source)
    return _checked(logits, expected, batch, f"{checkpoint.path} cannot be {what}")


def _checked(logits: Tensor, expected: Tensor, batch: dict[str, Tensor], refusal: str) -> float:
    real = _previous(batch).ne(PAD)
    deviation: float = ((logits - expected)[real].abs().max() / expected[real].abs().max()).item()
    if not deviation <= TOLERANCE:
        raise UserError(
            f"{refusal} its logits differ by {deviation:.1e} of the largest, and at most {TOLERANCE:g} is rounding"
        )
    return deviation


def _previous(batch: dict[str, Tensor]) -> Tensor:
    """Return what the decoder is fed (B, T); fairseq's language models call it their source."""
    return batch.get("prev_output_tokens", batch["src_tokens"])


def random_batch(model: Any, sentences: int = 3) -> dict[str, Tensor]:
    """Return an input of a model of fairseq's, the same each time.

    Words are padded to the right, (B, 7) or (B, 8); sound is not, (B, 48, features).
    """
    generator = torch.Generator().manual_seed(1)

    def words(stack: Any, longest: int) -> Tensor:
        longest = min(longest, int(stack.max_positions()))
        tokens = torch.randint(EOS + 1, len(stack.dictionary), (sentences, longest), generator=generator)
        for row, length in zip(tokens, range(longest, 0, -1), strict=False):
            row[length:] = PAD
        return tokens

    previous = words(model.decoder, 7)
    previous[:, 0] = EOS
    encoder = getattr(model, "encoder", None)
    if encoder is None:
        return {"src_tokens": previous, "src_lengths": previous.ne(PAD).sum(1)}
    if hasattr(encoder, "subsample"):
        first = encoder.subsample.conv_layers[0]
        source = torch.randn(sentences, 48, first.in_channels, generator=generator, dtype=torch.float64)
        source, lengths = source.to(first.weight.dtype), torch.full((sentences,), 48)
    else:
        source = words(encoder, 8)
        lengths = source.ne(PAD).sum(1)
    return {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
