"""Models that fairseq builds and checkpoints that it loads, of any wiring and task, each with a batch to run it on."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, open_dict
from torch import nn

from fairseq_residuals.lab.look import batches
from fairseq_residuals.lab.look.probes import ModelAndLoss, stacks
from fairseq_residuals.lab.look.subjects import DEFAULT, PREFIXES, check_sizes, depths_of, device_of
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.plugin.models.language_model import LANGUAGE_MODEL
from fairseq_residuals.plugin.models.speech_to_text import SPEECH
from fairseq_residuals.plugin.models.translation import TRANSLATION
from fairseq_residuals.wirings import admin_measurement
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from fairseq_residuals.wirings.core.registry import find_variant, list_variants
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.progress import say
from modern_fairseq.fixes.checkpoint_loading import misfit


def size_flags(args: argparse.Namespace, stacks: Sequence[str]) -> list[str]:
    """Return fairseq's flags for ``--layers``, ``--dim``, ``--ffn-dim`` and ``--heads`` of each stack.

    Raises:
        UserError: as :func:`.depths_of`.
    """
    layers = depths_of(args, len(stacks))
    flags = []
    for i, stack in enumerate(stacks):
        sizes = {"embed-dim": args.dim, "ffn-embed-dim": args.ffn_dim, "attention-heads": args.heads}
        sizes |= {"layers": layers[min(i, len(layers) - 1)]} if layers else {}
        flags += [f"--{stack}-{name}={value}" for name, value in sizes.items() if value is not None]
    return flags


def refuse_meaningless(flags: Sequence[str], arch: str, task: str) -> None:
    """Refuse flags of fairseq-train (of optimizers, ...) that would change nothing here.

    Raises:
        UserError: one of ``flags`` is neither of the architecture's model nor of the task.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    TASK_REGISTRY[task].add_args(parser)
    for action in parser._actions:
        action.required = False
    unknown = [flag for flag in parser.parse_known_args(flags)[1] if flag.startswith("-")]
    if unknown:
        raise UserError(f"{unknown[0]} is neither a flag of this command nor of {arch} or task {task}")


FAMILIES = {"translation": TRANSLATION, "language_modeling": LANGUAGE_MODEL, "speech_to_text": SPEECH}


@dataclass(frozen=True)
class ModelSource:
    """Source of a model: an architecture with further flags, or a file."""

    task: str = ""
    arch: str = ""
    flags: tuple[str, ...] = ()
    file: Path | None = None
    name: str = ""
    """Text that tells the model from others of the same wiring; may be empty."""
    label: str = ""
    """Label that the user gave; empty: the title of the model's wiring."""


def fairseq_subjects(args: Namespace) -> Iterator[tuple[ModelAndLoss, str]]:
    """Yield what ``--variants``, ``--arch`` and ``--checkpoint`` name, each with what tells it from its namesakes.

    Raises:
        UserError: as :func:`fairseq_residuals.lab.look.subjects.subjects`.
    """
    chosen, device = sources(args), device_of(args.device)
    for number, source in enumerate(chosen, start=1):
        say(f"[{number}/{len(chosen)}] {source.file or ' '.join([source.arch, *source.flags])}")
        subject = make_subject(source, args, device)
        subject.label = source.label or subject.label
        yield subject, source.name


def sources(args: Namespace) -> list[ModelSource]:
    """Return what the options name, in the order of ``--variants``, ``--arch``, ``--checkpoint``.

    Raises:
        UserError: an unknown wiring or architecture, or numbers that are none.
    """
    check_sizes(args)
    found = []
    variants = args.variants or ([] if args.arch or args.checkpoint else list(DEFAULT))
    if variants == ["all"]:
        variants = [name for name in list_variants() if f"{PREFIXES[args.task]}_{name}" in ARCHITECTURES]
    for item in variants:
        # a list of variants with their layers has commas of its own
        for text in [item] if re.search(r"[:/=]", item) else filter(None, item.split(",")):
            found.append(wiring_source(text, args.task))
    for arch in args.arch or ():
        if arch not in ARCHITECTURES:
            raise UserError(
                f"--arch {arch} is no architecture of this plugin{did_you_mean(arch, ARCHITECTURES)};"
                " `fairseq-residuals list --architectures` prints them"
            )
        task = next(t for t, family in FAMILIES.items() if family.model == ARCH_MODEL_NAME_REGISTRY[arch])
        found.append(ModelSource(task, arch, name=arch))
    for file in args.checkpoint or ():
        label, equals, path = str(file).partition("=")
        if not equals or file.exists():
            label, path = "", str(file)
        found.append(ModelSource(file=Path(path), name="/".join(Path(path).parts[-2:]), label=label))
    if not found:
        raise UserError("no model is named: give a wiring, such as b2t; `fairseq-residuals list` prints them")
    return found


