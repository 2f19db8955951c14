"""Models that fairseq builds and checkpoints that it loads, of any wiring and task, each with a batch to run it on."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model

from fairseq_residuals.lab.compare import today  # noqa: F401  registers the models of `compare --blocks today`
from fairseq_residuals.lab.look import batches
from fairseq_residuals.lab.look.probes import ModelAndLoss
from fairseq_residuals.lab.look.subjects import PREFIXES, check_sizes, depths_of, device_of, labelled, named_wirings
from fairseq_residuals.plugin.checkpoints.fairseq_config import flat_settings, load_model, task_of
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.plugin.progress import say
from fairseq_residuals.wirings import admin_measurement
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import find_variant
from fairseq_residuals.wirings.core.wiring import Wiring

Built = tuple[Any, Namespace, Any]
"""A model in evaluation mode, its complete settings, and its task."""


def size_flags(args: Any, task: str) -> list[str]:
    """Return fairseq's flags for ``--layers``, ``--dim``, ``--ffn-dim`` and ``--heads`` of each stack.

    Raises:
        UserError: as :func:`.depths_of`.
    """
    stacks = ("decoder",) if task == "language_modeling" else ("encoder", "decoder")
    layers = depths_of(args, len(stacks))
    flags = []
    for i, stack in enumerate(stacks):
        sizes = {"embed-dim": args.dim, "ffn-embed-dim": args.ffn_dim, "attention-heads": args.heads}
        sizes |= {"layers": layers[min(i, len(layers) - 1)]} if layers else {}
        flags += [f"--{stack}-{name}={value}" for name, value in sizes.items() if value is not None]
    return flags


def fairseq_subjects(args: Namespace) -> Iterator[tuple[ModelAndLoss, str]]:
    """Yield what ``--wirings`` and ``--checkpoint`` name, each with what tells it from its namesakes.

    Raises:
        UserError: as :func:`fairseq_residuals.lab.look.subjects.subjects`.
    """
    check_sizes(args)
    device = device_of(args.device)
    wirings = named_wirings(args)
    for text in wirings:
        architecture_of(text, args.task)
    chosen: list[str | Path] = [*wirings, *(args.checkpoint or ())]
    flags = [*size_flags(args, args.task), *args.further]
    if any(flag.partition("=")[0] in ("--arch", "-a") for flag in args.further):
        raise UserError("--wirings says which architecture it is: name a wiring there, such as b2t, and its sizes")
    if flags and not wirings:
        raise UserError(f"{flags[0]} has no meaning for --checkpoint, whose model is what the file says")
    for number, one in enumerate(chosen, start=1):
        say(f"[{number}/{len(chosen)}] {one}")
        if isinstance(one, str):
            subject, options = make_subject(build(one, args), args, device), one.partition("/")[2]
            subject.label += f" ({options})" if options else ""
            yield subject, one
            continue
        label, path = labelled(str(one))
        subject = make_subject(load(Path(path), args.data), args, device)
        subject.label = label or subject.label
        yield subject, "/".join(Path(path).parts[-2:])


def architecture_of(text: str, task: str) -> tuple[str, tuple[str, ...]]:
    """Return the architecture of a wiring, NAME or NAME/k=v,..., and the flags that it takes besides.

    Raises:
        UserError: there is no such wiring, or none for the task.
    """
    name, _, given = text.partition("/")
    first = Wiring.parse(name, given).parts[0].name
    if f"{PREFIXES[task]}_{first}" not in ARCHITECTURES:
        reason = find_variant(first).refusal(alone=task == "language_modeling", topmost=True)
        raise UserError(f"wiring {first!r} cannot be used for --task {task}: {reason}")
    own = ("--residual", name) if name != first else ()
    return f"{PREFIXES[task]}_{first}", (*own, *(("--residual-args", given) if given else ()))


def make_subject(built: Built, args: Namespace, device: torch.device) -> ModelAndLoss:
    """Make a batch for a model.

    Raises:
        UserError: as :func:`fairseq_residuals.lab.look.subjects.subjects`.
    """
    model, settings, task = built
    # the encoder of speech is not frozen: --encoder-freezing-updates is for the first updates of training
    model.set_num_updates(sys.maxsize)
    model = model.to(device)
    batch = (batches.read if args.data else batches.make_up)(args, settings, task, model).to(device, torch.float32)
    admin_measurement.profile(model, partial(batch.loss, model))
    torch.manual_seed(args.seed)
    model.train(args.training)
    return ModelAndLoss(model, partial(batch.loss, model), *label_and_wiring(settings), batch)


def label_and_wiring(settings: Namespace) -> tuple[str, str]:
    """Return the titles of the wirings of a model's stacks, and the name of its decoder's wiring."""
    said = [name for name in ("residual", "decoder_residual") if hasattr(settings, name)]
    wirings = [Wiring.parse(getattr(settings, name), getattr(settings, f"{name}_args")) for name in said]
    return " / ".join(dict.fromkeys(wiring.title for wiring in wirings)), wirings[-1].name


def build(text: str, args: Namespace) -> Built:
    """Return a fresh model of a wiring.

    Raises:
        UserError: flags that are unknown, contradictory or out of range.
    """
    arch, own = architecture_of(text, args.task)
    parser = options.get_training_parser()

    def refuse(message: str) -> None:
        raise UserError(message)

    parser.error = refuse
    command = [str(args.data or "synthetic"), "--task", args.task, "--arch", arch]
    settings = options.parse_args_and_arch(parser, [*command, *size_flags(args, args.task), *args.further, *own])
    if args.data:
        task = tasks.setup_task(convert_namespace_to_omegaconf(settings).task)
    else:
        if args.task == "speech_to_text":
            settings.input_feat_per_channel, settings.input_channels = batches.SOUND_FEATURES, 1
        task = task_of(settings, {"source": args.vocabulary, "target": args.vocabulary})
    torch.manual_seed(args.seed)
    return build_model(settings, task).eval(), settings, task


def load(file: Path, data: Path | None) -> Built:
    """Return a checkpoint's model.

    Args:
        data: folder of the corpus for its task; None: the task has dictionaries of the model's sizes alone.

    Raises:
        UserError: the file is damaged, is no checkpoint of this plugin, or has another number of words than the corpus.
    """
    if not file.is_file():
        raise UserError(f"there is no checkpoint {file}")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(file), {} if data is None else {"data": str(data)})
    settings = Namespace(**flat_settings(state))
    if not hasattr(settings, "residual"):
        raise UserError(
            f"{file} is no checkpoint of this plugin; `fairseq-residuals import --from fairseq FILE OUT` makes"
            " one of a checkpoint of stock fairseq"
        )
    # of today's blocks, the model is in one of fairseq's
    sizes = dictionary_sizes(Found(str(file), {}, {k.removeprefix("model."): v for k, v in state["model"].items()}))
    model = load_model(settings, sizes, state["model"], str(file))
    task = task_of(settings, sizes) if data is None else tasks.setup_task(state["cfg"].task)
    for side, words in sizes.items():
        there = len(getattr(task, f"{side}_dictionary"))
        if there != words:
            raise UserError(
                f"{file} has {words} words of the {side}, and the dictionary in {data} has {there}: --data must be the"
                " corpus that it was trained on"
            )
    return model, settings, task
