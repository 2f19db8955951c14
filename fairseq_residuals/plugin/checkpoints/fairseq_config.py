"""The settings in checkpoints of any version of fairseq, and the complete settings of today's that they amount to."""

from __future__ import annotations

import argparse
import copy
from argparse import Namespace
from itertools import chain
from typing import Any

from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.setting_types import checked
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from modern_fairseq.fixes.checkpoint_loading import misfit

Settings = dict[str, Any]
"""Values by the names of flags, with underscores."""

OLD_NAMES = {
    "relu_dropout": ("activation_dropout",),
    "max_positions": ("max_source_positions", "max_target_positions"),
}
"""Flags of old versions of fairseq that are called otherwise now."""

COMPUTING = (
    "activation_fn",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "no_scale_embedding",
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "adaptive_input",
    "tie_adaptive_weights",
    "tie_adaptive_proj",
)
"""Settings that change what parameters compute, and often neither their names nor their shapes."""

INVALID = "the checkpoint's settings are not valid in this version of fairseq: "


def computed_otherwise(then: Settings, now: Settings) -> tuple[str, Any, Any] | None:
    """Return the first setting of :data:`COMPUTING` in which two models differ, with both values, or None."""
    # of embeddings that are all shared, fairseq may leave the decoder's unsaid
    shared = {"share_decoder_input_output_embed": True}
    then, now = (settings | (shared if settings.get("share_all_embeddings") else {}) for settings in (then, now))
    both = [(key, then[key], now[key]) for key in COMPUTING if key in then and key in now]
    # False and None are one
    return next((found for found in both if (found[1] or None) != (found[2] or None)), None)


def flat_settings(checkpoint: dict[str, Any]) -> Settings:
    """Read what a checkpoint says of its task, model and criterion, in whichever way its version of fairseq wrote it.

    Raises:
        UserError: one of them is not named by text.
    """
    cfg = _plain(checkpoint.get("cfg"))
    sections = [_plain(cfg.get(name)) for name in ("criterion", "optimizer", "task", "model")]
    found: Settings = {}
    for section in sections:
        # a model repeats settings of its task, and may leave them empty, such as the languages
        found |= {key: value for key, value in section.items() if value is not None or found.get(key) is None}
    for key, section in zip(("criterion", "optimizer", "task", "arch"), sections, strict=True):
        found[key] = section.get("_name") or section.get(key)
    found |= _plain(checkpoint.get("args"))
    for stack in ("encoder", "decoder"):
        nested = found.pop(stack, None)
        found |= {f"{stack}_{key}": value for key, value in _plain(nested).items()}
    for old, names in OLD_NAMES.items():
        if old in found:
            value = found.pop(old)
            found = dict.fromkeys(names, value) | found
    found["task"] = found.get("task") or "translation"
    for key in ("criterion", "optimizer", "task", "arch"):
        if not isinstance(found.get(key), str | None):
            raise UserError(f"the checkpoint's setting {key} must be a name, not {found[key]!r}")
    # the oldest versions kept some switches as text
    return {key: {"True": True, "False": False}.get(v, v) if isinstance(v, str) else v for key, v in found.items()}


def wiring_of(settings: Settings) -> str:
    """Return what a model of this plugin computes, which its parameters do not always show; empty for fairseq's own.

    Raises:
        UserError: a variant or an option that this version does not have.
    """
    names = [name for name in ("residual", "decoder_residual") if settings.get(name)]
    wirings = [Wiring.parse(str(settings[name]), settings.get(f"{name}_args")) for name in names]
    return " and ".join(dict.fromkeys(wiring.computes for wiring in wirings))


def wiring_of_any(settings: Settings) -> str:
    """Return what a model computes, fairseq's own too, which are Post-LN or Pre-LN; empty where no setting says which.

    Raises:
        UserError: a variant or an option that this version does not have.
    """
    own: Settings = {}
    for stack, key in (("encoder", "residual"), ("decoder", "decoder_residual")):
        if (pre_ln := settings.get(f"{stack}_normalize_before")) is not None:
            own[key] = "pre_ln" if pre_ln else "post_ln"
    if own.get("decoder_residual") == "pre_ln" and settings.get("no_decoder_final_norm"):
        own["decoder_residual_args"] = "final_norm=false"
    return wiring_of(settings if settings.get("residual") else own)


def _plain(section: Any) -> Settings:
    section = OmegaConf.to_container(section) if isinstance(section, DictConfig) else section
    return dict(vars(section)) if isinstance(section, Namespace) else dict(section or {})


