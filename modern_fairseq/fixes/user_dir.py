"""A plugin's models in the YAML files of fairseq-hydra-train."""

import argparse
import sys
import types
from typing import Any

from modern_fairseq.proxies import replaces


def user_dir_before_compose(module: types.ModuleType) -> None:
    """Import ``common.user_dir=DIR`` before hydra composes, so that ``model=NAME`` finds the models of DIR.

    fairseq imports it in train.main, when hydra has already said "Could not find 'model/NAME'"
    (hydra_train.py:75-86). Can go when fairseq > 0.12.2 imports it first.
    """

    @replaces(module, "cli_main")
    def cli_main(original: Any) -> Any:
        from fairseq.utils import import_user_module

        prefix = "common.user_dir="
        for argument in sys.argv[1:]:
            if argument.lstrip("+").startswith(prefix):
                import_user_module(argparse.Namespace(user_dir=argument.lstrip("+").removeprefix(prefix)))
        return original()
