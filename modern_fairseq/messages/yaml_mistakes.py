"""Configurations of fairseq-hydra-train: what is wrong with a YAML file or an override, in one sentence."""

import contextlib
import os
import types
from collections.abc import Iterator
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq.plain_yaml import check_aliases
from modern_fairseq.proxies import replaces

GROUPS = ("task", "model", "criterion", "optimizer", "lr_scheduler")
NOT_FAIRSEQS = ("recipe",)
"""What a configuration may have at its top though fairseq looks at none of it: what is known of a paper's recipe."""


def sentence(error: BaseException) -> UserError | None:
    """Put an error of PyYAML, hydra or omegaconf in one sentence; None for others, which keep their traceback."""
    if isinstance(error, yaml.YAMLError):
        return UserError(f"the configuration is no YAML: {error}")
    if isinstance(error, OmegaConfBaseException):
        key, reason = error.full_key, str(error).partition("\n")[0]
        return UserError(f"{key}: {reason}" if key and key not in reason else f"the configuration: {reason}")
    if isinstance(error, RecursionError):
        return UserError("the configuration is nested too deeply, or an alias in it stands for what it is part of")
    if isinstance(error, HydraException):
        inner = sentence(error.__cause__) if error.__cause__ else None
        return inner or UserError(str(error).partition("\n\n")[0])
    return None


def errors_in_hydra_config(module: types.ModuleType) -> None:
    """Say what is wrong with a configuration before there is a job (hydra_train.py:75-86).

    hydra prints such errors in its own way, most of them with a traceback; its variable HYDRA_FULL_ERROR leaves them
    to the caller. Can stay as long as hydra does.
    """

    @replaces(module, "cli_main")
    def cli_main(original: Any) -> Any:
        with _hydra_raises(), _bounded_aliases():
            try:
                return original()
            except UnicodeDecodeError as error:
                raise UserError(f"a file of the configuration is not UTF-8 text ({error})") from error
            except Exception as error:
                raise sentence(error) or error from error


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
    """Check what a configuration names before any of it is made (hydra_train.py:30).

    Of an unknown or missing task, model or optimizer fairseq says "Could not infer task type from None"
    (tasks/__init__.py:44) or ends in a KeyError (registry.py:55); a key at the top that it does not know, which an
    override with a plus can add, is left aside without a word. Can go when fairseq > 0.12.2 names what is wrong.
    """

    @replaces(module, "_hydra_main")
    def _hydra_main(original: Any, cfg: Any, **kwargs: Any) -> Any:
        try:
            _check_top(cfg)
            for group in GROUPS:
                _check_group(cfg, group)
            return original(cfg, **kwargs)
        except OmegaConfBaseException as error:
            raise sentence(error) or error from error


def _check_top(cfg: Any) -> None:
    from fairseq.dataclass.configs import FairseqConfig

    valid = sorted(FairseqConfig.__dataclass_fields__.keys() - {"_name"})
    for key in cfg:
        if key not in (*valid, "_name", *NOT_FAIRSEQS):
            near = did_you_mean(str(key), valid) or " (a setting is of a group, as model.dropout is)"
            raise UserError(f"unknown key {key} in the configuration{near}; valid: {', '.join(valid)}")


def _check_group(cfg: Any, group: str) -> None:
    from fairseq.utils import import_user_module

    settings = cfg.get(group)
    name = settings.get("_name") if isinstance(settings, DictConfig) else settings
    if name is None and group == "model" and settings and len(settings) == 1:
        return  # fairseq takes the only key for the model's name
    if not isinstance(name, str):
        raise UserError(
            f"the configuration has no {group}: give {group}=NAME on the command line, or {group}: {{_name: NAME, ...}}"
            " in its file"
        )
    if name not in _known(group):
        import_user_module(cfg.common)  # which is to be imported, and may know the name
    if name not in _known(group):
        raise UserError(f"unknown {group} {name!r}{did_you_mean(name, _known(group))}")


def _known(group: str) -> set[str]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    if group == "model":
        return {*ARCH_MODEL_REGISTRY, *MODEL_DATACLASS_REGISTRY}
    return set(TASK_REGISTRY if group == "task" else REGISTRIES[group]["registry"])
