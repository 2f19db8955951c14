"""Checkpoints as the authors' code writes them, made of the weights and the settings that golden files hold."""

from __future__ import annotations

import ast
import json
import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from golden_files import FOLDER, provenance, tensors_of
from torch import Tensor

Settings = dict[str, Any]
HISTORY = {
    "criterion_name": "LabelSmoothedCrossEntropyCriterion",
    "optimizer_name": "FairseqAdam",
    "lr_scheduler_state": {"best": None},
    "num_updates": 7,
}


def parameters(name: str) -> dict[str, Tensor]:
    """Under the authors' names, the encoder's first.

    The decoder's embedding is the encoder's, as it is in checkpoints, if it equals it.
    """
    found = tensors_of(FOLDER / f"{name}.npz", "param/")
    found = dict(sorted(found.items(), key=lambda item: not item[0].startswith("encoder.")))
    first = found.get("encoder.embed_tokens.weight", found["decoder.embed_tokens.weight"])
    for key in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        if key in found and torch.equal(found[key], first):
            found[key] = first
    return found


def settings(name: str) -> Settings:
    """The authors' flags, from the golden's sidecar."""
    sidecar = provenance(FOLDER / f"{name}.npz")
    if "args" in sidecar:
        return {key: _value(text) for key, text in sidecar["args"].items()} | {"source_lang": "s", "target_lang": "t"}
    command = sidecar["cli_equivalent"]
    objects = re.search(r"\{.*\}", command)
    if objects:
        lone = sidecar.get("decoder_only", False)
        base = {"arch": "lm_base", "task": "language_modeling"} if lone else {"arch": json.loads(objects[0])["_name"]}
        return base | json.loads(objects[0]) | {"source_lang": "s", "target_lang": "t"}
    found: Settings = {"source_lang": "s", "target_lang": "t"}
    words = shlex.split(command)
    for i, word in enumerate(words):
        if word.startswith("--"):
            alone = i + 1 == len(words) or words[i + 1].startswith("--")
            found[word[2:].replace("-", "_")] = True if alone else _value(words[i + 1])
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def checkpoint(name: str, **changed: Any) -> dict[str, Any]:
    """In the layout of the authors' version of fairseq.

    Args:
        changed: settings that are other than the golden's; None takes one away.
    """
    chosen = {key: value for key, value in (settings(name) | changed).items() if value is not None}
    state: dict[str, Any] = {
        "model": parameters(name),
        "optimizer_history": [dict(HISTORY)],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}, "val_loss": 2.5},
        "last_optimizer_state": None,
    }
    if not isinstance(chosen.get("encoder"), dict):
        return state | {"args": Namespace(**chosen)}
    task = {"_name": "translation", "data": "data", "source_lang": "s", "target_lang": "t"}
    optimizer = {"_name": chosen.pop("optimizer", "adam")}
    return state | {"args": None, "cfg": {"model": chosen, "task": task, "optimizer": optimizer}}


def write(folder: Path, name: str, **changed: Any) -> Path:
    path = folder / f"{name}.pt"
    torch.save(checkpoint(name, **changed), path)
    return path


def write_dictionaries(folder: Path) -> Path:
    """For all languages, 40 words with the 4 special symbols."""
    folder.mkdir(exist_ok=True)
    lines = "".join(f"w{i} 1\n" for i in range(36))
    for name in ("dict.txt", "dict.s.txt", "dict.t.txt"):
        (folder / name).write_text(lines)
    return folder
