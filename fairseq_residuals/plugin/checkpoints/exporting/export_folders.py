"""Export a checkpoint to a folder, and look whether what was written computes the same, before it gets its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.exporting import to_hf
from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import PortableCheckpoint, read_portable
from fairseq_residuals.plugin.checkpoints.exporting.stock_form import form_for_transformers
from fairseq_residuals.plugin.folders import new_folder
from fairseq_residuals.wirings.blocks.models import TransformerModel
from fairseq_residuals.wirings.blocks.settings import EOS, PAD
from fairseq_residuals.wirings.core.errors import UserError

FORMATS = ("hf", "onnx")
TOLERANCE = 1e-4
"""Of the logits, as a part of the largest one."""


@dataclass(frozen=True)
class Options:
    """What ``--to hf`` can be given beside.

    Attributes:
        data: folder of the dictionaries.
        codes: BPE codes of subword-nmt.
        sentencepiece: model of SentencePiece.
        own_class: use our modelling file also where transformers has a class.
    """

    data: Path | None = None
    codes: Path | None = None
    sentencepiece: Path | None = None
    own_class: bool = False


def export_folder(file: Path, kind: str, out: Path, options: Options) -> list[str]:
    """Write ``out`` whole or not at all; return lines for the user.

    Args:
        file: a checkpoint.
        kind: one of :data:`FORMATS`.

    Raises:
        UserError: the format cannot hold the model, a file is missing, or what was written computes something else.
    """
    checkpoint = read_portable(file)
    deviation = check_logits(checkpoint, "exported: without fairseq")
    report = [f"largest difference of logits on random input: {deviation:.1e} of the largest (tolerance {TOLERANCE:g})"]
    files = _tokenizer_files(checkpoint, options)
    with new_folder(out) as folder:
        if kind == "hf":
            report += _write_hf(checkpoint, files, folder, own_class=options.own_class)
            if files is None:
                report.append("no tokenizer: give --data DIR, the folder of the dictionaries, for one")
            else:
                report += to_hf.unsplit_words(files)
            return report
        # only here, since importing what exports graphs takes time
        from fairseq_residuals.plugin.checkpoints.exporting import to_graphs

        to_graphs.write_onnx(to_graphs.trace_graphs(checkpoint.model), checkpoint.model.settings, folder)
    return [*report, f"opset {to_graphs.OPSET}"]


def _write_hf(
    checkpoint: PortableCheckpoint, files: to_hf.TokenizerFiles | None, folder: Path, *, own_class: bool
) -> list[str]:
    form = "--own-class is given" if own_class else form_for_transformers(checkpoint)
    if isinstance(form, str):
        to_hf.write_hf(checkpoint, files, folder)
        return [f"modelling file of this project, since {form}"]
    plain, kind = form
    check_logits(plain, f"exported: as {kind.name}")
    to_hf.write_class(plain, kind, files, folder)
    report = [f"class of transformers: {kind.name}, without code of this project"]
    if _wirings(plain) != _wirings(checkpoint):
        report.append("the factors of the wiring are in its matrices; --own-class keeps them apart")
    return report


def _wirings(checkpoint: PortableCheckpoint) -> list[str]:
    settings = checkpoint.model.settings
    return [stack.wiring.computes for stack in (settings.encoder, settings.decoder) if stack is not None]


def check_logits(checkpoint: PortableCheckpoint, what: str) -> float:
    """Return how far the logits are from fairseq's, as a part of the largest.

    Args:
        what: for messages, what cannot be done with the checkpoint, and of what the logits are.

    Raises:
        UserError: by more than rounding.
    """
    deviation = difference(checkpoint, *random_input(checkpoint.model))
    if not deviation <= TOLERANCE:
        raise UserError(
            f"{checkpoint.path} cannot be {what} its logits differ by {deviation:.1e} of the largest, and at most"
            f" {TOLERANCE:g} is rounding"
        )
    return deviation


def _tokenizer_files(checkpoint: PortableCheckpoint, options: Options) -> to_hf.TokenizerFiles | None:
    if options.data is None:
        if options.codes or options.sentencepiece:
            raise UserError("--codes and --sentencepiece need --data, the folder of the dictionaries that they go with")
        return None
    if options.codes and options.sentencepiece:
        raise UserError("--codes and --sentencepiece are two ways to split words; give one")
    for flag, path in (("--codes", options.codes), ("--sentencepiece", options.sentencepiece)):
        if path is not None and not path.is_file():
            raise UserError(f"{flag}: there is no file {path}")
    source, target = to_hf.find_dictionaries(options.data, checkpoint.settings)
    return to_hf.TokenizerFiles(source, target, options.codes, options.sentencepiece)


def random_input(model: TransformerModel, sentences: int = 3) -> tuple[Tensor | None, Tensor]:
    """Return a source (None of a language model) and what a decoder is given, padded to the right."""
    generator = torch.Generator().manual_seed(1)
    settings = model.settings

    def words(stack_words: int, longest: int, first: int | None = None) -> Tensor:
        tokens = torch.randint(EOS + 1, stack_words, (sentences, longest), generator=generator)
        for row, length in zip(tokens, range(longest, 0, -1), strict=False):
            row[length:] = PAD
        if first is not None:
            tokens[:, 0] = first
        return tokens

    longest = min(7, settings.decoder.max_positions)
    previous = words(settings.decoder.words, longest, EOS)
    return (
        words(settings.encoder.words, min(8, settings.encoder.max_positions)) if settings.encoder else None
    ), previous


@torch.no_grad()
def difference(checkpoint: PortableCheckpoint, source: Tensor | None, previous: Tensor) -> float:
    """Return the largest difference of logits between fairseq's model and ours, as a part of the largest logit."""
    expected = fairseq_logits(checkpoint, source, previous)
    model = checkpoint.model
    memory = () if source is None or model.encoder is None else (model.encoder(source), source.eq(PAD))
    logits = model.decoder(previous, *memory)
    real = previous.ne(PAD)
    return ((logits - expected)[real].abs().max() / expected[real].abs().max()).item()


@torch.no_grad()
def fairseq_logits(checkpoint: PortableCheckpoint, source: Tensor | None, previous: Tensor) -> Tensor:
    """Return the logits of the model that fairseq built, (B, T, words)."""
    if source is None:
        return checkpoint.fairseq_model(previous, src_lengths=previous.ne(PAD).sum(1))[0]  # type: ignore[no-any-return]
    return checkpoint.fairseq_model(source, source.ne(PAD).sum(1), previous)[0]  # type: ignore[no-any-return]
