"""``fairseq-residuals linearize CHECKPOINT... --data DIR``: what each layer's non-linearity is worth."""

from __future__ import annotations

import argparse
import itertools
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils

from fairseq_residuals.analysis import plots
from fairseq_residuals.analysis.linearize import fit, replaced, train
from fairseq_residuals.analysis.models import ModelSource, device_of, label_and_wiring, load
from fairseq_residuals.analysis.output import add_output_flags, check_folder, write
from fairseq_residuals.analysis.subject import stacks
from fairseq_residuals.analysis.training_data import Corpus, Sample
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.scoring.metrics import make_metric
from fairseq_residuals.scoring.text import UNKNOWN
from fairseq_residuals.utils.progress import say
from fairseq_residuals.utils.tables import Cell, text_table

HELP = "replace each layer of a trained model in turn by a linear map fitted to it, and measure the loss or BLEU"
HEAD = ("model", "wiring", "stack", "layer", "metric", "value", "change_percent", "explained")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoints", nargs="+", type=Path, metavar="CHECKPOINT", help="of translation, of this plugin"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the corpus that it was trained on")
    parser.add_argument("--split", default="valid", metavar="NAME", help="to score on (%(default)s)")
    parser.add_argument("--metric", choices=("loss", "bleu"), default="loss", help="bits per token, or tokenized BLEU")
    parser.add_argument("--sentences", type=int, default=64, metavar="N", help="in a batch (%(default)s)")
    parser.add_argument("--fit", type=int, default=50, metavar="N", help="training batches for the fit (%(default)s)")
    parser.add_argument(
        "--updates", type=int, default=0, metavar="N", help="of training the map by the model's loss (%(default)s)"
    )
    parser.add_argument("--lr", type=float, default=1e-4, metavar="X", help="of these (%(default)s)")
    parser.add_argument("--beam", type=int, default=4, metavar="N", help="for BLEU (%(default)s)")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="for BLEU (%(default)s)")
    parser.add_argument("--remove-bpe", default="@@ ", metavar="TEXT", help="for BLEU (%(default)r)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of training data (%(default)s)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    parser.set_defaults(layers=None, dim=None, ffn_dim=None, heads=None)
    add_output_flags(parser, "linearize")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: a checkpoint cannot be used, or there are no such data.
    """
    check_folder(args)
    for flag, least in {"sentences": 1, "fit": 1, "updates": 0, "beam": 1}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} must be at least {least}, not {getattr(args, flag)}")
    measured = [_measure(file, args) for file in args.checkpoints]
    titles = Counter(model.label for model in measured)
    for model, file in zip(measured, args.checkpoints, strict=True):
        if titles[model.label] > 1:
            model.label += f" ({file.parent.name}/{file.name})"
    rows = [[model.label, model.wiring, *row] for model in measured for row in model.rows]
    for model in measured:
        print(f"{model.label}\n{text_table(*model.table())}\n")
    write(args, _draw(args, measured), HEAD, rows)
    return 0


@dataclass
class LinearizedModel:
    """At one checkpoint."""

    label: str
    wiring: str
    rows: list[list[Cell]]
    """The columns of HEAD from the stack on; the first is the whole model."""

    def change(self, stack: str) -> list[float]:
        """Return the change of each layer in percent; nan where the whole model has nothing to lose."""
        return [math.nan if row[4] is None else float(row[4]) for row in self.rows if row[0] == stack]

    def table(self) -> tuple[list[str], list[list[Cell]]]:
        """Return the paper's table: a row per layer, a pair of columns per stack."""
        metric, whole = str(self.rows[0][2]), self.rows[0][3]
        found = list(dict.fromkeys(str(row[0]) for row in self.rows[1:]))
        by_place = {(row[0], row[1]): row for row in self.rows}
        depth = max(int(row[1] or 0) for row in self.rows[1:])
        lines: list[list[Cell]] = [["none", *itertools.chain.from_iterable((whole, 0.0, None) for _ in found)]]
        for layer in range(1, depth + 1):
            cells = (by_place.get((stack, layer)) for stack in found)
            lines.append([str(layer), *itertools.chain.from_iterable(row[3:] if row else [None] * 3 for row in cells)])
        head = [[f"{stack} {metric}", "change (%)", "explained"] for stack in found]
        return ["layer", *itertools.chain.from_iterable(head)], lines


def _measure(file: Path, args: Namespace) -> LinearizedModel:
    model, settings, task = load(ModelSource(file=file), args)
    if not hasattr(model, "encoder") or getattr(settings, "input_feat_per_channel", None):
        raise UserError(f"{file} is no model of translation, which linearize is for")
    model.to(device_of(args.device))
    for stack in stacks(model):
        stack.run_plainly()
    corpus = Corpus(args, task, model)
    move = _mover(args)
    samples = [move(s) for s in itertools.islice(corpus.train(args.seed), args.fit)]
    held_out = [move(s) for s in corpus.valid(most=None)]
    padding = task.target_dictionary.pad()
    score = _bleu(model, task, args) if args.metric == "bleu" else lambda found: _loss(model, found, padding)
    whole = score(held_out)
    rows: list[list[Cell]] = [["whole model", None, args.metric, whole, 0.0, None]]
    for stack in stacks(model):
        for i in range(len(stack)):
            mapping = fit(model, stack[i], samples)
            if args.updates:
                stream = map(move, corpus.train(args.seed))
                train(model, stack[i], mapping, stream, lambda s: _nll(model, s, padding), args.updates, args.lr)
            with replaced(stack[i], mapping):
                value = score(held_out)
            change = 100 * (value - whole) / whole if whole else None
            say(f"{file}: {stack.shape.stack} layer {i + 1}: {args.metric} {value:.4g} for {whole:.4g}")
            rows.append([stack.shape.stack, i + 1, args.metric, value, change, mapping.explained])
    return LinearizedModel(*label_and_wiring(settings), rows)


def _mover(args: Namespace) -> Callable[[Sample], Sample]:
    device = device_of(args.device)
    return lambda sample: utils.apply_to_sample(lambda t: t.to(device), sample)


def _nll(model: Any, sample: Sample, padding: int) -> torch.Tensor:
    """Return nats per token."""
    logits = model(**sample["net_input"])[0]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), sample["target"].flatten(), ignore_index=padding
    )


