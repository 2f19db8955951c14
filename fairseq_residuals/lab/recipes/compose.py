"""A configuration as fairseq-hydra-train composes it from a folder of YAML files."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_residuals.lab.recipes.rows import as_command_line
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from modern_fairseq.messages.yaml_mistakes import NOT_FAIRSEQS, sentence

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
"""What may differ between two runs that are to give the same numbers, up to chance."""


def compose(configs: Path, name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the whole configuration: fairseq's defaults, the shared files, the row's own, and the overrides.

    Args:
        configs: what ``--config-dir`` names.
        name: of a row or of a file, such as b2t/table1/18l_b2t.
        overrides: as hydra takes them, such as optimization.max_update=100.

    Raises:
        UserError: there is no such configuration, or an override that hydra refuses.
    """
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
            raise UserError(f"{name}: {sentence(error) or error}") from error
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
    """Return tokens (in speech: frames) per update, an upper bound as fairseq counts; the files are for one device."""
    devices = config.distributed_training.distributed_world_size
    return config.dataset.max_tokens * config.optimization.update_freq[0] * devices


def training_hash(config: DictConfig) -> str:
    """Return names what is trained, whatever the seed, the machine and the number of devices."""
    return _hash(_training(config))


def whole_hash(config: DictConfig) -> str:
    """Return names what is trained and how it is scored, whatever the seed, the machine and the number of devices."""
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
    # a release is named only where it is not the pinned one, so that other recipes keep the hashes that they had
    data = [recipe["corpus"], recipe.get("variant"), *filter(None, [recipe.get("release")])]
    return settings | {"effective_batch": effective_batch(config), "trained_on": data}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
