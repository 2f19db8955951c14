"""``export --to hf``: a folder for transformers, with the wiring's own source."""

from __future__ import annotations

import fnmatch
import inspect
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import PortableCheckpoint
from fairseq_residuals.plugin.checkpoints.safetensors_file import without_copies, write_tensors
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import OWN, factory_of
from fairseq_residuals.wirings.export.assemble import assemble
from fairseq_residuals.wirings.export.pieces import CONTINUED, FILES, WORD_START, read_codes, read_dictionary

MODELING, TOKENIZER = "modeling_fairseq_residuals", "tokenization_fairseq_residuals"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
TIED_TO = "decoder.embed_tokens.weight"
"""Parameter that the other embeddings are tied to, in our modelling file."""
CLASSES = {
    True: ("AutoModelForSeq2SeqLM", "ResidualForSeq2Seq"),
    False: ("AutoModelForCausalLM", "ResidualForCausalLM"),
}
"""Whether there is an encoder; transformers' name and ours."""
SPECIAL = {"bos_token_id": 0, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}


@dataclass(frozen=True)
class TokenizerFiles:
    """Files that turn text into the numbers that a model knows.

    Attributes:
        source, target: dictionaries, as fairseq-preprocess writes them.
        codes: of subword-nmt.
        sentencepiece: a model of SentencePiece.
    """

    source: Path
    target: Path
    codes: Path | None = None
    sentencepiece: Path | None = None


def find_dictionaries(folder: Path, settings: dict[str, Any]) -> tuple[Path, Path]:
    """Return the dictionaries of source and target in a folder that fairseq-preprocess has filled.

    Raises:
        UserError: one is missing.
    """
    if settings.get("task") == "language_modeling":
        source = target = folder / "dict.txt"
    else:
        languages = settings.get("source_lang"), settings.get("target_lang")
        if not all(isinstance(lang, str) and Path(lang).name == lang for lang in languages):
            raise UserError("the checkpoint names no languages of its translation: its dictionaries are unknown")
        source, target = (folder / f"dict.{lang}.txt" for lang in languages)
    for path in (source, target):
        if not path.is_file():
            raise UserError(f"--data: there is no {path}, the model's dictionary; give the folder it was trained on")
    return source, target


def write_hf(checkpoint: PortableCheckpoint, files: TokenizerFiles | None, folder: Path) -> None:
    """Fill an empty folder.

    Args:
        files: of the tokenizer; None: the folder has none.

    Raises:
        UserError: a wiring's source cannot be had, or a dictionary is not the model's.
        OSError: a file cannot be read or written.
    """
    settings = checkpoint.model.settings
    if files is not None:
        _write_tokenizer(settings, files, folder)
    (folder / f"{MODELING}.py").write_text(modeling_source(settings), encoding="utf-8")
    state = checkpoint.model.state_dict()
    # a matrix with several names is written under the one that transformers ties the others to
    weights, _ = without_copies({TIED_TO: state[TIED_TO]} | state)
    write_tensors(weights, folder / WEIGHTS)
    _write_json(config(settings, with_tokenizer=files is not None), folder / CONFIG)
    _write_json(_generation(settings), folder / "generation_config.json")


def modeling_source(settings: ModelSettings) -> str:
    """Return the source of the model's wirings and of what they need; it imports torch and transformers alone."""
    stacks = list(filter(None, (settings.encoder, settings.decoder)))
    parts = [part for stack in stacks for part in stack.wiring.parts]
    norms = {part.config.norm_type for part in parts}.difference(OWN)
    if not all("register_norm(" in inspect.getsource(sys.modules[factory_of(norm).__module__]) for norm in norms):
        raise UserError(f"norm_type={', '.join(norms)}: define a norm's class in the file that registers it")
    wirings = sorted({maker.__module__ for maker in [*(part.variant for part in parts), *map(factory_of, norms)]})
    names = ", ".join(sorted({stack.residual for stack in stacks}))
    own = {"fairseq_residuals", *(module.partition(".")[0] for module in wirings)}
    try:
        return assemble(
            f"A Transformer wired by {names}, for transformers; assembled from the source of fairseq_residuals (MIT).",
            ["fairseq_residuals.wirings.export.hf_modeling", *wirings],
            sorted(own),
        )
    except ValueError as error:
        raise UserError(f"the source of wiring {names} cannot be put into one file: {error}") from error


