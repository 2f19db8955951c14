"""Say why a run diverged or failed, from its log: what happened, where, and what to try."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field

from fairseq_residuals.analysis.bands import BAND, ends_out_of_band, vanishing_sentence
from fairseq_residuals.analysis.training_log import EPOCH, TRAIN, VALID, Log
from fairseq_residuals.utils.tables import show

STILL = 0.01
"""A loss that changes by no more than this share of it stands still."""
LOWER_RATE = "lower --lr, raise --warmup-updates, or clip gradients (--clip-norm 1.0)"
OTHER_WIRING = (
    "choose a wiring whose gradients do not pass a norm in every layer: --residual b2t, pre_ln or resi_dual; or one"
    " that keeps residuals large: deepnet, admin; `fairseq-residuals race` tries them side by side"
)
SEE_LAYERS = "train again with --log-residual-stats 10, and the log will say which layer it was"

_SCALE = re.compile(r"scale to(?: to)?:? (?P<scale>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\S)")
_NAN_MODULE = re.compile(r"(?P<what>NaN|Inf) detected in output of (?P<module>[\w.]*), .*?(?P<way>forward|backward)")
_LAYER = re.compile(r"gnorm/(?P<stack>encoder|decoder)\.\w+\.(?P<layer>\d+)$")
Place = tuple[str, int]
"""Stack, and layer counted from 1."""


@dataclass
class Diagnosis:
    """Sentences, and the numbers that they are about."""

    happened: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    norms: dict[Place, dict[int, float]] = field(default_factory=dict)
    """Gradient norms of each layer by update."""
    left: dict[Place, tuple[int, str]] = field(default_factory=dict)
    """Of layers that ended out of their band: since which update, and how."""
    scales: list[tuple[int, float]] = field(default_factory=list)
    """Updates, and the loss scale of fp16 where it changed."""
    overflows: list[int] = field(default_factory=list)
    """The last logged update before each overflow."""

    def advise(self, *sentences: str) -> None:
        self.advice += [sentence for sentence in sentences if sentence not in self.advice]

    def text(self) -> str:
        """Return the report for the terminal."""
        sections = {"What happened": self.happened, "Where": self.where, "What to try": self.advice}
        lines = []
        for title, sentences in sections.items():
            if sentences:
                lines += [title, *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)


def diagnose(log: Log) -> Diagnosis:
    """Return everything that a log tells."""
    found = Diagnosis()
    if log.restarts:
        times = "once" if log.restarts == 1 else f"{log.restarts} times"
        found.happened.append(
            f"the run broke off before its first checkpoint and began anew {times}; this is of the last"
        )
    found.norms = _norms(log)
    _overflows(log, found)
    failures = [_numbers_that_are_none(log, found), _errors(log, found), _divergence(log, found)]
    _layers_out_of_band(log, found, any(failures))
    vanishing = _vanishing(found)
    if not any(failures):
        _end(log, found, _stands_still(log, found, vanishing))
    if any(failures) and not found.norms:
        found.advise(SEE_LAYERS)
    return found


def last_update(log: Log) -> int:
    """Return the last that was logged."""
    return max((record.update for record in log.records), default=0)


def losses(log: Log, subset: str) -> dict[int, float]:
    """Return losses by update; empty where none was logged."""
    for name in (subset, EPOCH) if subset == TRAIN else (subset,):
        found = {r.update: r.values["loss"] for r in log.records if r.subset == name and "loss" in r.values}
        if found:
            return dict(sorted(found.items()))
    return {}


def _norms(log: Log) -> dict[Place, dict[int, float]]:
    found: dict[Place, dict[int, float]] = {}
    # an epoch may be shorter than --log-interval
    logged = {r.subset for r in log.records if any(map(_LAYER.match, r.values))}
    for record in log.records:
        if record.subset == (TRAIN if TRAIN in logged else EPOCH):
            for name, value in record.values.items():
                layer = _LAYER.match(name)
                if layer:
                    place = layer["stack"], int(layer["layer"]) + 1
                    found.setdefault(place, {})[record.update] = value
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "encoder", item[0][1])))


def _overflows(log: Log, found: Diagnosis) -> None:
    scales = [(r.update, r.values["loss_scale"]) for r in log.records if "loss_scale" in r.values]
    for update, line in log.troubles:
        if "overflow detected" in line:
            found.overflows.append(update)
            told = _SCALE.search(line)
            if told:
                scales.append((update, float(told["scale"])))
    # of one update, what was logged comes before the overflows that follow it
    for update, scale in sorted(scales, key=lambda place: place[0]):
        if not found.scales or found.scales[-1][1] != scale:
            found.scales.append((update, scale))
    if not found.overflows:
        return
    first, latest = found.overflows[0], found.overflows[-1]
    many = f"{len(found.overflows)} gradients overflowed, the first after update {first}, the last after {latest}"
    if found.scales:
        many += f"; the loss scale went from {show(found.scales[0][1])} to {show(found.scales[-1][1])}"
    gave_up = any("Minimum loss scale" in line for _, line in log.troubles)
    # a loss scale that starts too large is halved until it fits: fp16 always begins so
    harmless = not gave_up and (log.finished or latest < 0.9 * last_update(log))
    found.happened.append(many + (", which fp16 does while it looks for its loss scale" if harmless else ""))
    if not harmless:
        found.advise(
            "train in --bf16 or in single precision: fp16 ends at 65504",
            LOWER_RATE,
            "where a stream grows with depth, keep it small: ResiDual has --residual-args scale=0.05 for this",
        )


def _numbers_that_are_none(log: Log, found: Diagnosis) -> bool:
    for line in (line for _, line in log.troubles):
        module = _NAN_MODULE.search(line)
        if module:
            what = f"{module['what']} came first out of {module['module'] or 'the model'}, in the {module['way']} pass"
            found.where.append(what)
            break
    curve = losses(log, TRAIN)
    broken = [r for r in log.records if not all(math.isfinite(r.values.get(k, 0.0)) for k in ("loss", "gnorm"))]
    if not broken:
        return False
    first = min(broken, key=lambda r: r.update)
    what = next(name for name in ("loss", "gnorm") if not math.isfinite(first.values.get(name, 0.0)))
    before = [(u, v) for u, v in curve.items() if u < first.update and math.isfinite(v)]
    since = f"; the training loss was {show(before[-1][1])} at update {before[-1][0]} before" if before else ""
    found.happened.append(f"the {what} of {first.subset} was {first.values[what]} at update {first.update}{since}")
    found.advise(LOWER_RATE, "start again from the last checkpoint before it (--restore-file), with another --seed")
    return True


def _errors(log: Log, found: Diagnosis) -> bool:
    known = {
        "Minimum loss scale reached": (
            "fp16 gave up: at the smallest loss scale allowed, gradients still overflowed, so the loss exploded or a"
            " layer made numbers that fp16 cannot hold",
            (LOWER_RATE, "train in --bf16 or in single precision: fp16 ends at 65504"),
        ),
        "gradients are Nan/Inf": (
            "a gradient was infinite or no number, and fairseq gave up",
            (LOWER_RATE,),
        ),
        "out of memory|OutOfMemory": (
            "the memory was not enough",
            ("halve --max-tokens and double --update-freq", "--checkpoint-activations keeps less per layer"),
        ),
        "inconsistent": (
            "workers had different gradients",
            ("--ddp-backend legacy_ddp", "see whether one of the GPUs makes NaN by itself"),
        ),
    }
    for pattern, (sentence, advice) in known.items():
        line = next(((u, text) for u, text in log.troubles if re.search(pattern, text)), None)
        if line and "memory" in pattern and (log.finished or any(r.update > line[0] for r in log.records)):
            found.happened.append(f"after update {line[0]} {sentence} for a batch, which fairseq left out")
            found.advise(*advice)
        elif line:
            found.happened.append(f"after update {line[0]} training ended: {sentence}")
            found.advise(*advice)
            return True
    others = [(u, text) for u, text in log.troubles if not re.search("overflow|detected|nan/inf", text)]
    if others and not log.finished:
        update, text = others[0]
        found.happened.append(f"after update {update} training ended with an error: {text[:200]}")
        return True
    return False


def _divergence(log: Log, found: Diagnosis) -> bool:
    curve = {u: v for u, v in losses(log, TRAIN).items() if math.isfinite(v)}
    if len(curve) < 4:
        return False
    best_at = min(curve, key=lambda u: curve[u])
    best, last = curve[best_at], list(curve.values())[-1]
    if last < best + max(1.0, 0.25 * abs(best)):
        return False
    found.happened.append(f"the loss diverged: it was {show(best)} at update {best_at} and {show(last)} at the end")
    found.advise(LOWER_RATE, "if it spikes again and again, raise Adam's epsilon (--adam-eps 1e-6) or lower its beta2")
    return True


def _layers_out_of_band(log: Log, found: Diagnosis, failed: bool) -> None:
    for place, curve in found.norms.items():
        since = ends_out_of_band(curve)
        if since:
            found.left[place] = since
    if not found.left:
        if found.norms and failed:
            found.where.append(
                f"no layer's gradient norm left its band (a factor of {BAND:.0f} around the norms before): what"
                " happened was sudden, or in the embeddings or the output layer"
            )
        return
    earliest = min(update for update, _ in found.left.values())
    first = [place for place, (update, _) in found.left.items() if update == earliest]
    curve = found.norms[first[0]]
    value = curve[earliest]
    names = ", ".join(f"{stack} layer {layer}" for stack, layer in first[:4])
    more = f" and {len(first) - 4} more" if len(first) > 4 else ""
    how = found.left[first[0]][1]
    found.where.append(
        f"the gradient norm of {names}{more} left its band first, at update {earliest}: it {how} ({show(value)})"
    )
    later = len(found.left) - len(first)
    if later:
        found.where.append(f"{later} further layer{'s' * (later > 1)} followed")
    if how.startswith("collapsed"):
        found.advise(OTHER_WIRING)


def _vanishing(found: Diagnosis) -> bool:
    vanishes = False
    for stack in dict.fromkeys(stack for stack, _ in found.norms):
        layers = [curve for (s, _), curve in found.norms.items() if s == stack]
        for update in (next(iter(layers[0])), next(reversed(layers[0]))):
            values = [curve.get(update, math.nan) for curve in layers]
            sentence = vanishing_sentence(stack, values)
            if sentence:
                found.where.append(f"at update {update} {sentence}")
                found.advise(OTHER_WIRING)
                vanishes = True
                break
    return vanishes


def _stands_still(log: Log, found: Diagnosis, vanishing: bool) -> bool:
    curve = [v for v in losses(log, TRAIN).values() if math.isfinite(v)]
    if len(curve) < 8:
        return False
    quarter = len(curve) // 4
    second, last = statistics.fmean(curve[quarter : 2 * quarter]), statistics.fmean(curve[-quarter:])
    if abs(second - last) > STILL * abs(second):
        return False
    found.happened.append(
        f"the training loss stood still: {show(second)} in the second quarter of the log, {show(last)} in the last (a"
        " loss that stays at the entropy of the token frequencies means that nothing but these was learned)"
    )
    found.advise(OTHER_WIRING if vanishing or not found.norms else LOWER_RATE)
    if not found.norms:
        found.advise(SEE_LAYERS)
    return True


def _end(log: Log, found: Diagnosis, still: bool) -> None:
    update = last_update(log)
    valid = losses(log, VALID)
    if log.finished:
        end = f", with a validation loss of {show(list(valid.values())[-1])}" if valid else ""
        sentence = f"training came to its end at update {update}{end}"
        found.happened.append(sentence if still or found.where else f"{sentence}; nothing in the log is out of order")
    elif not still:
        found.happened.append(
            f"the log ends after update {update} without an error: training still runs, or was killed from outside (out"
            " of time, out of main memory)"
        )
