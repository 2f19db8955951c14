"""Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairseq_residuals.plugin.scoring.metrics import Bleu, check_lengths, make_metric
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class Comparison:
    """A system against the baseline."""

    name: str
    score: float
    mean: float
    """Mean score of the resampled test sets."""
    ci: float
    """Half the width of the 95% interval."""
    p_value: float | None
    """Probability that system and baseline are equally good; None for the baseline itself.

    Equal scores have 1, where sacreBLEU, which counts what is strictly greater, would find identical outputs to differ
    significantly.
    """
    signature: str


def paired_bootstrap(
    baseline: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    metric: str = "sacrebleu",
    samples: int = 1000,
) -> list[Comparison]:
    """Compare the baseline, then each system, on the same ``samples`` resampled test sets.

    sacreBLEU draws them from the seed in ``SACREBLEU_SEED`` (12345).

    Raises:
        UserError: the metric is not a BLEU, there is no system, or numbers of sentences differ.
    """
    from sacrebleu.significance import PairedTest, Result

    bleu = make_metric(metric)
    if not isinstance(bleu, Bleu):
        raise UserError(f"significance is for BLEU (sacrebleu, tokenized_bleu, compound_bleu, ...), not for {metric}")
    if not systems or samples < 1:
        raise UserError("a comparison needs a baseline, one system or more, and one sample or more")
    for lines in (baseline, *systems.values()):
        check_lengths(lines, references)
    named: list[tuple[str, Sequence[str]]] = [
        (name, [*map(bleu.prepare, lines)]) for name, lines in [("baseline", baseline), *systems.items()]
    ]
    prepared = [*map(bleu.prepare, references)]
    signatures, found = PairedTest(named, {"BLEU": bleu.bleu}, [prepared], test_type="bs", n_samples=samples)()
    signature = f"{bleu.label}|{signatures['BLEU']}"
    results = [result for result in found["BLEU"] if isinstance(result, Result)]
    comparisons = []
    for (name, _), result in zip(named, results, strict=True):
        equal = result.p_value is not None and result.score == results[0].score
        p_value = 1.0 if equal else result.p_value
        mean, ci = (float(x) for x in (result.mean, result.ci) if x is not None)
        comparisons.append(Comparison(name, result.score, mean, ci, p_value, signature))
    return comparisons
