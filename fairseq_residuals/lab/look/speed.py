"""``fairseq-residuals speed``: how many target tokens per second beam search generates, against a model's depths."""

from __future__ import annotations

import argparse
import statistics
import time
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.models import FairseqSubject, ModelSource, add_flags, device_of, make_subject, sources
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.subject import stacks
from fairseq_residuals.lab.utils.machine import machine
from fairseq_residuals.lab.utils.tables import Cell, text_table
from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator, searchable
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.progress import say

LONGEST = 200
"""Tokens of a translation, where the model is to end it by itself."""


@dataclass
class Timed:
    """One model, and what was timed of it."""

    label: str
    wiring: str
    encoder_layers: int
    decoder_layers: int
    generator: Any
    inputs: dict[str, torch.Tensor]
    model: Any
    tokens: int = 0
    """Of one run: those of the best hypothesis of every sentence, ends included."""
    seconds: list[float] = field(default_factory=list)

    def speeds(self) -> tuple[float, float, float]:
        """Return tokens per second: median, least, most."""
        found = [self.tokens / seconds for seconds in self.seconds]
        return statistics.median(found), min(found), max(found)


def prepare(
    subject: FairseqSubject, words: Any, label: str, depths: tuple[int, int], beam: int, target_tokens: int
) -> Timed:
    """Make a subject ready to be timed.

    Args:
        target_tokens: that every hypothesis has before its end; 0: as many as the model gives it.

    Raises:
        UserError: these are more than the decoder has positions for.
    """
    # as fairseq-generate does before it begins
    subject.model.make_generation_fast_(need_attn=False)
    longest, positions = target_tokens or LONGEST, subject.model.max_decoder_positions()
    if target_tokens >= positions:
        raise UserError(
            f"--target-tokens {target_tokens} and the end of a sentence do not fit into {label}, which has {positions}"
            " positions"
        )
    kind = FasterSequenceGenerator if searchable([subject.model]) else SequenceGenerator
    generator = kind(
        [subject.model], words, beam_size=beam, max_len_a=0, max_len_b=longest, min_len=max(1, target_tokens)
    )
    inputs = {k: v for k, v in subject.batch.sample["net_input"].items() if k != "prev_output_tokens"}
    return Timed(label, subject.wiring, *depths, generator, inputs, subject.model)


@torch.no_grad()
def generate(timed: Timed) -> tuple[int, float]:
    """Return tokens generated, and the seconds that it took."""
    _wait_for_device()
    began = time.perf_counter()
    found = timed.generator.generate([timed.model], {"net_input": timed.inputs})
    tokens = sum(len(hypotheses[0]["tokens"]) for hypotheses in found)
    _wait_for_device()
    return tokens, time.perf_counter() - began


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


HELP = "time beam search: target tokens per second against the depth of the encoder and of the decoder"
HEAD = (
    "model",
    "wiring",
    "encoder_layers",
    "decoder_layers",
    "tokens_per_second",
    "least",
    "most",
    "repeats",
    "tokens",
)


