"""Configurations of fairseq-hydra-train: what is wrong with a YAML file or an override, in one sentence."""

import contextlib
import functools
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra._internal.utils
import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq.plain_yaml import check_aliases

GROUPS = ("task", "model", "criterion", "optimizer", "lr_scheduler")
NOT_FAIRSEQS = ("recipe",)
"""What a configuration may have at its top though fairseq looks at none of it: what is known of a paper's recipe."""


def sentence(error: BaseException, group: str = "") -> UserError | None:
    """Put an error of PyYAML, hydra or omegaconf in one sentence; None for any other, which is to keep its traceback.

    Args:
        group: that the configuration belongs to, where the error knows only a key inside.
    """
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "the configuration"
        return UserError(f"{place}: {error.problem or error.context}: this is no YAML, or is indented wrongly")
    if isinstance(error, yaml.reader.ReaderError):
        return UserError(f"{error.name}: {error.reason}, at character {error.position}: this is no YAML")
    if isinstance(error, OmegaConfBaseException):
        return _of_setting(error, group)
    if isinstance(error, RecursionError):
        return UserError("the configuration is nested too deeply, or an alias in it stands for what it is part of")
    if isinstance(error, HydraException):
        inner = sentence(error.__cause__, group) if error.__cause__ else None
        return inner or UserError(str(error).partition("\n\n")[0])
    return None


def _of_setting(error: OmegaConfBaseException, group: str) -> UserError:
    key = ".".join(filter(None, (group, error.full_key or "")))
    fields = getattr(error.object_type, "__dataclass_fields__", None)
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and fields:
        valid = sorted(name for name in fields if name != "_name")
        place = key.rpartition(".")[0]
        where = (f" under {place}" if place else " in the configuration") + did_you_mean(str(error.key), valid)
        return UserError(f"unknown key {error.key}{where}; valid: {', '.join(valid)}")
    reason = str(error).partition("\n")[0]
    if "is not in struct" in reason:
        reason = f"the configuration has no such key; if it is spelt rightly, add it with a plus: +{key}=..."
    if "is not a ListConfig" in reason:
        reason = "it must be a list, such as [1]"
    return UserError(f"{key or 'the configuration'}: {reason}")


def settings_of_groups(module: types.ModuleType) -> None:
    """Name the setting where the values of a group do not fit its dataclass (dataclass/utils.py:500).

    Can stay as long as fairseq lets omegaconf's errors through.
    """
    original = module.merge_with_parent

    @functools.wraps(original)
    def merge_with_parent(dc: Any, cfg: DictConfig, *args: Any, **kwargs: Any) -> DictConfig:
        try:
            return original(dc, cfg, *args, **kwargs)
        except OmegaConfBaseException as error:
            key = cfg._key() if isinstance(cfg, DictConfig) else None
            raise _of_setting(error, str(key or "")) from error

    module.merge_with_parent = merge_with_parent  # type: ignore[attr-defined]


def errors_in_hydra_config(module: types.ModuleType) -> None:
    """Say what is wrong with a configuration before there is a job (hydra_train.py:75-86).

    hydra prints such errors in its own way, most of them with a traceback; its variable HYDRA_FULL_ERROR leaves them
    to the caller. Can stay as long as hydra does.
    """
    original = module.cli_main

    @functools.wraps(original)
    def cli_main() -> Any:
        with _hydra_raises(), _bounded_aliases():
            try:
                _check_config_name()
                return original()
            except UnicodeDecodeError as error:
                raise UserError(f"a file of the configuration is not UTF-8 text ({error})") from error
            except Exception as error:
                raise sentence(error) or error from error

    module.cli_main = cli_main  # type: ignore[attr-defined]


def _check_config_name() -> None:
    """Refuse a ``--config-name`` that no file has.

    fairseq gives its schema that name (initialize.py:19), so hydra finds a configuration whatever the name is, and an
    empty one then lacks its task, its model and all else.
    """
    args = hydra._internal.utils.get_args()
    folder = Path(args.config_dir) if args.config_dir else None
    elsewhere = args.config_path is not None or any("hydra.searchpath" in one for one in args.overrides)
    if args.config_name is None or elsewhere or (folder is not None and not folder.is_dir()):
        return  # hydra looks into other folders too, or says that there is no such folder
    name = args.config_name.removesuffix(".yaml")
    import fairseq

    own = Path(fairseq.__path__[0], "config")
    if any((place / f"{name}.yaml").is_file() for place in (folder, own) if place is not None):
        return
    if folder is None:
        raise UserError(f"fairseq has no configuration {name} of its own; --config-dir names the folder of yours")
    names = sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))
    few = f"; valid: {', '.join(names)}" if len(names) <= 30 else f"; it has {len(names)} others"
    raise UserError(
        f"{folder} has no configuration {name}{did_you_mean(name, names)}"
        + (few if names else ", and no other file that ends in .yaml")
    )


