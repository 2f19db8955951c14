"""``fairseq-residuals diagnose LOG``: whether a run learned, and if not, what happened and what to try.

A log is judged by its losses, beside the unigram loss: that of a model which knows only how frequent each token is. A
run whose loss stays there has learned nothing else. The training data tell it; without them it is estimated by Zipf's
law from the size of the dictionary, and where the log does not say that, the loss at the beginning takes its place.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fairseq_residuals.lab.look.output import MISTAKE_STATUS
from fairseq_residuals.lab.look.training_log import EPOCH, TRAIN, VALID, Log, end_of, read_log
from fairseq_residuals.lab.utils.tables import show
from fairseq_residuals.plugin.progress import quiet
from fairseq_residuals.wirings.core.errors import UserError

HELP = "say whether a run learned, diverged, overfits or stopped, by its log; and what to try"
HEALTHY, DIVERGED, NOT_LEARNED, OVERFITS = "healthy", "diverged", "did not learn", "overfits"
STOPPED, UNKNOWN = "stopped by an error", "cannot judge"
"""Verdicts."""
DID_NOT_LEARN_ABOVE = 0.9
"""Share of the unigram loss above which a validation loss is that of a model that did not learn.

The demo's Post-LN, which has a BLEU of 0, ends at 91% to 96%, by processor.
"""
START_SHARE = 0.95
"""Share of the first loss; a run that ends above it stood still."""
FALLS = 0.98
"""Share of the loss three quarters through the log; below it the loss still falls."""
RISE = 1.1
"""Multiple of the lowest validation loss; above it a run whose training loss still falls overfits."""
BAND = 10.0
"""A layer's gradient norm is out of its band at this factor above or below the median of those before."""
MEMORY = 10
"""Number of norms, in band, that the median is taken of; at least three."""
VANISHING = 1e-2
"""Share of the top layer's gradient norm; below it the bottom layer hardly learns."""
MOST_TYPES = 1_000_000
"""Most types of a dictionary whose unigram loss is estimated."""
LOWER_RATE = "lower --lr, raise --warmup-updates, or clip gradients (--clip-norm 1.0)"
OTHER_WIRING = (
    "choose a wiring whose gradients do not pass a norm in every layer: --residual b2t, pre_ln or resi_dual; or one"
    " that keeps residuals large: deepnet, admin"
)
COMPARE = "`fairseq-residuals compare` tries wirings and rates side by side"
LESS_FITTED = "raise --dropout or --weight-decay, train on more data, or for fewer updates"
SEE_LAYERS = "train again with --log-residual-stats 10, and the log will say which layer it was"
IN_BF16 = "train in --bf16 or in single precision: fp16 ends at 65504"
ERRORS = {
    "Minimum loss scale reached": (
        DIVERGED,
        "fp16 gave up: at the smallest loss scale allowed, gradients still overflowed, so the loss exploded or a layer"
        " made numbers that fp16 cannot hold",
        (LOWER_RATE, IN_BF16),
    ),
    "gradients are Nan/Inf": (DIVERGED, "a gradient was infinite or no number, and fairseq gave up", (LOWER_RATE,)),
    "out of memory|OutOfMemory": (
        STOPPED,
        "the memory was not enough",
        ("halve --max-tokens and double --update-freq", "--checkpoint-activations keeps less per layer"),
    ),
    "No space left on device|PytorchStreamWriter failed": (
        STOPPED,
        "the disk was full",
        ("make room, and start the same command again: it goes on from checkpoint_last.pt", "--keep-last-epochs 1"),
    ),
    "inconsistent": (
        STOPPED,
        "workers had different gradients",
        ("--ddp-backend legacy_ddp", "see whether one of the GPUs makes NaN by itself"),
    ),
}
"""Verdict, sentence and advice by what the line of an error has."""

_NAN_MODULE = re.compile(r"(?P<what>NaN|Inf) detected in output of (?P<module>[\w.]*), (?P<rest>.*)")
_NORM_OF_LAYER = re.compile(r"gnorm/(?P<stack>encoder|decoder)\.\w+\.(?P<layer>\d+)$")
Place = tuple[str, int]
"""Stack, and layer counted from 1."""
Norms = dict[Place, dict[int, float]]
"""Gradient norms of each layer by update."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="what fairseq-train printed, best with --log-residual-stats N"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="binarized corpus of the run, whose training targets are counted"
    )
    parser.set_defaults(mistake_status=MISTAKE_STATUS)


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: the file cannot be read, or is no log."""
    log = read_log(args.log)
    print(diagnose(log, Unigram.counted(args.data, log.target) if args.data else None).text())
    return 0


