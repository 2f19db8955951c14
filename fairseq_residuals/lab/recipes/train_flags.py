"""The flags of fairseq-train that say what a configuration of fairseq-hydra-train says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_residuals.lab.recipes.compose import plain

_REGISTRIES = {
    "model": "--arch",
    "task": "--task",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}


def as_flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Return ``{beam: 4, cpu: true}`` as --beam 4 --cpu; what is None or False is left out."""
    for key, value in settings.items():
        if value is None or value is False:
            continue
        yield f"--{key.replace('_', '-')}"
        if isinstance(value, Mapping):
            yield ",".join(f"{k}={v}" for k, v in value.items())
        elif isinstance(value, list):
            yield ",".join(map(str, value))
        elif value is not True:
            yield str(value)


def train_flags(config: DictConfig) -> list[str]:
    """Return what follows ``fairseq-train``: the data folder, and a flag for each setting that is not the default."""
    from fairseq.dataclass.configs import FairseqConfig

    settings = plain(config)
    flags = [settings["task"].pop("data")]
    for group, field in FairseqConfig.__dataclass_fields__.items():
        given = settings.get(group) or {}
        if group in _REGISTRIES:
            flags += [_REGISTRIES[group], given.pop("_name"), *as_flags(given)]
        elif is_dataclass(field.default):
            defaults = OmegaConf.to_container(OmegaConf.structured(field.default), enum_to_str=True)
            assert isinstance(defaults, dict)
            changed = {key: value for key, value in given.items() if value != _resolved(defaults[key], settings)}
            # a switch that is on by default has a flag that turns it off
            flags += as_flags({key: isinstance(value, bool) or value for key, value in changed.items()})
    return flags


def _resolved(default: Any, settings: Mapping[str, Any]) -> Any:
    """Return a default that refers to another setting, such as ${common.fp16}."""
    if isinstance(default, str) and default.startswith("${"):
        value: Any = settings
        for key in default[2:-1].split("."):
            value = value[key]
        return value
    return default