def complete(arch: str, settings: Settings, exactly: Settings) -> tuple[Namespace, list[str]]:
    """Complete what is known of a checkpoint to the settings that fairseq-train would have made of it.

    Values of a file are set as attributes, each of the type of its flag; none of them is parsed as a command line.

    Args:
        arch: an architecture of this version.
        settings: of a checkpoint; what neither the model nor its task and criterion knows is left out.
        exactly: what the model has to be given beside, and instead.

    Returns:
        all settings of fairseq-train, and the flags that choose the model.

    Raises:
        UserError: a setting is not valid, or the task is unknown.
    """
    task = settings["task"]
    if task not in TASK_REGISTRY:
        raise UserError(f"the checkpoint's task {task!r} is none of this fairseq's; it may be a plugin's")
    criterion = settings.get("criterion") if settings.get("criterion") in CRITERION_REGISTRY else None
    actions = {action.dest: action for action in _parser_of(ARCH_MODEL_REGISTRY[arch])._actions}
    base = Namespace(**{key: value for key, value in vars(_defaults(task, criterion)).items() if key not in actions})
    known = actions.keys() | _without_a_flag(arch, base)
    wanted = {key: value for key, value in settings.items() if key in known and value not in (None, "")} | exactly
    wanted = {key: checked(actions.get(key), f"{INVALID}{key}", value) for key, value in wanted.items()}
    for owner in filter(None, (TASK_REGISTRY[task], CRITERION_REGISTRY.get(criterion))):
        for action in _parser_of(owner)._actions:
            if action.dest in settings and action.dest not in wanted:
                setattr(base, action.dest, checked(action, f"{INVALID}{action.dest}", settings[action.dest]))
    base.data = _data(settings)
    model = vars(_parser_of(ARCH_MODEL_REGISTRY[arch]).parse_args([]))
    given: Settings = {}
    # what is not given follows from what is: decoder_embed_dim from encoder_embed_dim
    while True:
        args = Namespace(**copy.deepcopy(vars(base) | model | given), arch=arch)
        ARCH_CONFIG_REGISTRY[arch](args)
        differing = {key: v for key, v in wanted.items() if key not in given and not _same(getattr(args, key, None), v)}
        if not differing:
            return args, ["--arch", arch, *chain(*(_flag(actions.get(key), value) for key, value in given.items()))]
        given |= differing


def _without_a_flag(arch: str, base: Namespace) -> set[str]:
    """Return the settings that a model has and no flag sets, such as the learned positions of a decoder of speech."""
    args = copy.deepcopy(base)
    ARCH_CONFIG_REGISTRY[arch](args)
    return vars(args).keys() - vars(base).keys()


def _data(settings: Settings) -> str:
    data = settings.get("data")
    data = data[0] if isinstance(data, list) and data else data or "data"
    if not isinstance(data, str):
        raise UserError(f"the checkpoint's settings are not valid: data must be the name of a folder, not {data!r}")
    return data


def _parser_of(owner: Any) -> argparse.ArgumentParser:
    """Return the flags of a model, task or criterion; those without a default of their own have none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    owner.add_args(parser)
    return parser


def _flag(action: argparse.Action | None, value: Any) -> list[str]:
    """Tell the user how a command line says it; empty where it cannot."""
    if action is None or not action.option_strings or (action.nargs == 0 and value != action.const):
        return []
    if action.nargs == 0:
        return [action.option_strings[0]]
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return [f"{action.option_strings[0]}={text}"]


def _same(a: Any, b: Any) -> bool:
    return a == b or (b in (False, 0) and not a and not isinstance(b, float))


def _defaults(task: str, criterion: str | None) -> Namespace:
    """Return fairseq-train's own settings of a task and a criterion that are registered, for no model yet."""
    parser = options.get_parser("Trainer")
    options.add_dataset_args(parser, train=True)
    options.add_distributed_training_args(parser)
    options.add_optimization_args(parser)
    options.add_checkpoint_args(parser)
    options.add_ema_args(parser)

    def refuse(message: str) -> None:
        raise UserError(f"the checkpoint's task {task} cannot be set up: {message}")

    parser.error = refuse  # type: ignore[method-assign, assignment]
    return options.parse_args_and_arch(
        parser, ["data", "--task", task, *(("--criterion", criterion) if criterion else ())]
    )


def load_model(args: Namespace, sizes: dict[str, int], parameters: dict[str, Tensor], name: str) -> nn.Module:
    """Return the model of complete settings in evaluation mode, with exactly these parameters.

    Args:
        sizes: words of the "source" (where it is of words, and has a dictionary of its own) and of the "target".
        name: whose parameters they are, for messages.

    Raises:
        UserError: the parameters are not those that the model has.
    """
    sound = parameters.get("encoder.subsample.conv_layers.0.weight")
    if sound is not None and not hasattr(args, "input_feat_per_channel"):
        # otherwise the data says so
        args.input_feat_per_channel, args.input_channels = sound.shape[1], 1
    model = build_model(convert_namespace_to_omegaconf(args).model, task_of(args, sizes))
    saved = model.state_dict().keys()  # some buffers are in no file, such as mHC-lite's permutations
    buffers = {key: value for key, value in model.named_buffers() if key in saved}
    try:
        model.load_state_dict({**buffers, **parameters}, strict=True)
    except RuntimeError as error:
        raise misfit(error, name) or error from error
    return model.eval()


def task_of(args: Namespace, sizes: dict[str, int]) -> Namespace:
    """Return what fairseq's models ask of a task; ``sizes`` as in :func:`load_model`."""
    target = synthetic_dictionary(sizes["target"])
    source = synthetic_dictionary(sizes["source"]) if "source" in sizes else target
    return Namespace(source_dictionary=source, target_dictionary=target, args=Namespace(**vars(args)))


def synthetic_dictionary(words: int) -> Dictionary:
    """Return a dictionary of so many words, the special symbols included."""
    dictionary = Dictionary()
    for i in range(len(dictionary), words):
        dictionary.add_symbol(f"w{i}")
    return dictionary
