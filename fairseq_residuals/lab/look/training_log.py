"""The parser of logs.

It reads fairseq's training logs in each of their formats (simple, json, tqdm; with and without hydra), and the score at
the end of ``fairseq-generate``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import parse_json

TRAIN, EPOCH, VALID = "train", "epoch", "valid"
"""Subsets: training since the record before, training since the epoch began, validation."""

_EPOCH = re.compile(r"epoch \d+")
_TEXT = re.compile(
    r"epoch \d+(?:: .*?(?=(?<![\w/.])[\w/.]++=)|(?: \| valid on '(?P<valid>[^']+)' subset)? \| )(?P<rest>.*)"
)
_PAIR = re.compile(r"(?<![\w/.])([\w/.]++)(?:=\s*|\s+)([^\s,|\]]+)")
# no possessive group: Python before 3.11.5 does not find what follows one (python/cpython#106052)
_JSON = re.compile(r"^(?:(?!\{\").)*(?P<json>\{\".*\})\s*$")
_GENERATED = re.compile(r"Generate (?P<subset>\S+) with beam=\d+: (?P<scores>[^(]*)")
# a pattern that may begin at each letter of a word takes the square of its length: this begins where a word does
_SCORE = re.compile(r"\b[^\WA-Za-z]*+([A-Za-z]\w*+)\s*[=:]\s*(\d+\.?\d*)")
_WIRED = re.compile(
    r"(?P<stack>encoder|decoder): (?P<layers>\d{1,9}) layers wired by (?P<name>\S+?)(?: \((?P<options>[^()]*)\))?, "
)
_DICTIONARY = re.compile(r"dictionary(?: size \([^()]*\))?: ([\d,]{1,18})(?: types)?$")
_TARGET = re.compile(r"\btarget_lang'?(?:=|: )'(\w{1,32})'")
_PARAMETERS = re.compile(r"num\. shared model params: (\d[\d,]{0,17})(?![\d,])")
_SETTING = re.compile(r"\b(?P<key>encoder_layers|decoder_layers|seed)'?(?:=|: )(?P<value>\d{1,18})\b")
_CHOICE = re.compile(
    r"\b(?P<key>lr|warmup_updates|update_freq|max_tokens|batch_size|dropout|label_smoothing|weight_decay|clip_norm"
    r"|optimizer|criterion|lr_scheduler|activation_fn|source_lang|target_lang"
    r"|(?:en|de)coder_(?:embed_dim|ffn_embed_dim|attention_heads))'?(?:=|: )(?:\{'_name': )?"
    r"(?P<value>\[[^\[\]]*\]|'[^']{1,32}'|[\d.][^\s,)}]*+)"
)
_PROGRAM = re.compile(
    r"\d\d:\d\d:\d\d(?:,\d+)?(?: \| (?:INFO|WARNING|ERROR) \| |\]\[[^\]]*\]\[(?:INFO|WARNING|ERROR)\] - )"
    r"|^Traceback \(most recent call last\):|^fairseq-[\w-]+: error: "
)
"""Lines that fairseq and Python print, and no text about them."""
_LONGEST = 200_000
"""Characters of a line that are read: the configuration has some 30,000."""
_SINGLE = 3.4e38
_ANEW, _RESUMED = "No existing checkpoint found", "Loaded checkpoint "
_AT = re.compile(r"@ (\d{1,18}) updates\)")
_TROUBLES = (
    *("overflow detected", "nan detected in output of", "inf detected in output of", "nan/inf grad norm"),
    *("minimum loss scale reached", "gradients are inconsistent", "out of memory", "outofmemory"),
    *("sigterm", "sigkill", "core dumped", "no space left on device"),
)
"""Words in lines of trouble, in small letters."""
# an assertion and Ctrl-C have no message
_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:error|exception|interrupt)(?:: |$)|error: \S|\bkilled\b")
_TALK = re.compile(r".{0,120}(?: \| INFO \| |\]\[INFO\] - )|[STHDP]-\d+\t")
"""Beginning of a line about nothing that is wrong, and of a sentence of fairseq-generate: its text may say anything."""


@dataclass(frozen=True)
class Record:
    """Values that were logged at one time; losses are in bits per token, as fairseq logs them."""

    subset: str
    update: int
    values: dict[str, float]


@dataclass
class Log:
    """Facts that a log tells of its run."""

    path: Path
    records: list[Record] = field(default_factory=list)
    troubles: list[tuple[int, str]] = field(default_factory=list)
    """Lines about overflows, errors and the like, each with the last update that was logged before it."""
    wirings: dict[str, str] = field(default_factory=dict)
    """Name of the wiring by stack."""
    options: set[tuple[str, str]] = field(default_factory=set)
    """Stack and ``option=value``, as a run of this plugin writes them."""
    choices: set[str] = field(default_factory=set)
    """``name=value`` of what runs are often compared in besides the wiring, where the configuration was logged."""
    layers: dict[str, int] = field(default_factory=dict)
    """Number of layers by stack."""
    parameters: int | None = None
    """Number of the model's parameters, shared ones counted once."""
    dictionary: int = 0
    """Types in the target's dictionary, the special ones included; 0 where the log does not say."""
    target: str = ""
    """Language of translation's targets, where the configuration was logged."""
    seed: int | None = None
    finished: bool = False
    """Whether training came to its own end."""
    resumed: bool = False
    """Whether it began with the parameters of a checkpoint."""
    restarts: int = 0
    """Runs that broke off and were begun anew in the same log; what is here is of the last."""
    _is_of_program: bool = field(default=False, repr=False)
    """Whether a line of it is fairseq's or Python's own."""
    _has_several_runs: bool = field(default=False, repr=False)
    """Whether another run begins after the end of one."""
    _latest: int = field(default=-1, repr=False)
    """Largest update of a record."""
    _offset: int = field(default=0, repr=False)
    """Bytes of the file that have been read."""

    def read_on(self, whole_lines: bool = True) -> Log:
        """Read what was written since the last call; return the log itself. A file that is not there is an empty one.

        Args:
            whole_lines: leave a last line without an end for the next call: it is still being written.
        """
        if not self.path.exists():
            return self
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        if whole_lines:
            new = new[: max(new.rfind(b"\n"), new.rfind(b"\r")) + 1]
        self._offset += len(new)
        *lines, last = re.split(r"[\r\n]+", new.decode("utf-8", errors="replace"))
        for line in [*lines, last]:
            if not line.startswith(("# started ", "# $ ")):  # written by the runner, not by fairseq
                self._read_line(line[:_LONGEST], ended=line is not last)
        return self

    def _read_line(self, line: str, ended: bool) -> None:
        record = _record(line)
        # a line without an end may have been cut off within a number; JSON has an end of its own
        if record is not None and (ended or _JSON.search(line)):
            if self.finished and record.subset in (TRAIN, EPOCH):
                self._has_several_runs |= record.update <= self._latest
            self.records.append(record)
            self._latest = max(self._latest, record.update)
        elif _ANEW in line and self.records:
            self._has_several_runs |= self.finished
            self.records, self.troubles, self.restarts, self._latest = [], [], self.restarts + 1, -1
        elif _RESUMED in line and (at := _AT.search(line)):
            # what was done after that checkpoint, before the run broke off, is no part of it
            while self.records and self.records[-1].update > int(at[1]):
                self.records.pop()
            self._latest = min(self._latest, int(at[1]))
        elif _is_trouble(line):
            self.troubles.append((self.records[-1].update if self.records else 0, line.strip()))
        elif "wired by" in line or "seed" in line:
            _settings(self, line)
            if target := _TARGET.search(line):
                self.target = target[1]
        elif types := _DICTIONARY.search(line):
            # that of the target is logged after the source's
            self.dictionary = int(types[1].replace(",", "") or 0)
        elif parameters := _PARAMETERS.search(line):
            self.parameters = int(parameters[1].replace(",", ""))
        self._is_of_program = self._is_of_program or _PROGRAM.search(line) is not None
        self.resumed |= _RESUMED in line and not self.records
        self.finished = "done training in" in line or (self.finished and _RESUMED not in line)

    @property
    def wiring(self) -> str:
        """Return what chooses its style in plots: the wiring, or both where the stacks differ.

        It is empty where the log does not say.
        """
        return "/".join(dict.fromkeys(self.wirings[stack] for stack in sorted(self.wirings, reverse=True)))

    def curve(self, metric: str, subset: str) -> dict[int, float]:
        """Return the curve by update; where training logged at the ends of epochs alone, these are its points.

        Raises:
            UserError: there is nothing of the kind in the log.
        """
        values = self.values(metric, subset)
        if not values and subset == TRAIN:
            values = self.values(metric, EPOCH)
        if not values:
            subsets = sorted({r.subset for r in self.records})
            names = sorted({n for r in self.records if r.subset == subset for n in r.values if "/" not in n})
            there = f"of {subset} it has {', '.join(names)}" if names else f"its subsets are {', '.join(subsets)}"
            raise UserError(f"{self.path} logs no {metric} of {subset}; {there}")
        return values

    def last(self, metric: str, subset: str) -> float | None:
        """Return the value that was logged last, or None; for a log that is still being written."""
        found = (r.values[metric] for r in reversed(self.records) if r.subset == subset and metric in r.values)
        return next(found, None)

    def values(self, metric: str, subset: str) -> dict[int, float]:
        """Return what was logged of a subset by update, empty where nothing was."""
        # where a run was resumed, what it logged last stands
        return dict(
            sorted((r.update, r.values[metric]) for r in self.records if r.subset == subset and metric in r.values)
        )


