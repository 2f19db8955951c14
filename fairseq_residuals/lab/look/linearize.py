"""``fairseq-residuals linearize CHECKPOINT... --data DIR``: what each layer's non-linearity is worth.

A trained layer is replaced by a linear map of what it reads, everything else as it was. Xu et al. 2020, "Transformer
with Depth-Wise LSTM", section 4: y = F(x) becomes y = W x + b. Where a layer hands more up than x (ResiDual's sum, an
LSTM's cell), x and y are all of it: the tensors (T, B, C) of the stream that the layer reads, which autograd tells, and
that it writes. What else it would add (attention scores) is left out.

W and b start as the least squares fit of the layer's outputs on training data; further training minimises the model's
loss, with all of its own parameters frozen.
"""

from __future__ import annotations

import argparse
import itertools
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_residuals.lab.look import batches
from fairseq_residuals.lab.look.batches import Batch
from fairseq_residuals.lab.look.models import label_and_wiring, load
from fairseq_residuals.lab.look.output import ByLayer, add_output_flags, check_folder, draw_by_layer, write
from fairseq_residuals.lab.look.probes import replaced, stacks
from fairseq_residuals.lab.look.subjects import device_of, distinct
from fairseq_residuals.lab.utils.tables import Cell, markdown_table
from fairseq_residuals.plugin.progress import say
from fairseq_residuals.plugin.scoring.metrics import make_metric
from fairseq_residuals.plugin.scoring.text import UNKNOWN
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context, Layer

Sample = dict[str, Any]
"""A batch as fairseq's data sets make it."""
RANK = 1e-10
"""Directions in which the input varies less than this share of the most are not fitted: norms leave such."""


