"""The ``recipe:`` section of a configuration: what happens before and after training.

=============  =======================================================================================================
``corpus``     what ``fairseq-residuals prepare`` makes; with ``variant``, which of its variants
``average``    ``{last: N, unit: epoch or update}``: of how many checkpoints the parameters are averaged; or null
``checkpoint`` which one is used where none are averaged
``evaluate``   what the scores have in common
``scores``     by name, what is measured: one measurement, or a list of them
=============  =======================================================================================================

The keys of a measurement, those of ``evaluate`` included (its ``flags`` are merged key by key, null removes one):

==============  ======================================================================================================
``set``         a test set of the corpus, by its name there, or a subset of the binarized data
``tool``        fairseq-generate, fairseq-eval-lm, fairseq-validate, train-log (the validations during training), or
                linearize (``fairseq-residuals linearize``: a curve over the layers of a stack)
``flags``       of the tool; linearize takes none of ``evaluate``'s
``metric``      a name of :data:`.METRICS`, or several; also ppl, joeynmt_ppl, target_tokens_per_second
``value``       which of a metric's values, where it has several; of linearize, the stack
``hypotheses``  tokenized (fairseq's H lines) or detokenized (its D lines)
``references``  raw (as in the corpus), text (as binarized, less BPE), or targets (fairseq's T lines)
``retokenize``  the language as which hypotheses and references are tokenized again
``directions``  a pattern of language pairs over which the mean is taken, such as en-*
``mean``        instead of all that: the mean of other scores
==============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairseq_residuals.lab.scoring.retokenize import retokenize
from fairseq_residuals.plugin.scoring.metrics import METRICS
from fairseq_residuals.wirings.core.errors import UserError

TOOLS = {
    "fairseq-generate": (*METRICS, "target_tokens_per_second"),
    "fairseq-eval-lm": ("ppl",),
    "fairseq-validate": ("ppl",),
    "train-log": ("joeynmt_ppl",),
    "linearize": (*METRICS,),
}
"""Tools, each with the metrics of what it prints."""
_COMMON = {"tool", "flags", "metric", "value", "hypotheses", "references", "retokenize"}


@dataclass(frozen=True)
class Measurement:
    """One run of one of fairseq's tools and what is made of its output; see the module's table."""

    set: str
    tool: str
    metrics: tuple[str, ...]
    flags: Mapping[str, Any]
    value: str | None = None
    hypotheses: Literal["tokenized", "detokenized"] = "tokenized"
    references: Literal["raw", "text", "targets"] = "raw"
    retokenize: str | None = None
    directions: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A section ``recipe:``, checked and completed."""

    corpus: str
    variant: str | None
    average: tuple[int, str] | None
    """Number of checkpoints, and the unit in which they were saved."""
    checkpoint: str
    measurements: Mapping[str, tuple[Measurement, ...]]
    """Measurements by the score's name."""
    means: Mapping[str, tuple[str, ...]]
    """The scores of which each mean is made, by its name."""

    @classmethod
    def parse(cls, owner: str, section: Mapping[str, Any]) -> Recipe:
        """Read a recipe from its section of a configuration.

        Args:
            owner: for messages.

        Raises:
            UserError: a key that is unknown or missing, or a value that is not valid.
        """
        # a release that is null is in the digests of runs on Debian's text that are on record; it means nothing now
        section = {key: value for key, value in section.items() if (key, value) != ("release", None)}
        names = {"corpus", "variant", "average", "checkpoint", "evaluate", "scores"}
        _refuse_unknown(f"recipe of {owner}", section, names)
        if missing := names - section.keys():
            raise UserError(f"recipe of {owner} lacks {', '.join(sorted(missing))}")
        if not section["corpus"]:
            raise UserError(f"recipe of {owner} names no corpus")
        measurements: dict[str, tuple[Measurement, ...]] = {}
        means: dict[str, tuple[str, ...]] = {}
        for name, spec in section["scores"].items():
            entries = spec if isinstance(spec, list) else [spec]
            if "mean" in entries[0]:
                means[name] = tuple(entries[0]["mean"])
            else:
                where = f"score {name} in the recipe of {owner}"
                measurements[name] = tuple(_measurement(where, section["evaluate"], entry) for entry in entries)
        for name, parts in means.items():
            if unknown := set(parts) - set(measurements):
                raise UserError(f"score {name} of {owner} is a mean of {', '.join(sorted(unknown))}, which is no score")
        return cls(
            corpus=section["corpus"],
            variant=section["variant"],
            average=_average(owner, section["average"]),
            checkpoint=section["checkpoint"],
            measurements=measurements,
            means=means,
        )

    def needed(self, scores: list[str]) -> dict[str, tuple[Measurement, ...]]:
        """Return the measurements from which ``scores`` can be computed."""
        names = [part for score in scores for part in self.means.get(score, (score,))]
        return {name: self.measurements[name] for name in dict.fromkeys(names)}


def _average(owner: str, average: Any) -> tuple[int, str] | None:
    match average:
        case None:
            return None
        case {"last": int(last), "unit": "epoch" | "update" as unit, **others} if last > 0 and not others:
            return last, unit
    raise UserError(f"recipe of {owner}: average is {average}; valid: null, or {{last: N, unit: epoch or update}}")


def _measurement(where: str, common: Mapping[str, Any], own: Mapping[str, Any]) -> Measurement:
    _refuse_unknown(where, common, _COMMON)
    _refuse_unknown(where, own, _COMMON | {"set", "directions"})
    merged = {"set": "", "tool": None} | dict(common) | dict(own)
    shared = {} if merged.get("tool") == "linearize" else dict(common.get("flags", {}))
    flags = shared | dict(own.get("flags", {}))
    metric = merged.pop("metric", None)
    if metric is None:
        raise UserError(f"{where} has no metric")
    merged["metrics"] = tuple(metric) if isinstance(metric, list) else (metric,)
    merged["flags"] = {key: value for key, value in flags.items() if value is not None}
    made = Measurement(**merged)
    allowed: dict[str, Collection[str]] = {
        "tool": TOOLS,
        "hypotheses": ("tokenized", "detokenized"),
        "references": ("raw", "text", "targets"),
    }
    for key, values in allowed.items():
        if getattr(made, key) not in values:
            raise UserError(f"{where}: {key} is {getattr(made, key)!r}; valid: {', '.join(values)}")
    for name in made.metrics:
        if name not in TOOLS[made.tool]:
            raise UserError(f"{where}: metric is {name!r}; valid of {made.tool}: {', '.join(TOOLS[made.tool])}")
    if made.retokenize:
        retokenize([], made.retokenize)  # which refuses a language that it does not know
    return made


def _refuse_unknown(where: str, section: Mapping[str, Any], known: set[str]) -> None:
    if unknown := set(map(str, section)) - known:
        raise UserError(f"{where} has unknown keys {', '.join(sorted(unknown))}; valid: {', '.join(sorted(known))}")