def config(settings: ModelSettings, *, with_tokenizer: bool) -> dict[str, Any]:
    """Return transformers' configuration of a model."""
    pair = settings.encoder is not None
    auto, ours = CLASSES[pair]
    classes: dict[str, Any] = {"AutoConfig": f"{MODELING}.ResidualConfig", auto: f"{MODELING}.{ours}"}
    if with_tokenizer:
        classes["AutoTokenizer"] = [f"{TOKENIZER}.ResidualTokenizer", None]
    return {
        "architectures": [ours],
        "auto_map": classes,
        "model_type": "fairseq_residuals",
        "model_settings": settings.to_json(),
        "is_encoder_decoder": pair,
        "vocab_size": settings.decoder.words,
        "hidden_size": settings.decoder.dim,
        "num_hidden_layers": settings.decoder.layers,
        "num_attention_heads": settings.decoder.heads,
        "max_position_embeddings": settings.decoder.max_positions,
        "tie_word_embeddings": settings.share_input_output or settings.share_all,
        "dtype": "float32",
        **_special(pair),
    }


def _special(pair: bool) -> dict[str, int]:
    # a language model of fairseq begins with the end of a sentence
    return SPECIAL if pair else {"bos_token_id": EOS, "pad_token_id": PAD, "eos_token_id": EOS}


def _generation(settings: ModelSettings) -> dict[str, Any]:
    """fairseq-generate's defaults: five hypotheses, at most 200 tokens and an end."""
    return {
        **_special(settings.encoder is not None),
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        "min_new_tokens": 1,
        "max_new_tokens": min(200 + 1, settings.decoder.max_positions),
        "do_sample": False,
    }


def _write_tokenizer(settings: ModelSettings, files: TokenizerFiles, folder: Path) -> None:
    encoder = settings.encoder or settings.decoder
    for path, words in ((files.source, encoder.words), (files.target, settings.decoder.words)):
        try:
            found = len(read_dictionary(path))
        except (ValueError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no dictionary of fairseq: {error}") from error
        if found != words:
            raise UserError(f"{path} has {found:,} words and the model {words:,} (special symbols included)")
    copies = {
        "source_dictionary": files.source,
        "target_dictionary": files.target,
        "bpe_codes": files.codes,
        "sentencepiece_model": files.sentencepiece,
    }
    for key, file in copies.items():
        if file is not None:
            shutil.copyfile(file, folder / FILES[key])
    if files.codes is not None:
        try:
            read_codes(files.codes)
        except (ValueError, UnicodeDecodeError) as error:
            raise UserError(f"--codes: {error}") from error
    if files.sentencepiece is not None:
        _check_sentencepiece(files.sentencepiece)
    source = assemble(
        "The tokenizer of a model of fairseq_residuals, assembled from its source (MIT).",
        ["fairseq_residuals.wirings.export.hf_tokenizer"],
    )
    (folder / f"{TOKENIZER}.py").write_text(source, encoding="utf-8")
    _write_json(
        {
            "tokenizer_class": "ResidualTokenizer",
            "auto_map": {"AutoTokenizer": [f"{TOKENIZER}.ResidualTokenizer", None]},
            "ends_sentences": settings.encoder is not None,
            "splits_by": "bpe_codes" if files.codes else "sentencepiece_model" if files.sentencepiece else None,
            "padding_side": "right" if settings.encoder is not None else "left",
            "clean_up_tokenization_spaces": False,
        },
        folder / "tokenizer_config.json",
    )


def _check_sentencepiece(path: Path) -> None:
    try:
        from sentencepiece import SentencePieceProcessor
    except ModuleNotFoundError as error:
        raise UserError("--sentencepiece needs the package sentencepiece: pip install sentencepiece") from error
    try:
        SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise UserError(f"--sentencepiece: {path} is no model of SentencePiece") from error


def unsplit_words(files: TokenizerFiles) -> list[str]:
    """Return a line for the user where the dictionary has pieces of words and nothing is given that splits words."""
    if files.codes or files.sentencepiece:
        return []
    pieces = {"--codes": f"*{CONTINUED}", "--sentencepiece": f"{WORD_START}*"}
    words = read_dictionary(files.source)
    return [
        f"{files.source} has pieces of words, such as {found[0]}: without {flag}, text is split at spaces alone"
        for flag, pattern in pieces.items()
        if (found := fnmatch.filter(words, pattern))
    ]


def _write_json(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
