"""``import --from hf``: a folder of transformers as a checkpoint that this plugin's models load.

The folder is data: its configuration and its parameters are read, and no Python file in it.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.exporting.exporter import check_logits
from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import portable_of
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings, complete, load_model
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes, dimensions, sharing
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found, Imported, sides
from fairseq_residuals.plugin.checkpoints.safetensors_file import NO_TRAINING_STATE, read_tensors
from fairseq_residuals.plugin.documents import read_json
from fairseq_residuals.wirings.blocks.models import TransformerModel
from fairseq_residuals.wirings.blocks.settings import ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_MOST_BYTES_OF_CONFIG = 1 << 20
OURS = "fairseq_residuals"


def import_hf(folder: Path) -> Imported:
    """Read a folder that ``export --to hf`` wrote.

    Raises:
        UserError: a file is missing, damaged or of another version, or the model is none of ours, or would compute
            something else under fairseq.
        OSError: a file cannot be read.
    """
    config = _config(folder)
    tensors = read_tensors(_weights(folder))
    kind = str(config.get("model_type"))
    if kind != OURS:
        raise UserError(f"{folder} holds a model of type {kind[:40]!r}; what can be imported is {OURS}")
    ours = ModelSettings.of_json(config.get("model_settings"))
    found = Found(str(folder), *_ours(ours, tensors))
    args, flags = complete(found.settings["arch"], found.settings, dimensions(found, sides(found)) | sharing(found))
    model = load_model(args, dictionary_sizes(found), found.parameters, str(folder))
    _compare(folder, ours, args, model)
    report = [
        f"architecture: {found.settings['arch']}",
        f"parameters: {sum(p.numel() for p in model.parameters()):,}",
        f"the model, as flags of fairseq-train: {' '.join(flags)}",
    ]
    return Imported({"args": args, "cfg": None, "model": model.state_dict()} | NO_TRAINING_STATE, report)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no model of transformers: there is no {CONFIG} in it")
    if path.stat().st_size > _MOST_BYTES_OF_CONFIG:
        raise UserError(f"{path} has more than {_MOST_BYTES_OF_CONFIG >> 20} MiB, which no configuration takes")
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path} is damaged: it is no JSON object")
    return config


def _weights(folder: Path) -> Path:
    path = folder / WEIGHTS
    if not path.is_file():
        others = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".safetensors", ".pt"))
        there = f" (there is {others[0]}; save the model as one file of safetensors)" if others else ""
        raise UserError(f"there is no {WEIGHTS} in {folder}{there}")
    return path


def _compare(folder: Path, settings: ModelSettings, args: Namespace, model: nn.Module) -> None:
    """Compare the logits of the folder's model with those of fairseq's, which has some settings for both stacks.

    Raises:
        UserError: they differ, or the parameters are of another size than the folder's settings say.
    """
    checkpoint = portable_of(folder, args, model, {})
    if _sizes(checkpoint.model.settings) != _sizes(settings):  # before a model of these sizes is built
        raise UserError(f"{folder} cannot be imported: its {CONFIG} has other sizes than its {WEIGHTS}")
    theirs = TransformerModel(settings)
    theirs.load_state_dict(checkpoint.model.state_dict())
    check_logits(replace(checkpoint, model=theirs.eval()), "imported:")


def _sizes(settings: ModelSettings) -> list[tuple[int, ...]]:
    stacks = filter(None, (settings.encoder, settings.decoder))
    return [(s.words, s.layers, s.dim, s.heads, s.ffn_dim, s.max_positions, s.input_dim) for s in stacks]


def _ours(settings: ModelSettings, tensors: dict[str, Tensor]) -> tuple[Settings, dict[str, Tensor]]:
    parameters = {fairseq_name(name): value for name, value in tensors.items()}
    words = parameters.get("decoder.embed_tokens.weight")
    if words is None:
        raise UserError("its parameters have no embedding of the decoder")
    if settings.share_input_output:
        parameters.setdefault("decoder.output_projection.weight", words)
    if settings.share_all:
        parameters.setdefault("encoder.embed_tokens.weight", words)
    flat: Settings = {"task": "translation" if settings.encoder else "language_modeling"}
    stacks = {"encoder": settings.encoder, "decoder": settings.decoder}
    for side, stack in stacks.items():
        if stack is not None:
            flat |= _flat(side, stack)
    first = settings.encoder or settings.decoder
    flat |= {"residual": first.residual, "residual_args": first.residual_args}
    flat |= {"decoder_residual": settings.decoder.residual, "decoder_residual_args": settings.decoder.residual_args}
    flat |= {
        "arch": f"{'transformer' if settings.encoder else 'transformer_lm'}_{first.wiring.parts[0].name}",
        "activation_fn": first.activation.replace("gelu_accurate", "gelu_fast"),
        "dropout": first.dropout,
        "attention_dropout": first.attention_dropout,
        "activation_dropout": first.activation_dropout,
        "no_scale_embedding": first.embed_scale == 1,
        "layernorm_embedding": first.norm_embedding,
        "no_token_positional_embeddings": first.positions == "none",
        "decoder_output_dim": settings.output_dim,
        "max_target_positions": settings.decoder.max_positions,
    }
    return flat, parameters


def _flat(side: str, stack: StackSettings) -> Settings:
    limit = "max_source_positions" if side == "encoder" else "max_target_positions"
    settings: Settings = {
        f"{side}_attention_heads": stack.heads,
        f"{side}_learned_pos": stack.positions == "learned",
        limit: stack.max_positions,
    }
    return settings if side == "encoder" else settings | {"decoder_input_dim": stack.input_dim}
