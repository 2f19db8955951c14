"""hydra: compose() and initialize() left ``hydra.experimental`` in 1.2, and 1.3 is older than Python 3.14."""

import argparse
import os
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

import hydra
import hydra._internal.utils
from omegaconf import DictConfig, OmegaConf

from modern_fairseq.proxies import override


def current_api(module: types.ModuleType) -> None:
    """Give dataclass/utils.py:15 today's functions, pinned to the behaviour of hydra 1.1.

    ``hydra.experimental`` still works in 1.3, with half a dozen warnings at each start.  fairseq relies on
    1.1's non-strict configs and on schemas found by name, hence ``version_base``. Can go when fairseq >
    0.12.2 imports ``hydra.compose`` and ``hydra.initialize`` itself.
    """
    here = os.path.dirname(str(module.__file__))

    def initialize(config_path: str) -> Any:
        with warnings.catch_warnings():
            # "Hydra 1.4 will remove this compatibility behavior"
            warnings.simplefilter("ignore")
            folder = os.path.normpath(os.path.join(here, config_path))
            return hydra.initialize_config_dir(folder, version_base="1.1")

    def compose(config_name: str, overrides: Sequence[str] = (), strict: bool | None = None) -> DictConfig:
        with warnings.catch_warnings():
            # "In 'config': Defaults list is missing `_self_`" and the like: true of fairseq's own config.yaml
            warnings.simplefilter("ignore")
            config = hydra.compose(config_name, overrides=list(overrides))
        if strict is not None:
            OmegaConf.set_struct(config, strict)
        return config

    module.initialize, module.compose = initialize, compose  # type: ignore[attr-defined]


class _ParserOfHydra(argparse.ArgumentParser):
    """Checks a help text that is text, and leaves one that hydra writes when it is asked for."""

    def _check_help(self, action: argparse.Action) -> None:
        if isinstance(action.help, str):
            super()._check_help(action)  # type: ignore[misc]


def lazy_help(module: types.ModuleType) -> None:
    """Let fairseq-hydra-train start on Python 3.14, whose argparse looks into each help text at once.

    That of ``--shell-completion`` is an object in hydra 1.3.2 (hydra/_internal/utils.py:551): "badly formed help
    string". Can go when hydra > 1.3.2 is what fairseq runs with.
    """
    if sys.version_info >= (3, 14):
        override(hydra._internal.utils, "argparse", ArgumentParser=_ParserOfHydra)
