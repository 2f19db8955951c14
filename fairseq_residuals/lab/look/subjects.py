"""Arguments of the commands of analyses: their flags, and the models that these name.

A command calls :func:`add_flags` and iterates over :func:`subjects`. Models of Python files need PyTorch alone, and so
do wirings where fairseq is not installed; what fairseq builds and loads is :mod:`fairseq_residuals.lab.look.models`.
"""

from __future__ import annotations

import argparse
import glob
import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairseq_residuals.lab.look.probes import ModelAndLoss, stacks
from fairseq_residuals.plugin.progress import say
from fairseq_residuals.wirings.blocks.models import EncoderDecoder, LanguageModel
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import find_variant, list_variants
from fairseq_residuals.wirings.core.wiring import Wiring

PREFIXES = {"translation": "transformer", "language_modeling": "transformer_lm", "speech_to_text": "s2t_transformer"}
"""Beginnings of the names of each task's architectures."""
DEFAULT = ("post_ln", "pre_ln", "b2t")
"""Wirings that are analysed where none is named."""
SAID_BY_FILE = (
    *("task", "layers", "dim", "ffn_dim", "heads"),
    *("sentences", "tokens", "vocabulary", "seed", "data", "split", "device"),
)
"""Flags of models and batches that have no meaning for a Python file."""
SPECIAL = 4
"""Symbols with which dictionaries begin: bos, pad, eos and unk."""


