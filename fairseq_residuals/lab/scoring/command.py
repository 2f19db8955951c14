"""``fairseq-residuals score``: the metrics of the papers for plain files, or for what fairseq-generate printed."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_residuals.lab.scoring.retokenize import retokenize
from fairseq_residuals.plugin.scoring.metrics import METRICS, score
from fairseq_residuals.plugin.scoring.text import (
    Generation,
    is_generation,
    parse_generation,
    read_lines,
    without_unknown,
)
from fairseq_residuals.wirings.core.errors import UserError

HELP = "score hypotheses by a metric of the papers, and say what exactly was computed"


def configure(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="metric", required=True, metavar="METRIC")
    for name in METRICS:
        metric = subparsers.add_parser(name, help="percent")
        metric.add_argument(
            "hypotheses", type=Path, metavar="HYP", help="one sentence a line, or what fairseq-generate printed"
        )
        metric.add_argument(
            "references",
            type=Path,
            nargs="*",
            metavar="REF",
            help="default: the T- lines that fairseq-generate printed",
        )
        metric.add_argument(
            "--retokenize",
            metavar="LANG",
            help="detokenize, replace Unicode punctuation and tokenize both sides first, as DLCL does",
        )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: a file is missing or not what it should be, or the metric has no value for it.
    """
    lines, generation = _hypotheses(args.hypotheses, args.metric)
    references = [read_lines(path) for path in args.references]
    if not references:
        if generation is None or generation.targets is None:
            raise UserError(f"name the references: {args.hypotheses} has no T- lines of fairseq-generate")
        if lines is generation.hypotheses and lines != generation.detokenized:
            raise UserError(
                f"the H- lines of {args.hypotheses} are tokens, its T- lines are not, as fairseq-generate ran with"
                f" --tokenizer or --bpe: name the tokenized references, or a metric of text, not {args.metric}"
            )
        references = [[*map(without_unknown, generation.targets)]]
    if args.retokenize:
        lines, *references = (retokenize(text, args.retokenize) for text in (lines, *references))
    scores = score(args.metric, lines, *references)
    print("\n".join(f"{name} = {value:.2f}" for name, value in scores.values.items()))
    print(scores.signature + (f"|retokenized:{args.retokenize}" if args.retokenize else ""))
    return 0


def _hypotheses(path: Path, metric: str) -> tuple[list[str], Generation | None]:
    """Return one sentence a line, and what fairseq-generate printed where the file is that."""
    lines = read_lines(path)
    if not is_generation(lines):
        return lines, None
    generation = parse_generation(lines, str(path))
    of_tokens = metric.startswith(("tokenized", "compound"))
    return generation.hypotheses if of_tokens else generation.detokenized, generation
