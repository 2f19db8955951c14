"""Configurations of fairseq-hydra-train that name what there is not."""

import types
from typing import Any

from omegaconf import DictConfig

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq.proxies import replaces

GROUPS = ("task", "model", "criterion", "optimizer", "lr_scheduler")
NOT_FAIRSEQS = ("recipe",)
"""Keys that a configuration may have at its top though fairseq looks at none: what is known of a paper's recipe."""


def names_of_groups(module: types.ModuleType) -> None:
    """Check what a configuration names before any of it is made (hydra_train.py:30).

    Of an unknown or missing task, model or optimizer fairseq says "Could not infer task type from None"
    (tasks/__init__.py:44) or ends in a KeyError (registry.py:55); a key at the top that it does not know, which an
    override with a plus can add, is left aside without a word. Can go when fairseq > 0.12.2 names what is wrong.
    """

    @replaces(module, "_hydra_main")
    def _hydra_main(original: Any, cfg: Any, **kwargs: Any) -> Any:
        _check_top(cfg)
        for group in GROUPS:
            _check_group(cfg, group)
        return original(cfg, **kwargs)


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
