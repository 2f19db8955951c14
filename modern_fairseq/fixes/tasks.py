"""Settings of tasks: complete in YAML files, and in checkpoints; and a plugin's models in YAML files."""

import argparse
import sys
import types
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


def tasks_without_dataclass_in_yaml(module: types.ModuleType) -> None:
    """Let ``task: {_name: speech_to_text, ...}`` be a task of fairseq-hydra-train (tasks/__init__.py:24-46).

    fairseq looks up ``_name`` among tasks with a dataclass only, and fills in no defaults for the others: "Could not
    infer task type".  Their own flags say what the defaults are.
    Can go when fairseq > 0.12.2 gives every task a dataclass.
    """

    @replaces(module, "setup_task")
    def setup_task(original: Any, cfg: Any, **kwargs: Any) -> Any:
        if isinstance(cfg, DictConfig) and cfg.get("task") is None:
            name = cfg.get("_name")
            if name in module.TASK_REGISTRY and name not in module.TASK_DATACLASS_REGISTRY:
                _complete(cfg, name, module.TASK_REGISTRY[name])
        return original(cfg, **kwargs)


def _complete(cfg: DictConfig, name: str, task: Any) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    task.add_args(parser)
    known = {action.dest: action for action in parser._actions}
    common = {"_name", "seed", "train_subset", "dataset_impl"}
    unknown = sorted(set(map(str, cfg)) - set(known) - common)
    if unknown:
        valid = ", ".join(sorted(set(known) | common))
        raise UserError(f"unknown key {', '.join(unknown)} under task {name}; valid: {valid}")
    with open_dict(cfg):
        for key, action in known.items():
            if key not in cfg:
                if action.required:
                    raise UserError(f"task.{key} is missing: {action.help}")
                cfg[key] = action.default
        if "seed" not in cfg:
            cfg.seed = OmegaConf.select(cfg._get_root(), "common.seed", default=1)
        if "dataset_impl" not in cfg:  # read by translation_multi_simple_epoch
            cfg.dataset_impl = OmegaConf.select(cfg._get_root(), "dataset.dataset_impl", default=None)
        cfg.task = name


def record_languages(module: types.ModuleType) -> None:
    """Put the languages that a task has inferred from its data into its settings, and so into checkpoints.

    tasks/__init__.py:38 hands the task a copy, so that a model trained without ``-s`` and ``-t`` did not know its
    direction, and translated in the other one. Can go when fairseq > 0.12.2 records them.
    """

    @replaces(module, "setup_task")
    def setup_task(original: Any, cfg: Any, **kwargs: Any) -> Any:
        task = original(cfg, **kwargs)
        if isinstance(cfg, DictConfig):
            inferred = {key: getattr(task.cfg, key, None) for key in ("source_lang", "target_lang") if key in cfg}
            with open_dict(cfg):
                cfg.update({key: value for key, value in inferred.items() if value is not None})
        return task


def user_dir_before_compose(module: types.ModuleType) -> None:
    """Import ``common.user_dir=DIR`` before hydra composes, so that ``model=NAME`` finds the models of DIR.

    fairseq imports it in train.main, when hydra has already said "Could not find 'model/NAME'"
    (hydra_train.py:75-86). Can go when fairseq > 0.12.2 imports it first.
    """

    @replaces(module, "cli_main")
    def cli_main(original: Any) -> Any:
        from fairseq.utils import import_user_module

        for argument in sys.argv[1:]:
            name, _, folder = argument.lstrip("+").partition("=")
            if name == "common.user_dir" and folder != "null":
                import_user_module(argparse.Namespace(user_dir=folder.strip("'\"")))
        return original()


def positions_once(module: types.ModuleType) -> None:
    """Let ``--task denoising`` and ``multilingual_denoising`` train a Transformer, such as BART.

    The tasks add ``--max-source-positions`` too (tasks/denoising.py:110), and argparse ended in "conflicting option
    string". The task's default is taken. Can go when fairseq > 0.12.2 gives the tasks a dataclass.
    """

    @replaces(module.DenoisingTask, "add_args")
    def add_args(original: Any, parser: Any) -> None:
        if isinstance(parser, argparse.ArgumentParser):  # else a group, in which Python 3.14 takes no other
            parser = parser.add_argument_group("denoising", conflict_handler="resolve")
        original(parser)


def settings_of_bart(module: types.ModuleType) -> None:
    """Let ``--task translation_from_pretrained_bart`` find its settings (tasks/translation_from_pretrained_bart.py:66).

    It asks for ``args``, which are ``cfg`` since its base has a dataclass. Can go when fairseq > 0.12.2 asks for those.
    """
    module.TranslationFromPretrainedBARTTask.args = property(lambda self: self.cfg)