def configure(parser: argparse.ArgumentParser) -> None:
    timing = parser.add_argument_group("timing", "weights are as initialised, or those of --checkpoint")
    timing.add_argument("--encoder-layers", type=int, nargs="*", default=[2, 4, 6], metavar="N", help="(2 4 6)")
    timing.add_argument("--decoder-layers", type=int, nargs="*", default=[2, 4, 6], metavar="N", help="(2 4 6)")
    timing.add_argument("--fixed", type=int, default=6, metavar="N", help="layers of the other stack (%(default)s)")
    timing.add_argument("--beam", type=int, default=4, metavar="N", help="%(default)s")
    timing.add_argument(
        "--target-tokens",
        type=int,
        default=20,
        metavar="N",
        help="that every hypothesis is made to have before its end; 0: the model ends it (%(default)s)",
    )
    timing.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="after one run that is not counted (%(default)s)"
    )
    add_flags(parser)
    add_output_flags(parser, "speed")
    parser.set_defaults(sentences=32)


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: a model cannot be built or loaded, or does not translate.
    """
    check_folder(args)
    for flag, least in {"fixed": 1, "beam": 1, "target_tokens": 0, "repeats": 1}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag.replace('_', '-')} must be at least {least}, not {getattr(args, flag)}")
    if min([*args.encoder_layers, *args.decoder_layers], default=1) < 1:
        raise UserError("--encoder-layers and --decoder-layers must be numbers of at least 1")
    if args.layers or args.training:
        raise UserError("--layers and --training have no meaning here: depths are those of --encoder-layers and others")
    found = _models(args)
    # in turns, so that what slows the machine down for a while slows all of them
    for turn in range(args.repeats + 1):
        for timed in found:
            tokens, seconds = generate(timed)
            if turn:
                timed.tokens = tokens
                timed.seconds.append(seconds)
        say(f"repeat {turn} of {args.repeats}" if turn else "all models are warm")
    rows: list[list[Cell]] = [
        [t.label, t.wiring, t.encoder_layers, t.decoder_layers, *t.speeds(), len(t.seconds), t.tokens] for t in found
    ]
    print(text_table(HEAD, rows))
    on = machine(device_of(args.device)) | {"precision": args.precision}
    search = {"sentences": args.sentences, "beam": args.beam, "target_tokens": args.target_tokens}
    print(", ".join(f"{name} {value}" for name, value in (on | search).items()))
    write(args, _draw(args, found), (*HEAD, *on, *search), [[*row, *on.values(), *search.values()] for row in rows])
    return 0


def _models(args: Namespace) -> list[Timed]:
    pairs = [(n, args.fixed) for n in args.encoder_layers] + [(args.fixed, n) for n in args.decoder_layers]
    chosen = sources(args)
    device = device_of(args.device)
    found = []
    for source in chosen:
        if source.task not in ("", "translation"):
            raise UserError(f"{source.arch} does not translate, which is what is timed here")
        for pair in [None] if source.file else dict.fromkeys(pairs):
            depths = "-".join(map(str, pair)) if pair else None
            say(f"making {source.file or source.arch} {depths or ''}")
            subject = make_subject(source, Namespace(**vars(args) | {"layers": depths}), device)
            if not hasattr(subject.model, "encoder") or subject.batch.sample["net_input"]["src_tokens"].dim() > 2:
                raise UserError(f"{source.file} does not translate text, which is what is timed here")
            encoder, decoder = stacks(subject.model)
            words = subject.model.decoder.dictionary
            label = _label(source, subject.label, chosen)
            found.append(prepare(subject, words, label, (len(encoder), len(decoder)), args.beam, args.target_tokens))
    return found


def _label(source: ModelSource, label: str, chosen: list[ModelSource]) -> str:
    alike = [other for other in chosen if other.arch == source.arch]
    return f"{label} ({source.name})" if len(alike) > 1 else label


def _draw(args: Namespace, found: list[Timed]) -> Any:
    panels = [
        (stack, points)
        for stack, numbers in (("encoder", args.encoder_layers), ("decoder", args.decoder_layers))
        if (points := [t for t in found if _belongs(t, stack, numbers, args.fixed)])
    ] or [("encoder", found)]
    figure, axes = plots.new_figure(1, len(panels), height=2.2, sharey=True)
    labels = {t.label: t.wiring for t in found}
    styles = dict(zip(labels, plots.line_styles(labels.values()), strict=True))
    for (stack, points), panel in zip(panels, axes[0], strict=True):
        other = "decoder" if stack == "encoder" else "encoder"
        for label in labels:
            own = sorted((t for t in points if t.label == label), key=lambda t: getattr(t, f"{stack}_layers"))
            x = [getattr(t, f"{stack}_layers") for t in own]
            middle = [t.speeds()[0] for t in own]
            spread = [[m - t.speeds()[1] for m, t in zip(middle, own, strict=True)]]
            spread += [[t.speeds()[2] - m for m, t in zip(middle, own, strict=True)]]
            line = styles[label] | {"marker": styles[label]["marker"] or ".", "markersize": 4, "markevery": None}
            panel.errorbar(x, middle, spread, label=label, capsize=2, elinewidth=0.8, **line)
        title = f"{args.fixed} {other} layers" if not args.checkpoint else ""
        plots.finish(panel, f"{stack} layers", "target tokens / s" if panel is axes[0][0] else "", title, whole_x=True)
        panel.set_ylim(bottom=0)
    plots.legend(figure, axes[0][0])
    return figure


def _belongs(timed: Timed, stack: str, numbers: list[int], fixed: int) -> bool:
    own, other = timed.encoder_layers, timed.decoder_layers
    if stack == "decoder":
        own, other = other, own
    return own in numbers and other == fixed
