"""What the demo prints and keeps: table, verdict, samples, and the numbers as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fairseq_residuals.analysis.tables import csv_text, markdown_table
from fairseq_residuals.core.registry import VARIANTS
from fairseq_residuals.experiments.demo.corpus import LANGUAGES, Data
from fairseq_residuals.experiments.demo.results import Summary, bleu, cpu_seconds, train_loss, valid_loss
from fairseq_residuals.experiments.demo.settings import Settings
from fairseq_residuals.experiments.losses import TRAINED

SAMPLES = 3
SAMPLE_WORDS = 7  # at least: one-word sentences show little
NEAR_UNIGRAM = (0.75, 1.1)
CLAIMS = {"post_ln": "stays near the unigram loss", "pre_ln": "trains", "b2t": "trains"}
"""Figure 1 of Takase et al. 2023 (B2T connection), 18 + 18 layers: what it shows of each variant."""


def table(summaries: Sequence[Summary]) -> str:
    """In Markdown, one row per variant."""
    rows = []
    for s in summaries:
        measured = (s.show(train_loss, 2), s.show(valid_loss, 2), s.show(bleu, 1), s.show(cpu_seconds, 0))
        rows.append((s.variant, f"{s.parameters:,}", *measured))
    return markdown_table(("variant", "parameters", "train loss", "valid loss", "BLEU", "CPU seconds"), rows)


def caption(settings: Settings, summaries: Sequence[Summary], unigram_loss: float) -> str:
    """What the table's numbers are."""
    several = f", means ± standard deviations over {settings.seeds} seeds" if settings.seeds > 1 else ""
    return (
        f"{settings.layers} + {settings.layers} layers, {settings.updates} updates, "
        f"{settings.pairs:,} training pairs{several}. "
        f"Losses in bits per BPE token (base 2); the unigram loss is {unigram_loss:.2f}. "
        f"BLEU on {settings.sizes['test']:,} unseen sentences, CPU seconds of fairseq-train.\n"
        f"sacreBLEU signature: {summaries[0].results[0].signature}"
    )


def behaviour(loss: float, unigram_loss: float) -> str:
    """What a final training loss amounts to, compared with knowing nothing but token frequencies."""
    share = loss / unigram_loss
    low, high = NEAR_UNIGRAM
    if share > high:
        return "has not come down to the unigram loss"
    if share >= low:
        return "stays near the unigram loss"
    return "trains" if share < TRAINED else "is in between"


def verdict(settings: Settings, summaries: Sequence[Summary], unigram_loss: float) -> str:
    """Which claims of Figure 1 of the B2T paper the measured losses show, and which they do not."""
    lines = [
        "Against Figure 1 of the B2T paper (the training loss ends 'near the unigram loss': "
        f"at {NEAR_UNIGRAM[0]:.0%} to {NEAR_UNIGRAM[1]:.0%} of it; 'trains': below {TRAINED:.0%}):"
    ]
    for summary in summaries:
        loss = summary.mean(train_loss)
        found = behaviour(loss, unigram_loss)
        measured = f"{loss:.2f} bits per token, {loss / unigram_loss:.0%} of the unigram loss"
        claim = CLAIMS.get(summary.variant)
        subject = f"- {VARIANTS[summary.variant].title}"
        if claim is None:
            lines.append(f"{subject} is not in that figure; here it {found} ({measured}).")
        elif claim == found:
            lines.append(f"{subject} {claim}: shown ({measured}).")
        else:
            lines.append(f"{subject} {claim}: NOT shown; here it {found} ({measured}).")
    if settings.layers != 18:
        depth = f"{settings.layers} + {settings.layers}"
        lines.append(f"The figure is about 18 + 18 layers, these runs have {depth}.")
    return "\n".join(lines)


def samples(data: Data, summaries: Sequence[Summary]) -> str:
    """Some test sentences with the translations of every variant's first seed."""
    sources, references = (data.lines("test", language) for language in LANGUAGES)
    chosen = [i for i, source in enumerate(sources) if len(source.split()) >= SAMPLE_WORDS][:SAMPLES]
    width = max(len("reference"), *(len(summary.variant) for summary in summaries))
    blocks = []
    for i in chosen:
        lines = [("source", sources[i]), ("reference", references[i])]
        lines += [(summary.variant, summary.results[0].hypotheses[i]) for summary in summaries]
        blocks.append("\n".join(f"    {name:{width}}  {text}" for name, text in lines))
    return "\n\n".join(blocks)


def as_csv(summaries: Sequence[Summary], unigram_loss: float) -> str:
    """The numbers that are plotted; losses in bits per token."""
    rows = [
        (summary.variant, result.seed, update, loss, f"{unigram_loss:.3f}")
        for summary in summaries
        for result in summary.results
        for update, loss in result.training.curve
    ]
    return csv_text(("variant", "seed", "update", "train_loss", "unigram_loss"), rows)


def as_json(settings: Settings, summaries: Sequence[Summary], unigram_loss: float, versions: Sequence[str]) -> str:
    """Every number of the table for each run, unrounded; losses in bits per token."""
    runs = [
        {
            "variant": result.variant,
            "seed": result.seed,
            "parameters": result.training.parameters,
            "train_loss": train_loss(result),
            "valid_loss": valid_loss(result),
            "bleu": bleu(result),
            "cpu_seconds": cpu_seconds(result),
            "valid_curve": result.training.valid,
        }
        for summary in summaries
        for result in summary.results
    ]
    described = {"layers": settings.layers, "updates": settings.updates, "pairs": settings.sizes}
    measured = {"unigram_loss": unigram_loss, "sacrebleu": summaries[0].results[0].signature, "runs": runs}
    return json.dumps({"settings": described, "versions": list(versions), **measured}, indent=2) + "\n"
