"""Scores from what fairseq's tools printed."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from fairseq_residuals.lab.data.bpe import JOIN
from fairseq_residuals.lab.look.training_log import VALID, Log
from fairseq_residuals.lab.recipes.job import Evaluation, Job
from fairseq_residuals.lab.recipes.recipe import Measurement
from fairseq_residuals.lab.scoring import Score
from fairseq_residuals.lab.scoring.perplexity import joeynmt_perplexity, perplexity_of_eval_lm, perplexity_of_validate
from fairseq_residuals.lab.scoring.retokenize import retokenize
from fairseq_residuals.plugin.scoring.metrics import score
from fairseq_residuals.plugin.scoring.text import read_generation, read_lines, without_unknown
from fairseq_residuals.wirings.core.errors import UserError

_SPEED = re.compile(r"Translated [\d,]+ sentences \([\d,]+ tokens\) in \S+ \(\S+ sentences/s, (\S+) tokens/s\)")


def expected_metrics(measurement: Measurement) -> tuple[str, ...]:
    """Return the names of the scores that a measurement will have."""
    if measurement.tool == "fairseq-eval-lm":
        return (f"ppl_context_{measurement.flags.get('context_window', 0)}",)
    return measurement.metrics


def measure(job: Job, measurement: Measurement) -> list[Score]:
    """Return the scores of one measurement, whose tools have been run.

    Raises:
        UserError: an output is not complete, or there is no reference.
    """
    if measurement.tool == "train-log":
        return [_curve(job)]
    if measurement.tool == "linearize":
        return [_linearized(measurement, evaluation) for evaluation in job.evaluate(measurement)]
    parts = [_scores(job, measurement, evaluation) for evaluation in job.evaluate(measurement)]
    if measurement.directions is None:
        return parts[0]
    over = f"|mean:{len(parts)} directions {measurement.directions}"
    return [mean_of([of_metric], over) for of_metric in map(list, zip(*parts, strict=True))]


def mean_of(parts: list[list[Score]], how: str) -> Score:
    """Return the mean of numbers of one metric, each a list of one."""
    scores = [score for part in parts for score in part]
    values = [score.value for score in scores if isinstance(score.value, float)]
    if len(values) < len(scores) or len({score.metric for score in scores}) != 1:
        raise UserError("only numbers of one metric have a mean")
    return Score(scores[0].metric, statistics.fmean(values), scores[0].signature + how)


def _scores(job: Job, measurement: Measurement, evaluation: Evaluation) -> list[Score]:
    if measurement.tool == "fairseq-generate":
        return [_generated(job, measurement, evaluation, metric) for metric in measurement.metrics]
    log = evaluation.log.read_text(encoding="utf-8")
    if measurement.tool == "fairseq-eval-lm":
        text = job.corpus / "text" / evaluation.subset
        # per word, the ends of lines counted, also where the model's units are smaller
        words = sum(len(line.split()) + 1 for line in _lines(text)) if text.is_file() else None
        return [perplexity_of_eval_lm(log, words=words)]
    return [perplexity_of_validate(log, evaluation.subset)]


def _generated(job: Job, measurement: Measurement, evaluation: Evaluation, metric: str) -> Score:
    if metric == "target_tokens_per_second":
        speed = _SPEED.search(evaluation.log.read_text(encoding="utf-8"))
        if speed is None:
            raise UserError(f"{evaluation.log} does not say how fast fairseq-generate was")
        settings = ", ".join(f"{key} {value}" for key, value in measurement.flags.items())
        return Score(metric, float(speed[1]), f"target tokens per second|{settings}")
    generated = read_generation(evaluation.log)
    hypotheses = generated.detokenized if measurement.hypotheses == "detokenized" else generated.hypotheses
    if measurement.references == "targets":
        if generated.targets is None:
            raise UserError(f"{evaluation.log} has no references: the test set has no target side")
        references = [[*map(without_unknown, generated.targets)]]
    else:
        read = _lines if measurement.references == "text" else read_lines
        references = [read(path) for path in _reference_files(job, measurement, evaluation)]
    if measurement.retokenize:
        hypotheses = retokenize(hypotheses, measurement.retokenize)
        references = [retokenize(lines, measurement.retokenize) for lines in references]
    scores = score(metric, hypotheses, *references)
    value = scores.values[measurement.value] if measurement.value else scores.value
    return Score(metric, value, scores.signature)


def _reference_files(job: Job, measurement: Measurement, evaluation: Evaluation) -> list[Path]:
    """Return the files of references; those of further ones have a digit after the first one's name."""
    name = measurement.set if measurement.references == "raw" else evaluation.subset
    folder = job.corpus / measurement.references
    if evaluation.pair:  # one folder for both directions
        turned = folder / "-".join(reversed(evaluation.pair.split("-")))
        folder = turned if turned.is_dir() else folder / evaluation.pair
    path = folder / f"{name}.{evaluation.target}"
    if not path.is_file():
        raise UserError(f"there are no references {path}")
    return [path, *sorted(folder.glob(f"{path.name}[0-9]"))]


def check_references(job: Job, measurements: Iterable[Measurement]) -> None:
    """Check the references, before anything is trained that could not be scored.

    Raises:
        UserError: the prepared corpus has no references for a measurement.
    """
    for measurement in measurements:
        if measurement.tool == "fairseq-generate" and measurement.references != "targets":
            for evaluation in job.evaluate(measurement):
                _reference_files(job, measurement, evaluation)


def _lines(path: Path) -> list[str]:
    """Return the lines of binarized text; what subword-nmt cut is joined."""
    return [JOIN.sub("", line) for line in read_lines(path)]


def _linearized(measurement: Measurement, evaluation: Evaluation) -> Score:
    """Return the scores with each layer of a stack made linear, by its number, and with none."""
    with evaluation.log.with_suffix(".csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    layers = {
        row["layer"] or "None": float(row["value"])
        for row in rows
        if row["stack"] in ("whole model", measurement.value)
    }
    if len(layers) < 2:
        raise UserError(f"{evaluation.log.with_suffix('.csv')} has no layers of the {measurement.value}")
    settings = ", ".join(f"{key} {value}" for key, value in measurement.flags.items())
    return Score(measurement.metrics[0], layers, f"linearize {measurement.value}|{settings}")


def _curve(job: Job) -> Score:
    """Return the validations during training, as JoeyNMT counts perplexity."""
    records = [record for log in job.logs for record in Log(log).read_on().records if record.subset == VALID]
    losses = {str(record.update): record.values["loss"] for record in records}
    if not losses:
        raise UserError(f"the logs in {job.folder} have no validations")
    target = job.asked.task.target_lang
    vocabulary = len(read_lines(job.data / f"dict.{target}.txt")) + 4  # and fairseq's own symbols
    smoothing = job.asked.criterion.label_smoothing
    curve = {updates: joeynmt_perplexity(loss, vocabulary, smoothing) for updates, loss in losses.items()}
    return Score("joeynmt_ppl", curve, f"exp(KL)|smoothing:{smoothing:g}|vocabulary:{vocabulary}|valid")