@dataclass
class LinearMap:
    """Stands for a layer."""

    reads: list[str]
    writes: list[str]
    weight: Tensor
    """(channels in + 1, channels out); the last row is b."""
    explained: float = 0.0
    """The share of the variance of "x" after the layer, on the data of the fit."""

    def __call__(self, s: Stream, context: Context) -> tuple[Stream, None]:
        x = torch.cat([s[key] for key in self.reads], -1)
        y = (x @ self.weight[:-1] + self.weight[-1]).to(s["x"].dtype)
        parts = y.split([y.size(-1) // len(self.writes)] * len(self.writes), -1)
        return s | dict(zip(self.writes, parts, strict=True)), None


def fit(model: Any, layer: Layer, samples: Sequence[Sample]) -> LinearMap:
    """Return the least squares fit of the layer on these batches, padding left out; in double precision."""
    reads: list[str] = []
    writes: list[str] = []
    moments: list[Tensor] = []

    def see(module: Any, inputs: tuple[Stream, Context], output: tuple[Stream, Any]) -> None:
        before, after = inputs[0], output[0]
        if not writes:
            writes.extend(key for key in after if _like_x(after, key) and after[key] is not before.get(key))
            reads.extend(_read_by(module, *inputs, writes))
        padding = inputs[1].padding_mask
        keep = torch.ones_like(before["x"][..., 0], dtype=torch.bool) if padding is None else ~padding.T
        x = torch.cat([before[key][keep] for key in reads], -1).double()
        x = torch.cat([x, torch.ones_like(x[:, :1])], -1)
        y = torch.cat([after[key][keep] for key in writes], -1).double()
        made = [x.T @ x, x.T @ y, y.sum(0), y.square().sum(0), y.new_tensor(float(len(y)))]
        moments[:] = [old + new for old, new in zip(moments, made, strict=True)] if moments else made

    hook = layer.register_forward_hook(see)
    try:
        with torch.no_grad():
            for sample in samples:
                model(**sample["net_input"])
    finally:
        hook.remove()
    xx, xy, y_sum, y_squares, count = moments
    weight = torch.linalg.pinv(xx, hermitian=True, rtol=RANK) @ xy
    residual = y_squares - 2 * (weight * xy).sum(0) + (weight * (xx @ weight)).sum(0)
    variance = y_squares - y_sum.square() / count
    width = len(y_sum) // len(writes)
    x = slice(writes.index("x") * width, (writes.index("x") + 1) * width)
    explained = 1 - float(residual[x].sum() / variance[x].sum())
    return LinearMap(reads, writes, weight.to(model.decoder.embed_tokens.weight.dtype), explained)


def _like_x(s: Stream, key: str) -> bool:
    return s[key].shape == s["x"].shape


def _read_by(layer: Layer, s: Stream, context: Context, writes: list[str]) -> list[str]:
    """Return the keys on which what the layer writes depends."""
    with torch.enable_grad():
        inputs = {key: s[key].detach().requires_grad_() for key in s if _like_x(s, key)}
        # not the module itself: that would call the hook which asks
        after, _ = type(layer).forward(layer, s | inputs, context)
        total = torch.stack([after[key].sum() for key in writes if after[key].requires_grad]).sum()
        gradients = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    return [key for key, gradient in zip(inputs, gradients, strict=True) if gradient is not None]


def train(
    layer: Layer,
    mapping: LinearMap,
    samples: Iterator[Sample],
    loss_of: Callable[[Sample], Tensor],
    updates: int,
    lr: float,
) -> None:
    """Train ``mapping`` by Adam on the model's loss; the model's own parameters stay as they are."""
    mapping.weight.requires_grad_()
    optimizer = torch.optim.Adam([mapping.weight], lr=lr)
    with replaced(layer, "forward", mapping):
        for _ in range(updates):
            (mapping.weight.grad,) = torch.autograd.grad(loss_of(next(samples)), mapping.weight)
            optimizer.step()
    mapping.weight.requires_grad_(False)


HELP = "replace each layer of a trained model in turn by a linear map fitted to it, and measure the loss or BLEU"
HEAD = ("model", "wiring", "stack", "layer", "metric", "value", "change_percent", "explained")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoints", nargs="+", type=Path, metavar="CHECKPOINT", help="of translation, of this plugin"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the corpus that it was trained on")
    parser.add_argument("--split", default="valid", metavar="NAME", help="to score on (%(default)s)")
    parser.add_argument("--metric", choices=("loss", "bleu"), default="loss", help="bits per token, or BLEU (loss)")
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
    add_output_flags(parser, "linearize")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: a checkpoint cannot be used, or there are no such data."""
    check_folder(args)
    for flag, least in {"sentences": 1, "fit": 1, "updates": 0, "beam": 1}.items():
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} must be at least {least}, not {getattr(args, flag)}")
    rows: list[list[Cell]] = []
    drawn: list[tuple[str, str, ByLayer]] = []
    taken: set[str] = set()
    for file in args.checkpoints:
        title, wiring, measured = _measure(file, args)
        label = distinct(title, f"{file.parent.name}/{file.name}", taken)
        rows += [[label, wiring, *row] for row in measured]
        changes: ByLayer = {}
        for stack, _, _, _, change, _ in measured[1:]:
            # nan where the whole model has nothing to lose
            changes.setdefault(str(stack), []).append(math.nan if change is None else float(change))
        drawn.append((label, wiring, changes))
    print(markdown_table(HEAD, rows, left=3))
    figure, panels = draw_by_layer(drawn, f"change of {'BLEU' if args.metric == 'bleu' else 'loss'} (%)")
    for panel in panels:
        panel.axhline(0, color="0.35", linewidth=0.8)
    write(args, figure, HEAD, rows)
    return 0


def _measure(file: Path, args: Namespace) -> tuple[str, str, list[list[Cell]]]:
    """Return the title and the name of a model's wiring, and the columns of HEAD from the stack on.

    The first row is the whole model; in each other, one layer is replaced.
    """
    model, settings, task = load(file, args.data)
    if not hasattr(model, "encoder") or getattr(settings, "input_feat_per_channel", None):
        raise UserError(f"{file} is no model of translation, which linearize is for")
    model.to(device_of(args.device))
    for name in ("train", args.split):
        batches.load_split(args, task, name)
    samples = list(itertools.islice(_training_batches(args, task, model), args.fit))
    held_out = [
        _moved(s, args) for s in batches.epochs(args, task, model, args.split).next_epoch_itr(shuffle=False) if s
    ]
    padding = task.target_dictionary.pad()
    score = _bleu(model, task, args) if args.metric == "bleu" else lambda found: _loss(model, found, padding)
    whole = score(held_out)
    rows: list[list[Cell]] = [["whole model", None, args.metric, whole, 0.0, None]]
    for stack in stacks(model):
        for i in range(len(stack)):
            mapping = fit(model, stack[i], samples)
            if args.updates:
                stream = _training_batches(args, task, model)
                train(stack[i], mapping, stream, lambda s: Batch(s, padding).loss(model), args.updates, args.lr)
            with replaced(stack[i], "forward", mapping):
                value = score(held_out)
            change = 100 * (value - whole) / whole if whole else None
            say(f"{file}: {stack.shape.stack} layer {i + 1}: {args.metric} {value:.4g} for {whole:.4g}")
            rows.append([stack.shape.stack, i + 1, args.metric, value, change, mapping.explained])
    return *label_and_wiring(settings), rows


def _training_batches(args: Namespace, task: Any, model: Any) -> Iterator[Sample]:
    """Yield training batches on the device without end, epoch after epoch."""
    iterator = batches.epochs(args, task, model, "train")
    while True:
        yield from (_moved(sample, args) for sample in iterator.next_epoch_itr(shuffle=True) if sample)


def _moved(sample: Sample, args: Namespace) -> Sample:
    return utils.apply_to_sample(lambda tensor: tensor.to(args.device), sample)


@torch.no_grad()
def _loss(model: Any, samples: list[Sample], padding: int) -> float:
    tokens = [int(s["target"].ne(padding).sum()) for s in samples]
    losses = [Batch(s, padding).loss(model).item() * n for s, n in zip(samples, tokens, strict=True)]
    return sum(losses) / sum(tokens) / math.log(2)


def _bleu(model: Any, task: Any, args: Namespace) -> Callable[[list[Sample]], float]:
    # else as fairseq-generate does, whose BLEU this is to be for the whole model
    generator = task.build_generator([model], Namespace(beam=args.beam, lenpen=args.lenpen))
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