@torch.no_grad()
def _loss(model: Any, samples: list[Sample], padding: int) -> float:
    tokens = [int(s["target"].ne(padding).sum()) for s in samples]
    losses = [_nll(model, s, padding).item() * n for s, n in zip(samples, tokens, strict=True)]
    return sum(losses) / sum(tokens) / math.log(2)


def _bleu(model: Any, task: Any, args: Namespace) -> Callable[[list[Sample]], float]:
    search = Namespace(beam=args.beam, lenpen=args.lenpen, max_len_a=1.5, max_len_b=10)
    generator = task.build_generator([model], search)
    words = task.target_dictionary
    bpe = args.remove_bpe or None

    @torch.no_grad()
    def score(samples: list[Sample]) -> float:
        metric = make_metric("tokenized_bleu")
        totals: list[float] = []
        for sample in samples:
            found = task.inference_step(generator, [model], sample)
            for hypotheses, target in zip(found, sample["target"], strict=True):
                reference = words.string(utils.strip_pad(target, words.pad()).int().cpu(), bpe, unk_string=UNKNOWN)
                hypothesis = words.string(hypotheses[0]["tokens"].int().cpu(), bpe)
                statistics = metric.statistics(hypothesis, reference)
                totals = [a + b for a, b in zip(totals, statistics, strict=True)] if totals else statistics
        return metric.values(totals)[metric.name]

    return score


def _draw(args: Namespace, measured: list[LinearizedModel]) -> Any:
    found = list(dict.fromkeys(str(row[0]) for model in measured for row in model.rows[1:]))
    figure, axes = plots.new_figure(1, len(found), height=2.2, sharey=True)
    styles = plots.line_styles(model.wiring for model in measured)
    for stack, panel in zip(found, axes[0], strict=True):
        panel.axhline(0, color="0.35", linewidth=0.8)
        for model, style in zip(measured, styles, strict=True):
            changes = model.change(stack)
            line = style | {"marker": style["marker"] or ".", "markersize": 4, "markevery": None}
            panel.plot(range(1, len(changes) + 1), changes, label=model.label, **line)
        y = "BLEU" if args.metric == "bleu" else "loss"
        plots.finish(panel, f"{stack} layer", f"change of {y} (%)" if panel is axes[0][0] else "", whole_x=True)
    plots.legend(figure, axes[0][0])
    return figure