def read_log(path: Path, *later: Path) -> Log:
    """Read a log from its beginning to its end, and those of later attempts at the same run after it.

    Raises:
        UserError: a file cannot be read, there is no record of training, validation or generation, or there are those
            of several runs.
    """
    log = Log(path)
    for attempt in (path, *later):
        log.path, log._offset = attempt, 0
        try:
            attempt.open("rb").close()
            log.read_on(whole_lines=False)
        except OSError as error:
            raise UserError(f"{attempt} cannot be read: {error.strerror}") from error
    if log._has_several_runs:
        raise UserError(f"{path} has several runs: after the end of one another begins; give each run a log of its own")
    if not log.records and not (log.troubles and log._is_of_program):
        raise UserError(f"{path} has no record of fairseq-train (formats simple, json, tqdm) or fairseq-generate")
    # a progress bar and a resumed run repeat themselves: the last record of each update and subset stands
    log.records = list({(record.subset, record.update): record for record in log.records}.values())
    return log


def end_of(curve: Mapping[int, float]) -> float:
    """Return the mean of the last twentieth of a curve, at least its last value: single points are noisy."""
    return statistics.fmean(list(curve.values())[-max(1, len(curve) // 20) :])


def _is_trouble(line: str) -> bool:
    small = line.lower()  # a pattern of many words that minds no case takes a hundred times as long
    if _TALK.match(line):
        return "gradient overflow detected" in small
    return any(trouble in small for trouble in _TROUBLES) or _ERROR.search(small) is not None


def _record(line: str) -> Record | None:
    found = _JSON.search(line)
    if found:
        return _from_json(found["json"])
    epoch = _EPOCH.search(line)
    found = _TEXT.match(line, epoch.start()) if epoch else None
    if found and "num_updates" in found["rest"]:
        subset = found["valid"] or (TRAIN if "num_updates=" in found["rest"] else EPOCH)
        if found["valid"] in (TRAIN, EPOCH):
            subset = f"valid on {subset}"  # --valid-subset train is no loss of training
        return _of_update(subset, _numbers(dict(_PAIR.findall(found["rest"]))))
    found = _GENERATED.search(line)
    if found:
        scores = {name.lower(): float(value) for name, value in _SCORE.findall(found["scores"])}
        return Record(found["subset"], 0, {"bleu" if name == "bleu4" else name: v for name, v in scores.items()})
    return None


def _from_json(text: str) -> Record | None:
    try:
        pairs = parse_json(text)
    except ValueError:
        return None
    key = next((key for key in pairs if key.endswith("num_updates")), None)
    if key is None:
        return None
    prefix = key.removesuffix("num_updates")
    values = _numbers({name.removeprefix(prefix): value for name, value in pairs.items()})
    # the records between the ends of epochs alone are without a prefix
    return _of_update({"": TRAIN, "train_": EPOCH}.get(prefix, prefix.removesuffix("_")), values)


def _of_update(subset: str, values: dict[str, float]) -> Record | None:
    """Return the record of the update that is among its values, or None where a cut-off line has no number there."""
    update = values.pop("num_updates", math.nan)
    return Record(subset, int(update), values) if math.isfinite(update) else None


def _numbers(pairs: dict[str, object]) -> dict[str, float]:
    """Return the values that are numbers, nan and infinities (what single precision cannot hold is one) included."""
    found = {}
    for name, value in pairs.items():
        if name in ("epoch", "update"):  # places, not measurements
            continue
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        found[name] = number if not abs(number) > _SINGLE else math.copysign(math.inf, number)
    return found


def _settings(log: Log, line: str) -> None:
    wired = _WIRED.search(line)
    if wired:
        log.wirings[wired["stack"]] = wired["name"]
        log.options |= {(wired["stack"], option) for option in (wired["options"] or "").split(",")}
        log.layers[wired["stack"]] = int(wired["layers"])
        return
    for found in _SETTING.finditer(line):
        if found["key"] == "seed":
            log.seed = int(found["value"]) if log.seed is None else log.seed
        else:
            log.layers.setdefault(found["key"].removesuffix("_layers"), int(found["value"]))
    for found in _CHOICE.finditer(line):
        value = found["value"].strip("[]'")
        log.choices.add(f"{found['key']}={value}")