def add_model_size_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how large models are."""
    sizes = parser.add_argument_group(
        "sizes of models", "default: fairseq's, for text 6 layers of 512, FFN 2048, 8 heads"
    )
    sizes.add_argument("--task", choices=tuple(PREFIXES), default="translation", help="of wirings (%(default)s)")
    sizes.add_argument("--layers", metavar="N", help="of each stack, or 12-6 for encoder and decoder")
    for flag, words in (("dim", "model dimension"), ("ffn-dim", "width of the FFNs"), ("heads", "attention heads")):
        sizes.add_argument(f"--{flag}", type=int, metavar="N", help=f"{words} of each stack")


def add_flags(parser: argparse.ArgumentParser, default: Sequence[str] = DEFAULT) -> None:
    """Add the options that choose models, their batch and device; ``default`` are the wirings where none is named.

    What a parser does not know is meant for the models (``--residual-args``, ``--dropout``, ...) and for the task of
    ``--data`` (``--source-lang``, ...).
    """
    models = parser.add_argument_group("models", f"default: --wirings {' '.join(default)}; all may be combined")
    models.add_argument(
        "--wirings",
        "--variants",
        dest="variants",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="wirings, in --task, or all of them (all); NAME/k=v,... gives one its options; lists such as"
        " post_ln:0-5,pre_ln:6-17 are valid",
    )
    trained = "trained models of this plugin"
    models.add_argument("--checkpoint", nargs="+", action="extend", type=Path, metavar="[LABEL=]FILE", help=trained)
    models.add_argument(
        "--python",
        nargs="+",
        action="extend",
        type=Path,
        metavar="FILE",
        help="Python files, which are run, that define `model` with a wired stack in it and `loss`, a function without"
        " arguments that runs it on a batch; fairseq is not needed",
    )
    models.add_argument("--training", action="store_true", help="with dropout on, as in training; default: off")
    add_model_size_flags(parser)
    batch = parser.add_argument_group("batch")
    batch.add_argument("--sentences", type=int, default=16, metavar="N", help="in the batch (%(default)s)")
    batch.add_argument("--tokens", type=int, default=20, metavar="N", help="synthetic, per sentence (%(default)s)")
    batch.add_argument("--vocabulary", type=int, default=1000, metavar="N", help="synthetic words (%(default)s)")
    batch.add_argument("--seed", type=int, default=1, metavar="N", help="of weights, batch and dropout (%(default)s)")
    batch.add_argument("--data", type=Path, metavar="DIR", help="binarized corpus; default: synthetic tokens")
    batch.add_argument("--split", default="valid", metavar="NAME", help="of --data (%(default)s)")
    batch.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    # what is meant for the models must not be taken for an abbreviation of these
    parser.allow_abbrev = False
    parser.set_defaults(further=[], default=default, usual={name: parser.get_default(name) for name in SAID_BY_FILE})


def subjects(args: Namespace) -> Iterator[ModelAndLoss]:
    """Yield the models asked for, one at a time: each may be forgotten before the next is built.

    Raises:
        UserError: nothing of the kind can be built or loaded; the message says what is valid.
    """
    taken: set[str] = set()
    for subject, name in _all(args):
        subject.label = distinct(subject.label, name, taken)
        yield subject


def distinct(label: str, name: str, taken: set[str]) -> str:
    """Return a label that is not taken, and take it; ``name`` tells it from its namesakes."""
    label += f" ({name})" if label in taken else ""
    while label in taken:
        label += "'"
    taken.add(label)
    return label


def _all(args: Namespace) -> Iterator[tuple[ModelAndLoss, str]]:
    """Yield models, each with what tells it from others of its label."""
    alone = args.python and not (args.variants or args.checkpoint)
    if alone:
        given = [f"--{name.replace('_', '-')}" for name, value in args.usual.items() if getattr(args, name) != value]
        if flags := [*given, *args.further]:
            raise UserError(f"{flags[0]} has no meaning for --python, whose model and batch are what the file says")
    for file in args.python or ():
        say(str(file))
        yield of_python_file(file, args.training), str(file)
    if alone:
        return
    if find_spec("fairseq") is None:
        yield from _library_subjects(args)
        return
    from fairseq_residuals.lab.look.models import fairseq_subjects

    yield from fairseq_subjects(args)


def _library_subjects(args: Namespace) -> Iterator[tuple[ModelAndLoss, str]]:
    """Yield wirings in models of PyTorch alone, each with a batch of synthetic tokens."""
    if args.checkpoint or args.data:
        raise UserError("fairseq is not installed, which --checkpoint and --data need")
    check_sizes(args)
    device = device_of(args.device)
    for name in named_wirings(args):
        say(name)
        model = library_model(name, args).to(device).train(args.training)
        shape, generator = (2, args.sentences, args.tokens), torch.Generator().manual_seed(args.seed)
        source, target = torch.randint(SPECIAL, args.vocabulary, shape, generator=generator).to(device)
        loss = partial(model.loss, source, target) if isinstance(model, EncoderDecoder) else partial(model.loss, target)
        residual, _, options = name.partition("/")
        wiring = Wiring.parse(residual, options)
        yield ModelAndLoss(model, loss, wiring.title + (f" ({options})" if options else ""), wiring.name), name


def labelled(text: str) -> tuple[str, str]:
    """Split ``[LABEL=]FILE``, FILE perhaps with wildcards; the file is the longest that is there."""
    parts = text.split("=")
    splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(len(parts))]
    there = [(label, file) for label, file in splits if Path(file).exists() or glob.glob(file)]
    return (there or splits[1:] or splits)[0]


def named_wirings(args: Namespace) -> list[str]:
    """Return the wirings that ``--wirings`` names, each NAME or NAME/k=v,...; "all" stands for those of the task."""
    alone = args.task == "language_modeling"
    every = [name for name in list_variants() if not find_variant(name).refusal(alone=alone, topmost=True)]
    named = args.variants or ([] if args.checkpoint else args.default)
    return list(dict.fromkeys(name for one in named for name in (every if one == "all" else [one])))


def check_sizes(args: Namespace) -> None:
    """Check the sizes of models and batch.

    Raises:
        UserError: one of them is less than 1, or there is no room for a word.
    """
    for key in ("sentences", "tokens", "vocabulary", "dim", "ffn_dim", "heads"):
        if getattr(args, key) is not None and getattr(args, key) < 1:
            raise UserError(f"--{key.replace('_', '-')} must be at least 1, not {getattr(args, key)}")
    if args.vocabulary <= SPECIAL:
        raise UserError(f"--vocabulary must be at least {SPECIAL + 1}: {SPECIAL} symbols are special")


def depths_of(args: Any, stacks: int) -> list[int]:
    """Return the numbers of ``--layers``, one for all stacks or one for each; none where it is not given.

    Raises:
        UserError: they are none.
    """
    layers = re.split("[-,]", args.layers) if args.layers else []
    if not all(n.isdecimal() and int(n) > 0 for n in layers) or len(layers) > stacks:
        raise UserError(f"--layers must be a number such as 18, or 12-6 for encoder and decoder, not {args.layers!r}")
    return list(map(int, layers))


def library_model(name: str, args: Namespace) -> EncoderDecoder | LanguageModel:
    """Build a wiring's model on PyTorch alone, with the sizes of fairseq's ``transformer`` where no flag says others.

    Raises:
        UserError: there is no such wiring, or flags that need fairseq.
    """
    if args.task == "speech_to_text":
        raise UserError("--task speech_to_text has models of fairseq alone; stacks of translation are wired alike")
    if args.further:
        raise UserError(
            f"{args.further[0]} is no flag of this command; models of fairseq may have it, which is missing"
        )
    depths = depths_of(args, 2 if args.task == "translation" else 1) or [6]
    variant, _, given = name.partition("/")
    Wiring.parse(variant, given)  # refuses an option that is given twice, which a dictionary would hide
    settings: dict[str, Any] = {"dim": args.dim or 512, "ffn_dim": args.ffn_dim or 2048, "heads": args.heads or 8}
    settings |= {"options": dict(text.partition("=")[::2] for text in given.split(",") if text), "dropout": 0.1}
    torch.manual_seed(args.seed)
    if args.task == "translation":
        return EncoderDecoder(variant, vocab=args.vocabulary, depth=(depths[0], depths[-1]), **settings)
    return LanguageModel(variant, vocab=args.vocabulary, depth=depths[0], **settings)


def of_python_file(file: Path, training: bool = False) -> ModelAndLoss:
    """Run a Python file, and return the model and the loss that it defines.

    Raises:
        UserError: there is no such file, or it defines no model with a wired stack, or no loss.
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    folder, known = file.resolve().parent, set(sys.modules)
    sys.path.insert(0, str(folder))
    defined = runpy.run_path(str(file))
    for name in sys.modules.keys() - known:
        top = folder / name.partition(".")[0]
        if top.is_dir() or top.with_suffix(".py").exists():
            del sys.modules[name]  # beside another file another module may have this name
    model, loss = defined.get("model"), defined.get("loss")
    if not isinstance(model, nn.Module) or not callable(loss):
        raise UserError(
            f"{file} must define `model`, a module, and `loss`, a function without arguments that runs it on a batch"
        )
    wiring = stacks(model)[-1].segments()[0][0].name
    return ModelAndLoss(model.train(training), loss, file.stem, wiring)


def device_of(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        UserError: there is no such device on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"--device {name} is not there: valid are cpu, and where there is a GPU cuda") from None
    return device