def wiring_source(text: str, task: str) -> ModelSource:
    """Return the model of a wiring, NAME or NAME/k=v,...

    Raises:
        UserError: there is no such wiring, or none for the task.
    """
    name, _, given = text.partition("/")
    first = Wiring.parse(name, given).parts[0].name
    if f"{PREFIXES[task]}_{first}" not in ARCHITECTURES:
        reason = find_variant(first).refusal(alone=task == "language_modeling", topmost=True)
        raise UserError(f"wiring {first!r} cannot be used for --task {task}: {reason}")
    own = ("--residual", name) if name != first else ()
    flags = (*own, *(("--residual-args", given) if given else ()))
    return ModelSource(task, f"{PREFIXES[task]}_{first}", flags, name=given or name)


def make_subject(source: ModelSource, args: Namespace, device: torch.device) -> ModelAndLoss:
    """Build or load one model and make a batch for it.

    Raises:
        UserError: as :func:`fairseq_residuals.lab.look.subjects.subjects`.
    """
    make = load if source.file else build
    model, settings, task = make(source, args)
    for stack in stacks(model):
        stack.run_plainly()
    if not args.data:
        batches.check_room(args, settings, model)
    model = model.to(device)
    batch = (batches.read if args.data else batches.make_up)(args, settings, task, model).to(device, torch.float32)
    admin_measurement.profile(model, partial(batch.loss, model))
    torch.manual_seed(args.seed)
    model.train(args.training)
    return ModelAndLoss(model, partial(batch.loss, model), *label_and_wiring(settings), batch)


def label_and_wiring(settings: Namespace) -> tuple[str, str]:
    """Return the titles of the wirings of a model's stacks, and the name of its decoder's wiring."""
    wirings = [Wiring.parse(settings.residual, settings.residual_args)]
    wirings += [Wiring.parse(settings.decoder_residual, settings.decoder_residual_args)]
    return " / ".join(dict.fromkeys(wiring.title for wiring in wirings)), wirings[-1].name


def build(source: ModelSource, args: Namespace) -> tuple[nn.Module, Namespace, Any]:
    """Return a fresh model in evaluation mode, its complete settings, and its task.

    Raises:
        UserError: flags that are unknown, contradictory or out of range.
    """
    flags = [*size_flags(args, FAMILIES[source.task].stacks), *args.further, *source.flags]
    refuse_meaningless(flags, source.arch, source.task)
    parser = options.get_training_parser()

    def refuse(message: str) -> None:
        raise UserError(message)

    parser.error = refuse
    data = str(args.data or "synthetic")
    settings = options.parse_args_and_arch(parser, [data, "--task", source.task, "--arch", source.arch, *flags])
    if args.data:
        task = tasks.setup_task(convert_namespace_to_omegaconf(settings).task)
    else:
        if source.task == "speech_to_text":
            settings.input_feat_per_channel, settings.input_channels = batches.SOUND_FEATURES, 1
        task = batches.synthetic_task(settings, {"source": args.vocabulary, "target": args.vocabulary})
    torch.manual_seed(args.seed)
    return build_model(settings, task).eval(), settings, task


def load(source: ModelSource, args: Namespace) -> tuple[nn.Module, Namespace, Any]:
    """Return a checkpoint's model in evaluation mode, its settings, and its task.

    Raises:
        UserError: the file is damaged, or is no checkpoint of this plugin.
    """
    assert source.file is not None
    flags = [*size_flags(args, ("encoder", "decoder")), *args.further]
    if flags and not (args.variants or args.arch):
        raise UserError(f"{flags[0]} has no meaning for --checkpoint, whose model is what the file says")
    if not source.file.is_file():
        raise UserError(f"there is no checkpoint {source.file}")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(source.file))
    settings, cfg_task = state["cfg"].model, state["cfg"].task
    settings = Namespace(**{str(k): v for k, v in settings.items()}) if isinstance(settings, DictConfig) else settings
    if not hasattr(settings, "decoder_residual"):
        raise UserError(
            f"{source.file} is no checkpoint of this plugin; `fairseq-residuals import --from fairseq FILE OUT` makes"
            " one of a checkpoint of stock fairseq"
        )
    if args.data:
        with open_dict(cfg_task) if isinstance(cfg_task, DictConfig) else nullcontext():
            cfg_task.data = str(args.data)
        task = tasks.setup_task(cfg_task)
    else:
        task = batches.synthetic_task(settings, dictionary_sizes(Found(str(source.file), {}, state["model"])))
    model = build_model(state["cfg"].model, task)
    try:
        model.load_state_dict(state["model"], strict=True)
    except RuntimeError as error:
        raise misfit(error, str(source.file)) or error from error
    return model.eval(), settings, task