@dataclass(frozen=True)
class Unigram:
    """The loss of a model that knows only how frequent each token is."""

    bits: float
    """Loss per token."""
    source: str
    """Source of the loss per token."""

    @classmethod
    def counted(cls, data: Path, target: str) -> Unigram:
        """Count the tokens of the binarized training targets in ``data``.

        Args:
            target: the target language; empty: that of the folder's name for the pair, or of a language model.

        Raises:
            UserError: the folder has no such training data.
        """
        path = target_file(data, "train", target)
        counts = token_counts(path)
        total = counts.total()
        if len(counts) < 2:
            raise UserError(f"--data {data}: the targets of its training data have less than two types of tokens")
        bits = -sum(n / total * math.log2(n / total) for n in counts.values())
        return cls(bits, f"counted in {path}")

    @classmethod
    def estimated(cls, types: int) -> Unigram:
        """Estimate it for a dictionary of so many types whose frequencies follow Zipf's law."""
        frequencies = 1 / torch.arange(1, min(types, MOST_TYPES) + 1, dtype=torch.float64)
        shares = frequencies / frequencies.sum()
        bits = -(shares * shares.log2()).sum().item()
        return cls(bits, f"estimated for a dictionary of {types:,} types; --data DIR counts it")


def target_file(data: Path, split: str, target: str = "") -> Path:
    """Return the file, without its ending, of the tokens that a model of this binarized folder learns to predict.

    Args:
        target: as for :meth:`Unigram.counted`.

    Raises:
        UserError: the folder has none.
    """
    found = sorted(path.with_suffix("") for path in data.glob(f"{split}*.idx"))
    names = [path for path in found if re.fullmatch(rf"{split}(\..*\.{target}|\.\w+-(\w+)\.\2)?", path.name)]
    named = [path for path in names if target and path.suffix == f".{target}"] or names
    if not named:
        raise UserError(f"--data {data} has no binarized targets of {split}; fairseq-preprocess makes them")
    return named[0]


def token_counts(path: Path) -> Counter[int]:
    """Return how often each token occurs in a binarized file, whose name is without its ending."""
    from fairseq.data.data_utils import load_indexed_dataset

    with quiet():
        return Counter(token for line in load_indexed_dataset(str(path)) for token in line.tolist())


@dataclass
class Diagnosis:
    """A verdict and its reasons."""

    verdict: str = UNKNOWN
    happened: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def advise(self, *sentences: str) -> None:
        """Add advice that is not given yet."""
        self.advice += [sentence for sentence in sentences if sentence not in self.advice]

    def end(self, verdict: str, sentence: str, *advice: str) -> str:
        """Return a verdict, after its reason and advice are added."""
        self.happened.append(sentence)
        self.advise(*advice)
        return verdict

    def text(self) -> str:
        """Return the report for the terminal."""
        sections = {"What happened": self.happened, "Where": self.where, "What to try": self.advice}
        lines = [f"Verdict: {self.verdict}"]
        for title, sentences in sections.items():
            lines += [title, *(f"  - {sentence}" for sentence in sentences)] if sentences else []
        return "\n".join(lines)


def diagnose(log: Log, unigram: Unigram | None = None) -> Diagnosis:
    """Return everything that a log tells.

    Args:
        unigram: None: it is estimated where the log says how large the dictionary is.
    """
    if unigram is None and log.dictionary > 1:
        unigram = Unigram.estimated(log.dictionary)
    found = Diagnosis()
    if log.restarts:
        times = "once" if log.restarts == 1 else f"{log.restarts} times"
        found.happened.append(
            f"the run broke off before its first checkpoint and began anew {times}; this is of the last"
        )
    _overflows(log, found)
    failures = [_no_numbers(log, found), _divergence(log, found), _errors(log, found)]
    found.verdict = next(filter(None, failures), "") or _judge(log, found, unigram)
    if found.verdict == DIVERGED or (found.verdict == NOT_LEARNED and not found.advice):
        norms = _norms(log)
        _layers_out_of_band(norms, found)
        _vanishing(norms, found)
        if found.verdict == NOT_LEARNED:
            found.advise(LOWER_RATE, COMPARE)
        if not norms:
            found.advise(SEE_LAYERS)
    return found


