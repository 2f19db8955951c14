"""What the demo prints and keeps: table, verdict, samples, and the numbers as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

from fairseq_residuals.lab.recipes.demo.demo_settings import LANGUAGES, Settings
from fairseq_residuals.lab.recipes.demo.results import DemoResult, Summary
from fairseq_residuals.lab.recipes.losses import TRAINED, is_trained
from fairseq_residuals.lab.utils.tables import csv_text, markdown_table
from fairseq_residuals.plugin.scoring.text import read_lines
from fairseq_residuals.wirings.core.registry import VARIANTS

SAMPLES = 3
SAMPLE_WORDS = 7  # at least: one-word sentences show little
NEAR_UNIGRAM = (0.75, 1.1)
MEASURED: dict[str, tuple[Callable[[DemoResult], float], int]] = {
    "train loss": (attrgetter("train_loss"), 2),
    "valid loss": (attrgetter("valid_loss"), 2),
    "BLEU": (attrgetter("bleu"), 1),
    "CPU seconds": (attrgetter("cpu_seconds"), 0),
}
"""By column, what it shows and with how many decimals."""
CLAIMS = {"post_ln": "stays near the unigram loss", "pre_ln": "trains", "b2t": "trains"}
"""Figure 1 of Takase et al. 2023 (B2T connection), 18 + 18 layers: what it shows of each variant."""


def table(summaries: Sequence[Summary]) -> str:
    """Return the table in Markdown, one row per variant."""
    rows = [
        (s.variant, s.results[0].parameters, *(s.show(quantity, digits) for quantity, digits in MEASURED.values()))
        for s in summaries
    ]
    return markdown_table(("variant", "parameters", *MEASURED), rows)


def caption(settings: Settings, summaries: Sequence[Summary], unigram_loss: float) -> str:
    """Return what the table's numbers are."""
    several = f", means ± standard deviations over {settings.seeds} seeds" if settings.seeds > 1 else ""
    return (
        f"{settings.layers} + {settings.layers} layers, {settings.updates} updates, "
        f"{settings.pairs:,} training pairs{several}. "
        f"Losses in bits per BPE token (base 2); the unigram loss is {unigram_loss:.2f}. "
        f"BLEU on {settings.sizes.held_out:,} unseen sentences, CPU seconds of fairseq-train.\n"
        f"sacreBLEU signature: {summaries[0].results[0].signature.removeprefix('BLEU|')}"
    )


def behaviour(loss: float, unigram_loss: float) -> str:
    """Return what a final training loss amounts to, compared with knowing nothing but token frequencies."""
    share = loss / unigram_loss
    low, high = NEAR_UNIGRAM
    if share > high:
        return "has not come down to the unigram loss"
    if share >= low:
        return "stays near the unigram loss"
    return "trains" if is_trained(loss, unigram_loss) else "is in between"


def verdict(settings: Settings, summaries: Sequence[Summary], unigram_loss: float) -> str:
    """Return which claims of Figure 1 of the B2T paper the measured losses show, and which they do not."""
    lines = [
        "Against Figure 1 of the B2T paper (the training loss ends 'near the unigram loss': "
        f"at {NEAR_UNIGRAM[0]:.0%} to {NEAR_UNIGRAM[1]:.0%} of it; 'trains': below {TRAINED:.0%}):"
    ]
    for summary in summaries:
        loss = summary.mean(lambda result: result.train_loss)
        shown = behaviour(loss, unigram_loss)
        measured = f"{loss:.2f} bits per token, {loss / unigram_loss:.0%} of the unigram loss"
        claim = CLAIMS.get(summary.variant)
        subject = f"- {VARIANTS[summary.variant].title}"
        if claim is None:
            lines.append(f"{subject} is not in that figure; here it {shown} ({measured}).")
        elif claim == shown:
            lines.append(f"{subject} {claim}: shown ({measured}).")
        else:
            lines.append(f"{subject} {claim}: NOT shown; here it {shown} ({measured}).")
    if settings.layers != 18:
        depth = f"{settings.layers} + {settings.layers}"
        lines.append(f"The figure is about 18 + 18 layers, these runs have {depth}.")
    return "\n".join(lines)


def samples(corpus: Path, summaries: Sequence[Summary]) -> str:
    """Return some test sentences with the translations of every variant's first seed."""
    sources, references = (read_lines(corpus / "raw" / f"test.{language}") for language in LANGUAGES)
    chosen = [i for i, source in enumerate(sources) if len(source.split()) >= SAMPLE_WORDS][:SAMPLES]
    width = max(len("reference"), *(len(summary.variant) for summary in summaries))
    blocks = []
    for i in chosen:
        lines = [("source", sources[i]), ("reference", references[i])]
        lines += [(summary.variant, summary.results[0].hypotheses[i]) for summary in summaries]
        blocks.append("\n".join(f"    {name:{width}}  {text}" for name, text in lines))
    return "\n\n".join(blocks)


def as_csv(summaries: Sequence[Summary], unigram_loss: float) -> str:
    """Return the numbers that are plotted; losses in bits per token."""
    rows = [
        (summary.variant, result.seed, update, loss, f"{unigram_loss:.3f}")
        for summary in summaries
        for result in summary.results
        for update, loss in result.curve
    ]
    return csv_text(("variant", "seed", "update", "train_loss", "unigram_loss"), rows)


def as_json(settings: Settings, summaries: Sequence[Summary], unigram_loss: float, versions: Sequence[str]) -> str:
    """Return every number of the table for each run, unrounded; losses in bits per token."""
    runs = [
        {
            "variant": result.variant,
            "seed": result.seed,
            "parameters": result.parameters,
            "train_loss": result.train_loss,
            "valid_loss": result.valid_loss,
            "bleu": result.bleu,
            "cpu_seconds": result.cpu_seconds,
            "valid_curve": result.valid_curve,
        }
        for summary in summaries
        for result in summary.results
    ]
    pairs = {"train": settings.pairs, "valid": settings.sizes.held_out, "test": settings.sizes.held_out}
    described = {"layers": settings.layers, "updates": settings.updates, "pairs": pairs}
    signature = summaries[0].results[0].signature.removeprefix("BLEU|")
    measured = {"unigram_loss": unigram_loss, "sacrebleu": signature, "runs": runs}
    return json.dumps({"settings": described, "versions": list(versions), **measured}, indent=2) + "\n"