@contextlib.contextmanager
def _bounded_aliases() -> Iterator[None]:
    """Let omegaconf, which writes out every alias, read no file that a few of them make larger than any memory."""
    load = OmegaConf.load

    def bounded(file_: Any) -> DictConfig | ListConfig:
        if hasattr(file_, "seek"):  # as hydra opens it
            check_aliases(file_)
            file_.seek(0)
        return load(file_)

    OmegaConf.load = bounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        OmegaConf.load = load  # type: ignore[method-assign]


@contextlib.contextmanager
def _hydra_raises() -> Iterator[None]:
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def names_of_groups(module: types.ModuleType) -> None:
    """Check the names of task, model, criterion, optimizer and schedule before any is made (hydra_train.py:30).

    fairseq ends in a KeyError (registry.py:55), or prints all names there are (tasks/__init__.py:44).
    Can go when fairseq > 0.12.2 says what is unknown.
    """
    original = module._hydra_main

    @functools.wraps(original)
    def _hydra_main(cfg: Any, **kwargs: Any) -> Any:
        try:
            _check_top(cfg)
            for group in GROUPS:
                _check_group(cfg, group)
            return original(cfg, **kwargs)
        except OmegaConfBaseException as error:
            raise _of_setting(error, "") from error

    module._hydra_main = _hydra_main  # type: ignore[attr-defined]


def _check_top(cfg: Any) -> None:
    """Refuse what fairseq would not look at, which an override with a plus can add, and a lack of its defaults."""
    from fairseq.dataclass.configs import FairseqConfig

    fields = FairseqConfig.__dataclass_fields__
    groups = {name: getattr(fields[name].default, "__dataclass_fields__", {}) for name in fields if name != "_name"}
    for key in cfg:
        if key in fields or key in NOT_FAIRSEQS:
            continue
        of_group = next((name for name, settings in groups.items() if key in settings), "model")
        near = did_you_mean(str(key), groups) or f" (a setting is of a group, as {of_group}.{key} is)"
        raise UserError(f"unknown key {key} in the configuration{near}; valid: {', '.join(sorted(groups))}")
    if "reset_logging" not in (cfg.get("common") or {}):
        raise UserError(
            "the configuration has none of fairseq's default settings, which reach only those at the top of"
            " --config-dir: let --config-dir name the folder that the file is in"
        )


def _check_group(cfg: Any, group: str) -> None:
    from fairseq.utils import import_user_module

    settings = cfg.get(group)
    is_name = isinstance(settings, str) and group != "model"
    if not is_name and not isinstance(settings, DictConfig):
        raise UserError(f"{group} must be a mapping with a _name, as {group}: {{_name: NAME, ...}}, not {settings!r}")
    name = settings if is_name else settings.get("_name")
    if name is None and group == "model" and len(settings) == 1:
        return  # fairseq takes the only key for the model's name
    if name is None:
        raise UserError(f"{group}._name is missing: {group}: {{_name: NAME, ...}}")
    if name not in _known(group):
        import_user_module(cfg.common)  # which is to be imported, and may know the name
    known = _known(group)
    if name not in known:
        valid = f"; valid: {', '.join(sorted(known))}" if len(known) <= 30 else ""
        raise UserError(f"unknown {group} {name!r}{did_you_mean(str(name), known)}{valid}")
    if group == "task" and _needs_data(name) and not (not is_name and OmegaConf.select(settings, "data")):
        raise UserError("task.data is missing: name the folder that fairseq-preprocess made")


def _known(group: str) -> set[str]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    if group == "model":
        return {*ARCH_MODEL_REGISTRY, *MODEL_DATACLASS_REGISTRY}
    return set(TASK_REGISTRY if group == "task" else REGISTRIES[group]["registry"])


def _needs_data(task: str) -> bool:
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    return "data" in getattr(TASK_DATACLASS_REGISTRY.get(task), "__dataclass_fields__", {})