def losses(log: Log, subset: str) -> dict[int, float]:
    """Return losses by update, without label smoothing where the log has them so; empty where none was logged.

    Validation on a subset of another name is validation too: the first that was logged.
    """
    others = dict.fromkeys(r.subset for r in log.records if r.subset not in (TRAIN, EPOCH))
    for name in (TRAIN, EPOCH) if subset == TRAIN else (subset, *others):
        for metric in ("nll_loss", "loss"):
            if found := log.values(metric, name):
                return found
    return {}


def _judge(log: Log, found: Diagnosis, unigram: Unigram | None) -> str:
    """Return the verdict on a run with neither an error nor a loss that exploded."""
    train, valid = losses(log, TRAIN), losses(log, VALID)
    update = max((record.update for record in log.records), default=0)
    if log.finished:
        found.happened.append(f"training came to its end at update {update}")
    elif train or valid:
        found.happened.append(
            f"the log ends after update {update} without an error: training still runs, or was killed from outside (out"
            " of time, out of main memory)"
        )
    if len(train) < 4 and len(valid) < 3:
        few = f"{len(train)} training losses and {len(valid)} validation losses are too little"
        return found.end(UNKNOWN, few, "log more often: --log-interval 10")
    curve = train or valid
    name = "training" if train else "validation"
    start, end = next(iter(curve.values())), end_of(curve)
    best = min(valid.values()) if valid else end
    found.happened.append(f"the {name} loss went from {show(start)} to {show(end)}")
    if valid and train:
        found.happened[-1] += f"; the last validation loss is {show(list(valid.values())[-1])}"
    stands_still = end > START_SHARE * start
    if unigram:
        share = f"{best / unigram.bits:.0%} of the unigram loss, {unigram.bits:.2f} bits per token ({unigram.source})"
        found.happened.append(f"the {'lowest validation' if valid else name} loss is {share}")
        stuck = best > DID_NOT_LEARN_ABOVE * unigram.bits
    else:
        from_scratch = not log.resumed and next(iter(curve)) <= update / 5
        stuck = stands_still and from_scratch
    if without_updates := _without_updates(log, found, stuck or stands_still):
        return without_updates
    if stuck and train and unigram and end < unigram.bits / 2:
        found.advise(LESS_FITTED, "validation data may be of another kind than the training data")
        return OVERFITS
    if stuck and end < FALLS * list(curve.values())[3 * len(curve) // 4]:
        return found.end(UNKNOWN, "the loss still falls: it is too early", "train for more updates")
    if stuck:
        return NOT_LEARNED
    if unigram is None and stands_still:
        return found.end(
            UNKNOWN,
            "the log is of a later part of training and does not say how large the dictionary is: with --data DIR, it"
            " can be told whether the loss stays there because all is learned or because nothing is",
        )
    lowest_at = min(valid, key=lambda u: valid[u], default=0)
    if valid and list(valid.values())[-1] > RISE * best:
        later = {u: v for u, v in train.items() if u >= lowest_at}
        if later and end < next(iter(later.values())):
            rose = f"the validation loss rose from {show(best)} at update {lowest_at}"
            remark = "checkpoint_best.pt is the model before it; --patience ends such a run"
            return found.end(OVERFITS, rose, LESS_FITTED, remark)
    return found.end(HEALTHY, "nothing in the log is out of order")


def _without_updates(log: Log, found: Diagnosis, did_not_fall: bool) -> str:
    """Look for a learning rate or, beside a loss that did not fall, a gradient norm of 0."""
    rates, norms = (
        [r.values[metric] for r in log.records if r.subset in (TRAIN, EPOCH) and metric in r.values]
        for metric in ("lr", "gnorm")
    )
    if rates and not any(rates):
        sentence = "the learning rate was 0 in every record: the model did not change"
        return found.end(NOT_LEARNED, sentence, "see --lr, --lr-scheduler and --warmup-updates")
    if did_not_fall and norms and not any(norms[-max(1, len(norms) // 4) :]):
        sentence = "the gradient norm was 0 at the end: no gradient reached any parameter"
        causes = "see whether parameters are frozen, targets are all padding, or fp16 rounds gradients to 0"
        return found.end(NOT_LEARNED, sentence, causes)
    return ""


def _norms(log: Log) -> Norms:
    found: Norms = {}
    # an epoch may be shorter than --log-interval
    logged = {r.subset for r in log.records if any(map(_NORM_OF_LAYER.match, r.values))}
    for record in log.records:
        if record.subset == (TRAIN if TRAIN in logged else EPOCH):
            for name, value in record.values.items():
                if layer := _NORM_OF_LAYER.match(name):
                    found.setdefault((layer["stack"], int(layer["layer"]) + 1), {})[record.update] = value
    ordered = sorted(found.items(), key=lambda item: (item[0][0] != "encoder", item[0][1]))
    # in some updates layer dropout leaves a layer no gradient
    return {place: {u: v for u, v in curve.items() if v} or curve for place, curve in ordered}


def _overflows(log: Log, found: Diagnosis) -> None:
    # the last logged update before each
    overflows = [update for update, line in log.troubles if "overflow detected" in line]
    if not overflows:
        return
    first, latest = overflows[0], overflows[-1]
    many = f"{len(overflows)} gradients overflowed, the first after update {first}, the last after {latest}"
    gave_up = any("Minimum loss scale" in line for _, line in log.troubles)
    # a loss scale that starts too large is halved until it fits: fp16 always begins so
    harmless = not gave_up and (log.finished or latest < 0.9 * max((r.update for r in log.records), default=0))
    found.happened.append(many + (", which fp16 does while it looks for its loss scale" if harmless else ""))
    if not harmless:
        small = "where a stream grows with depth, keep it small: ResiDual has --residual-args scale=0.05 for this"
        found.advise(IN_BF16, LOWER_RATE, small)


def _no_numbers(log: Log, found: Diagnosis) -> str:
    module = next(filter(None, (_NAN_MODULE.search(line) for _, line in log.troubles)), None)
    if module:
        way = "backward" if "backward" in module["rest"] else "forward"
        found.where.append(f"{module['what']} came first out of {module['module'] or 'the model'}, in the {way} pass")
    metrics = ("loss", "nll_loss", "gnorm")
    broken = [r for r in log.records if not all(math.isfinite(r.values.get(k, 0.0)) for k in metrics)]
    if not broken:
        return ""
    first = min(broken, key=lambda r: r.update)
    what = next(name for name in metrics if not math.isfinite(first.values.get(name, 0.0)))
    before = [(u, v) for u, v in losses(log, TRAIN).items() if u < first.update and math.isfinite(v)]
    since = f"; the training loss was {show(before[-1][1])} at update {before[-1][0]} before" if before else ""
    return found.end(
        DIVERGED,
        f"the {what} of {first.subset} was {first.values[what]} at update {first.update}{since}",
        *(LOWER_RATE, "start again from the last checkpoint before it (--restore-file), with another --seed"),
    )


def _errors(log: Log, found: Diagnosis) -> str:
    latest = math.inf if log.finished else max((record.update for record in log.records), default=0)
    for pattern, (verdict, sentence, advice) in ERRORS.items():
        line = next(((u, text) for u, text in reversed(log.troubles) if re.search(pattern, text)), None)
        if line and latest > line[0]:
            # of a batch that it leaves out fairseq warns; a line of Python's own ended the process, which was resumed
            left_out = "memory" in pattern and not re.match(r"[\w.]+Error: ", line[1])
            then = "for a batch, which fairseq left out" if left_out else "and training went on later"
            found.end(verdict, f"after update {line[0]} {sentence} {then}", *(advice if "memory" in pattern else ()))
        elif line:
            return found.end(verdict, f"after update {line[0]} training ended: {sentence}", *advice)
    others = [(u, text) for u, text in log.troubles if not re.search("overflow|detected|nan/inf|memory", text)]
    if others and latest == others[-1][0]:
        update, text = next((u, text) for u, text in others if u == latest)
        return found.end(STOPPED, f"after update {update} training ended with an error: {text[:200]}")
    return ""


def _divergence(log: Log, found: Diagnosis) -> str:
    """Look for a training loss that rises, and a validation loss that rises where that does not fall."""
    curves = {name: {u: v for u, v in losses(log, name).items() if math.isfinite(v)} for name in (TRAIN, VALID)}
    for name, least in ((TRAIN, 4), (VALID, 2)):
        curve = curves[name]
        if len(curve) < least:
            continue
        best_at = min(curve, key=lambda u: curve[u])
        start, best, last = next(iter(curve.values())), curve[best_at], end_of(curve)
        train = [v for u, v in curves[TRAIN].items() if u >= best_at]
        if name == VALID and len(train) > 1 and train[-1] < train[0]:
            continue  # it overfits
        if last > best + max(1.0, 0.25 * abs(best)) or (name == TRAIN and last * START_SHARE > start > 0):
            which = "the loss" if name == TRAIN else "the validation loss"
            course = f"it was {show(best)} at update {best_at} and {show(last)} at the end"
            spikes = "if it spikes again and again, raise Adam's epsilon (--adam-eps 1e-6) or lower its beta2"
            return found.end(DIVERGED, f"{which} diverged: {course}", LOWER_RATE, spikes)
    return ""


def _layers_out_of_band(norms: Norms, found: Diagnosis) -> None:
    left = {place: end for place, curve in norms.items() if (end := ends_out_of_band(curve))}
    if not left:
        if norms and found.verdict == DIVERGED:
            found.where.append(
                f"no layer's gradient norm left its band (a factor of {BAND:.0f} around the norms before): what"
                " happened was sudden, or in the embeddings or the output layer"
            )
        return
    earliest = min(update for update, _ in left.values())
    first = [place for place, (update, _) in left.items() if update == earliest]
    names = ", ".join(f"{stack} layer {layer}" for stack, layer in first[:4])
    more = f" and {len(first) - 4} more" if len(first) > 4 else ""
    how, value = left[first[0]][1], norms[first[0]][earliest]
    found.where.append(
        f"the gradient norm of {names}{more} left its band first, at update {earliest}: it {how} ({show(value)})"
    )
    if later := len(left) - len(first):
        found.where.append(f"{later} further layer{'s' * (later > 1)} followed")
    if how.startswith("collapsed"):
        found.advise(OTHER_WIRING)


def _vanishing(norms: Norms, found: Diagnosis) -> None:
    for stack in dict.fromkeys(stack for stack, _ in norms):
        layers = [curve for (s, _), curve in norms.items() if s == stack]
        for update in (next(iter(layers[0])), next(reversed(layers[0]))):
            if sentence := vanishing_sentence(stack, [curve.get(update, 0.0) for curve in layers]):
                found.where.append(f"at update {update} {sentence}")
                found.advise(OTHER_WIRING)
                break


def ends_out_of_band(curve: Mapping[int, float]) -> tuple[int, str] | None:
    """Return since which update the norm has been out of its band, and how; None where it ends inside."""
    memory: list[float] = []
    since: tuple[int, str] | None = None
    for update, value in curve.items():
        middle = statistics.median(memory) if len(memory) >= 3 else None
        if not math.isfinite(value):
            since = since or (update, "was no longer a number")
        elif middle is not None and value > BAND * middle:
            since = since or (update, f"exploded to {value / middle:.0f} times the median of those before")
        elif middle is not None and value * BAND < middle:
            since = since or (update, f"collapsed to {middle / value:.0f} times less than the median of those before")
        else:
            since = None
            memory = [*memory, value][-MEMORY:]
    return since


def vanishing_sentence(stack: str, norms: Sequence[float]) -> str:
    """Say that gradients vanish on their way down a stack; empty where they do not.

    Args:
        norms: of the layers' gradients, from the bottom.
    """
    if len(norms) < 2 or not all(map(math.isfinite, norms)) or norms[0] >= VANISHING * norms[-1]:
        return ""
    if not norms[0]:
        return f"no gradient at all reached the bottom of the {stack}"
    per_layer = (norms[0] / norms[-1]) ** (1 / (len(norms) - 1))
    return (
        f"gradients vanished in the {stack}: from {show(norms[-1])} in layer {len(norms)} to {show(norms[0])} in"
        f" layer 1, by a factor of {per_layer:.2f} per layer"
    )
