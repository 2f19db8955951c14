"""``fairseq-residuals import --from REPOSITORY FILE OUT``: checkpoints of the authors' repositories."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_output, read_checkpoint, save
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings, complete, flat_settings, load_model
from fairseq_residuals.plugin.checkpoints.importing.from_hf import import_hf
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes, dimensions, sharing
from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import (
    Choice,
    Found,
    Imported,
    Side,
    check_repository,
    sides,
    wiring,
)
from fairseq_residuals.plugin.checkpoints.safetensors_file import NO_TRAINING_STATE
from fairseq_residuals.plugin.progress import quiet
from fairseq_residuals.wirings.core.errors import UserError

HF = "hf"
HELP = "turn a checkpoint of the authors' own code, or of fairseq, into one of this plugin's"
CHOSEN_BY_WIRING = (
    *("encoder_normalize_before", "decoder_normalize_before", "no_decoder_final_norm"),
    *("scale_attn", "scale_fc", "scale_heads", "scale_resids"),
    *("residual", "residual_args", "decoder_residual", "decoder_residual_args"),
)
"""Settings that the choice of a variant takes the place of."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="repository",
        required=True,
        choices=(*AUTHORS, HF),
        help="whose: "
        + ", ".join(f"{name} is {authors.repository}" for name, authors in AUTHORS.items())
        + f"; {HF}: FILE is a folder of transformers",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the authors' checkpoint, or a folder of transformers")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="what to write, for fairseq-generate and fairseq-train --restore-file"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there already")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: the checkpoint cannot be imported or ``OUT`` not be written; nothing is written then.
    """
    check_output(args.out, [args.file], overwrite=args.overwrite)
    with quiet():
        imported = import_hf(args.file) if args.repository == HF else import_checkpoint(args.file, args.repository)
    save(imported.checkpoint, args.out)
    print("\n".join([*imported.report, f"wrote {args.out}"]))
    return 0


def import_checkpoint(path: Path, repository: str) -> Imported:
    """Return an authors' checkpoint as one of this plugin.

    Args:
        path: a checkpoint.
        repository: a key of :data:`fairseq_residuals.plugin.checkpoints.importing.parameter_names.AUTHORS`.

    Raises:
        UserError: the file is damaged, is not of that repository, or holds what this plugin does not have.
    """
    state = read_checkpoint(path)
    found = Found(str(path), flat_settings(state), translate(state["model"], AUTHORS[repository]))
    check_repository(repository, found)
    exactly = dimensions(found, sides(found)) | _learned_positions(found) | sharing(found) | _word_dropout(found)
    choices = wiring(repository, found)
    exactly |= _wiring_settings(choices)
    known = {key: value for key, value in found.settings.items() if key not in CHOSEN_BY_WIRING}
    args, flags = complete(_architecture(found, choices), known, exactly)
    sizes = dictionary_sizes(found)
    try:
        model = load_model(args, sizes, found.parameters, str(path))
    except UserError as error:
        raise UserError(f"{error}; it may be of another repository than --from {repository}") from error
    words = ", ".join(f"{side} {size:,} words" for side, size in sizes.items())
    report = [
        "; ".join(f"{side}: {' '.join(filter(None, choice))}" for side, choice in choices.items()),
        f"parameters: {sum(p.numel() for p in model.parameters()):,}",
        f"dictionaries, with special symbols: {words}",
        *(f"note: {note}" for note in found.notes),
        "parameters alone: training begins at update 0, with a new optimizer",
        f"the model, as flags of fairseq-train: {shlex.join(flags)}",
    ]
    return Imported({"args": args, "cfg": None, "model": model.state_dict()} | NO_TRAINING_STATE, report)


def _architecture(found: Found, choices: dict[Side, Choice]) -> str:
    family = "transformer" if "encoder" in choices else "transformer_lm"
    if any(name.startswith("encoder.subsample.") for name in found.parameters):
        family = "s2t_transformer"
    return f"{family}_{next(iter(choices.values()))[0]}"


def _wiring_settings(choices: dict[Side, Choice]) -> Settings:
    first, last = next(iter(choices.values())), choices["decoder"]
    settings = {"residual_args": first[1]} if first[1] else {}
    return settings if last == first else settings | {"decoder_residual": last[0], "decoder_residual_args": last[1]}


def _learned_positions(found: Found) -> Settings:
    """Return the settings of learned positions, which some models have without a flag."""
    return {
        f"{side}_learned_pos": True for side in sides(found) if f"{side}.embed_positions.weight" in found.parameters
    }


def _word_dropout(found: Found) -> Settings:
    """Return the settings of word dropout, which the B2T repository calls by another name."""
    if found.settings.get("sampling_method") != "worddrop":
        return {}
    rates = {f"{side}_word_dropout": found.settings.get(f"{side[:3]}_replace_rate") for side in ("encoder", "decoder")}
    return {key: rate for key, rate in rates.items() if rate}
