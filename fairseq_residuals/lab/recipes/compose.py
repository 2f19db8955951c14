"""A configuration as fairseq-hydra-train composes it, and the rows of papers' tables that are configurations.

The rows are in ``configs/<experiment>/rows.yaml``::

    table1/18l_t_fixup:
      base: b2t/shared/mt                      a file of configs/
      schedule: t_fixup                        of configs/schedule, where it is not that of the base
      model: {_name: transformer_t_fixup_wmt_en_de_18l}
      hardware: 128 P100, 13 hours (Table 7)
      known: the schedule is that of the T-Fixup paper [I]

Further keys are settings of fairseq-hydra-train. So a row is its base with overrides, and a command line of
fairseq-hydra-train without a file of its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from modern_fairseq.messages.wrong_answers import NOT_FAIRSEQS
from modern_fairseq.plain_yaml import read_yaml

NOTES = ("hardware", "known")
"""Keys of a row for readers: on what the paper trained, and what is known, inferred or unknown of its settings."""
SEED, BATCH = "common.seed", ("dataset.max_tokens", "optimization.update_freq")
ONE_AT_A_TIME = threading.Lock()
"""hydra has one state for the whole process."""
_OF_THE_MACHINE = (
    SEED,
    *BATCH,
    "task.data",
    "task.lang_pairs",
    "checkpoint.save_dir",
    "common.user_dir",
    "common.cpu",
    "common.log_interval",
    "common.log_format",
    "dataset.num_workers",
    "distributed_training",
)
"""Settings that may differ between two runs that are to give the same numbers, up to chance."""


def as_command_line(configs: Path, name: str) -> tuple[str, list[str]]:
    """Return the ``--config-name`` and the overrides of a row; of what is a file, its name and none."""
    row = _read(configs / name.partition("/")[0] / "rows.yaml").get(name.partition("/")[2])
    if row is None:
        return name, []
    overrides = [f"schedule={row['schedule']}"] if "schedule" in row else []
    settings = {key: value for key, value in row.items() if key not in ("base", "schedule", *NOTES)}
    return row["base"], [*overrides, *(f"++{text}" for text in _overrides(settings))]


@cache
def _read(path: Path) -> dict[str, dict[str, Any]]:
    return read_yaml(path) if path.is_file() else {}


def _overrides(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield override(f"{prefix}{key}", value)


def override(key: str, value: str | int | bool | list[int] | None) -> str:
    """Return an override as hydra's grammar has it.

    Raises:
        UserError: the value is a path that hydra or fairseq cannot be given.
    """
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if "'" in text or (text.startswith("/") and ":" in text):
        raise UserError(f"{text}: hydra takes no quotation mark in a path, and fairseq no colon; choose another folder")
    if not isinstance(value, str) or re.fullmatch(r"[\w./:-]+", text, re.ASCII):
        return f"{key}={text}"
    return f"{key}='{text}'"


def key_of(text: str) -> str:
    """Return the key of an override as a user writes it, KEY=VALUE, +KEY=VALUE or ~KEY."""
    return text.lstrip("+~").partition("=")[0]


def compose(configs: Path, name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the whole configuration: fairseq's defaults, the shared files, the row's own, and the overrides.

    Args:
        configs: what ``--config-dir`` names.
        name: of a row or of a file, such as b2t/table1/18l_b2t.
        overrides: as hydra takes them, such as optimization.max_update=100.

    Raises:
        UserError: there is no such configuration, or an override that hydra refuses.
    """
    return copy.deepcopy(_composed(configs, name, tuple(overrides)))


@cache
def _composed(configs: Path, name: str, overrides: tuple[str, ...]) -> DictConfig:
    """Compose a configuration once: hydra takes a third of a second, and seeds of a row have one."""
    from fairseq.dataclass.initialize import hydra_init

    primary, of_row = as_command_line(configs, name)
    if not (configs / f"{primary}.yaml").is_file():
        raise UserError(f"there is no configuration {configs / primary}.yaml, nor a row of that name in rows.yaml")
    if "common" not in {key.removesuffix(".yaml") for key in ConfigStore.instance().list("")}:
        hydra_init()
    with ONE_AT_A_TIME, warnings.catch_warnings():
        GlobalHydra.instance().clear()
        # "Hydra 1.4 will remove this compatibility behavior": fairseq-hydra-train relies on 1.1's as well
        warnings.simplefilter("ignore")
        try:
            with hydra.initialize_config_dir(str(configs.resolve()), version_base="1.1"):
                # in the file this is asked of the running job
                save_dir = f"checkpoint.save_dir=checkpoints/{name}"
                config = hydra.compose(primary, overrides=[save_dir, *of_row, *overrides])
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(f"{name}: {error.__cause__ or error}") from error
    OmegaConf.set_struct(config, False)
    _refuse_unknown(name, config)
    return config


def _refuse_unknown(name: str, config: DictConfig) -> None:
    """Refuse settings that fairseq would never look at; an override by ++ may have added them."""
    from fairseq.dataclass.configs import FairseqConfig

    groups = {key: field.default for key, field in FairseqConfig.__dataclass_fields__.items()}
    groups |= dict.fromkeys(NOT_FAIRSEQS)
    known = {key: set(default.__dataclass_fields__) for key, default in groups.items() if is_dataclass(default)}
    unknown = [str(key) for key in config if key not in groups]
    unknown += [f"{group}.{key}" for group, keys in known.items() for key in config.get(group, ()) if key not in keys]
    if unknown:
        settings = [*groups, *(f"{group}.{key}" for group, keys in known.items() for key in keys)]
        named = ", ".join(f"{key}{did_you_mean(key, settings)}" for key in unknown)
        raise UserError(f"{name}: fairseq has no setting {named}; at the top are {', '.join(groups)}")


def plain(config: DictConfig) -> dict[str, Any]:
    """Return dictionaries, lists and scalars, interpolations resolved."""
    container = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    assert isinstance(container, dict)
    return container  # type: ignore[return-value]


def effective_batch(config: DictConfig) -> int:
    """Return tokens (in speech: frames) per update, an upper bound as fairseq counts; the files are for one device.

    Raises:
        UserError: the batch is not counted in tokens, or is not the same in all epochs.
    """
    tokens, passes = config.dataset.max_tokens, config.optimization.update_freq
    if tokens is None or len(passes) != 1:
        said = f"not dataset.max_tokens={tokens} and optimization.update_freq={passes}"
        raise UserError(f"the batch is so many tokens in so many passes, the same in all epochs, {said}")
    return tokens * passes[0] * config.distributed_training.distributed_world_size


def training_hash(config: DictConfig) -> str:
    """Return a digest of what is trained, whatever the seed, the machine and the number of devices."""
    return _hash(_training(config))


def whole_hash(config: DictConfig) -> str:
    """Return a digest of what is trained and how it is scored, whatever the seed, the machine and the devices."""
    return _hash([_training(config), plain(config)["recipe"]])


def _training(config: DictConfig) -> dict[str, Any]:
    settings = plain(config)
    recipe = settings.pop("recipe")
    for key in _OF_THE_MACHINE:
        group, _, name = key.partition(".")
        if name:
            settings[group].pop(name, None)
        else:
            del settings[group]
    data = [recipe["corpus"], recipe.get("variant")]
    return settings | {"effective_batch": effective_batch(config), "trained_on": data}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
