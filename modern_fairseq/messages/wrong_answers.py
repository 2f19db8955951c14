"""Commands that would end with exit status 0 and a wrong answer, or none: refused with a sentence."""

import argparse
import contextlib
import functools
import inspect
import math
import os
import types
from collections.abc import Sequence
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.fixes import overrides


def check_generation(module: types.ModuleType) -> None:
    """Check what fairseq-generate and fairseq-interactive are asked for before they load or write anything.

    generate.py:370 prints as many hypotheses as there are, whatever --nbest says, and a penalty that is no number makes
    any order of them. Can go when fairseq > 0.12.2 refuses them.
    """
    original = module.main

    @functools.wraps(original)
    def main(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        _check_search(cfg.generation)
        return original(cfg, *args, **kwargs)

    module.main = main  # type: ignore[attr-defined]


def _check_search(generation: Any) -> None:
    for flag, value in (("--beam", generation.beam), ("--nbest", generation.nbest)):
        if value < 1:
            raise UserError(f"{flag} must be at least 1, not {value}")
    if generation.nbest > generation.beam:
        raise UserError(
            f"--nbest {generation.nbest} is more than --beam {generation.beam}, and a search finds no more hypotheses"
            " than its beam is wide: raise --beam, or lower --nbest"
        )
    if generation.prefix_size < 0:
        raise UserError(f"--prefix-size must be at least 0, not {generation.prefix_size}")
    for flag, number in (("--lenpen", generation.lenpen), ("--unkpen", generation.unkpen)):
        if not math.isfinite(number):
            raise UserError(f"{flag} must be a finite number, not {number}")


def lines_to_score(module: types.ModuleType) -> None:
    """Refuse texts of different lengths to fairseq-score, which leaves out what the longer one has more (score.py:88).

    Can go when fairseq > 0.12.2 refuses them.
    """
    original = module.cli_main

    @functools.wraps(original)
    def cli_main() -> Any:
        args = module.get_parser().parse_args()
        if os.path.isfile(args.ref) and (args.sys == "-" or os.path.isfile(args.sys)):
            with module.open(args.ref) as reference:
                references = len(reference)
            with contextlib.nullcontext(module.sys.stdin) if args.sys == "-" else module.open(args.sys) as output:
                if len(output) != references:
                    raise UserError(
                        f"{args.sys} has {len(output):,} lines and {args.ref} {references:,}: the output and its"
                        " reference must have as many as each other"
                    )
        return original()

    module.cli_main = cli_main  # type: ignore[attr-defined]


def check_batches(module: types.ModuleType) -> None:
    """Refuse sizes of batches of which none can be made (data/data_utils.py:300).

    ``--batch-size 0`` and ``--max-tokens 0`` count as no limit there, negative ones as none that is satisfied.
    Can go when fairseq > 0.12.2 refuses them.
    """
    original = module.batch_by_size
    signature = inspect.signature(original)

    @functools.wraps(original)
    def batch_by_size(*args: Any, **kwargs: Any) -> Any:
        sizes = signature.bind(*args, **kwargs).arguments
        for flag, name in (("--max-tokens", "max_tokens"), ("--batch-size", "max_sentences")):
            if sizes.get(name) is not None and sizes[name] < 1:
                raise UserError(f"{flag} must be at least 1, not {sizes[name]}")
        return original(*args, **kwargs)

    module.batch_by_size = batch_by_size  # type: ignore[attr-defined]


def sentences_to_iterate(module: types.ModuleType) -> None:
    """Refuse a data set without sentences, or of which none is short enough (tasks/fairseq_task.py:268-310).

    Training on it does nothing for ever, and fairseq-eval-lm finds a perplexity of 1.
    Can go when fairseq > 0.12.2 refuses it.
    """
    original = module.FairseqTask.get_batch_iterator

    @functools.wraps(original)
    def get_batch_iterator(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        name = next((name for name, known in self.datasets.items() if known is dataset), None)
        if name is not None and not len(dataset):
            raise UserError(f"the data set {name} has no sentences: fairseq-preprocess it again from a text that has")
        iterator = original(self, dataset, *args, **kwargs)
        iterates = isinstance(iterator, module.iterators.EpochBatchIterator)
        if name is not None and iterates and not iterator.frozen_batches:
            raise UserError(
                f"of the {len(dataset):,} sentences of the data set {name} every one is longer than --max-tokens,"
                " --max-source-positions, --max-target-positions or --tokens-per-sample allow: raise them"
            )
        return iterator

    module.FairseqTask.get_batch_iterator = get_batch_iterator  # type: ignore[attr-defined]


def check_ensembles(module: types.ModuleType) -> None:
    """Refuse models that do not do what they are asked for, or not the same (checkpoint_utils.py:394-496).

    A model of another direction of translation translates all the same where the dictionary is joined, and one of
    another kind ends in a misfit or a traceback. Can go when fairseq > 0.12.2 compares the settings.
    """
    load, load_all = module.load_checkpoint_to_cpu, module.load_model_ensemble_and_task
    kinds: dict[str, str] = {}
    asked: list[Any] = []

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = load(path, *args, **kwargs)
        if asked:
            settings = _task_settings(state)
            _check_kind(path, settings, asked[-1], kinds)
            _check_direction(path, settings, asked[-1])
        return state

    @functools.wraps(load_all)
    def load_model_ensemble_and_task(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[Any], Any, Any]:
        kinds.clear()
        asked.append(_settings_of(task))
        try:
            return load_all(filenames, arg_overrides, task, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            asked.pop()

    if _check_other_direction not in overrides.checks:
        overrides.checks.append(_check_other_direction)
    module.load_checkpoint_to_cpu = load_checkpoint_to_cpu  # type: ignore[attr-defined]
    module.load_model_ensemble_and_task = load_model_ensemble_and_task  # type: ignore[attr-defined]


def _task_settings(state: dict[str, Any]) -> Any:
    """Return the settings of the task that a checkpoint was trained for."""
    cfg = state.get("cfg")
    return cfg.get("task") if cfg is not None else state.get("args")


def _settings_of(task: Any) -> Any:
    return getattr(task, "cfg", None) or getattr(task, "args", None)


def _setting(settings: Any, key: str) -> Any:
    return settings.get(key) if hasattr(settings, "get") else getattr(settings, key, None)


def _kind(task_name: Any) -> str:
    return "language model" if "language_modeling" in str(task_name) else "model of sequence to sequence"


def _check_kind(path: str, settings: Any, asked: Any, kinds: dict[str, str]) -> None:
    name = _setting(settings, "_name") or _setting(settings, "task")
    if name is None:
        return
    kinds[path] = _kind(name)
    for other, kind in kinds.items():
        if kind != kinds[path]:
            raise UserError(
                f"{other} is a {kind} and {path} a {kinds[path]}: an ensemble is of models of one task; a language"
                " model beside a translation goes to --lm-path"
            )
    requested = _setting(asked, "_name")
    if requested is not None and _kind(requested) != kinds[path]:
        raise UserError(f"{path} was trained for --task {name}, a {kinds[path]}, and cannot serve --task {requested}")


def _check_direction(path: str, settings: Any, asked: Any) -> None:
    sides = ("source_lang", "target_lang")
    trained, requested = (tuple(_setting(part, side) for side in sides) for part in (settings, asked))
    if None in (*trained, *requested) or trained == requested or not set(trained) & set(requested):
        return
    raise UserError(
        f"{path} translates from {trained[0]} to {trained[1]}, and not from {requested[0]} to {requested[1]}: give"
        f" --source-lang {trained[0]} --target-lang {trained[1]}"
    )


def _check_other_direction(own: dict[str, Any], used: dict[str, Any], path: str) -> None:
    """Check fairseq-validate, which takes the checkpoint's task and changes in it what its own flags say."""
    _check_direction(path, _task_settings(own), _task_settings(used))


def plugin_in_checkout(module: types.ModuleType) -> None:
    """Say which folder ``--user-dir`` means where it is given a checkout (utils.py:464-512).

    Python imports a folder without ``__init__.py`` as an empty package, which registers nothing: all of what a plugin
    has is then an "invalid choice". Can go when fairseq > 0.12.2 refuses such a folder.
    """
    original = module.import_user_module

    @functools.wraps(original)
    def import_user_module(args: Any) -> None:
        folder = getattr(args, "user_dir", None)
        if folder and os.path.isdir(folder) and not os.path.isfile(os.path.join(folder, "__init__.py")):
            plugin = os.path.join(folder, "fairseq_residuals")
            known = os.path.isfile(os.path.join(plugin, "__init__.py"))
            meant = f"; the plugin is the folder {plugin} inside" if known else ""
            raise UserError(f"--user-dir {folder} is no Python package, since it has no __init__.py{meant}")
        original(args)

    module.import_user_module = import_user_module  # type: ignore[attr-defined]
