"""Commands that would end with exit status 0 and a wrong answer, or none: refused with a sentence."""

import argparse
import math
import os
import types
from typing import Any

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq.proxies import replaces

NOT_FAIRSEQS = ("recipe",)
"""Keys that a configuration may have at its top though fairseq looks at none: what is known of a paper's recipe."""


def check_generation(module: types.ModuleType) -> None:
    """Refuse what would be ignored, or make any order of hypotheses, before anything is loaded or written.

    generate.py:370 prints as many as there are, whatever --nbest says, and all for a negative one; a penalty that is no
    number makes any order of them; 151 knows no --num-shards, nor do validate.py:126 and train.py, and takes the share
    of one process where no other takes the rest; 67 knows no --sacrebleu and 195 no constraints; interactive.py:169
    and 227 know no language model beside and no prefix. Can go when fairseq > 0.12.2 refuses them.
    """

    @replaces(module, "main")
    def main(original: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cfg, argparse.Namespace):
            cfg = module.convert_namespace_to_omegaconf(cfg)
        nbest, beam = cfg.generation.nbest, cfg.generation.beam
        if not 1 <= nbest <= beam:
            raise UserError(f"--nbest must be from 1 to --beam {beam}, as many as a search finds, not {nbest}")
        for flag, penalty in (("--lenpen", cfg.generation.lenpen), ("--unkpen", cfg.generation.unkpen)):
            if not math.isfinite(penalty):
                raise UserError(f"{flag} must be a finite number, not {penalty}")
        if cfg.dataset.num_shards > 1:
            raise UserError("--num-shards: each call would take the whole data set; split the text instead")
        if module.__name__ == "fairseq_cli.interactive" and (cfg.generation.lm_path or cfg.generation.prefix_size):
            raise UserError("--lm-path and --prefix-size are for fairseq-generate: fairseq-interactive ignores them")
        if module.__name__ == "fairseq_cli.generate":
            if cfg.generation.constraints:
                raise UserError("--constraints are for fairseq-interactive, whose lines have them behind tabs")
            if cfg.distributed_training.distributed_world_size > 1:
                raise UserError(
                    "--distributed-world-size must be 1: each call would score a part; split the text instead"
                )
            if cfg.generation.sacrebleu and cfg.scoring._name != "sacrebleu":
                raise UserError("--sacrebleu alone would print a BLEU of tokens: give --scoring sacrebleu")
        return original(cfg, *args, **kwargs)


def words_of_language_model(module: types.ModuleType) -> None:
    """Refuse a language model of other words than the translation's (sequence_generator.py:362).

    The scores of both are added word by word, by their numbers. Can go when fairseq > 0.12.2 compares the dictionaries.
    """

    @replaces(module.SequenceGenerator, "__init__")
    def __init__(original: Any, self: Any, models: Any, tgt_dict: Any, *args: Any, **kwargs: Any) -> None:
        words = getattr(getattr(kwargs.get("lm_model"), "decoder", None), "dictionary", tgt_dict)
        if words != tgt_dict:
            raise UserError(
                "--lm-path: the language model's dictionary, dict.txt of the data folder, has to have the words of the"
                " target's in its order: fairseq-preprocess its text with --srcdict, and train it on that"
            )
        original(self, models, tgt_dict, *args, **kwargs)


def whole_text(module: types.ModuleType) -> None:
    """Refuse to fairseq-eval-lm a part of a text, or a context that is not the text before.

    It leaves out blocks that are longer than the model reads (tasks/language_modeling.py:366), and takes the batch
    before, of the same process, for the context of ``--context-window`` (data/lm_context_window_dataset.py:76).
    Can go when fairseq > 0.12.2 refuses the first, and reads the context from the text.
    """
    task = getattr(module, "LanguageModelingTask", None) or module.MultilingualLanguageModelingTask

    @replaces(task, "eval_lm_dataloader")
    def eval_lm_dataloader(original: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        in_turn = max(kwargs.get(key, 1) for key in ("num_workers", "num_shards")) <= 1
        if kwargs.get("context_window", 0) > 0 and not in_turn:
            raise UserError("--context-window takes batches in turn: give --num-workers 1 and no --num-shards")
        longest = kwargs.get("max_positions")
        left_out = longest and dataset.filter_indices_by_size(dataset.ordered_indices(), longest)[1]
        if left_out:
            raise UserError(
                f"{len(left_out):,} of {len(dataset):,} blocks of the text are longer than the {longest} words that the"
                " model reads, and would be left out: lower --tokens-per-sample, or raise the limit by"
                " --model-overrides \"{'max_target_positions': N}\""
            )
        return original(self, dataset, *args, **kwargs)


def sentences_to_iterate(module: types.ModuleType) -> None:
    """Refuse a data set without sentences, or of which none is short enough (tasks/fairseq_task.py:268-310).

    Training on it does nothing for ever, and fairseq-eval-lm finds a perplexity of 1.
    Can go when fairseq > 0.12.2 refuses it.
    """

    @replaces(module.FairseqTask, "get_batch_iterator")
    def get_batch_iterator(original: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        there = (dataset, getattr(dataset, "dataset", None))  # fairseq-eval-lm puts a context window around it
        name = next((name for name, known in self.datasets.items() if any(known is d for d in there)), None)
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


def plugin_in_checkout(module: types.ModuleType) -> None:
    """Say which folder ``--user-dir`` means where it is given a checkout (utils.py:464-512).

    Python imports a folder without ``__init__.py`` as an empty package, which registers nothing: all of what a plugin
    has is then an "invalid choice". Can go when fairseq > 0.12.2 refuses such a folder.
    """

    @replaces(module, "import_user_module")
    def import_user_module(original: Any, args: Any) -> None:
        folder = getattr(args, "user_dir", None)
        if folder and os.path.isdir(folder) and not os.path.isfile(os.path.join(folder, "__init__.py")):
            plugin = os.path.join(folder, "fairseq_residuals")
            known = os.path.isfile(os.path.join(plugin, "__init__.py"))
            meant = f"; the plugin is the folder {plugin} inside" if known else ""
            raise UserError(f"--user-dir {folder} is no Python package, since it has no __init__.py{meant}")
        original(args)


def keys_at_the_top(module: types.ModuleType) -> None:
    """Refuse a key at the top that fairseq does not know, before anything is made (hydra_train.py:30).

    An override with a plus, which hydra advises, can add one: ``+residual=b2t`` would train another wiring without a
    word. Can go when fairseq > 0.12.2 names what is wrong.
    """

    @replaces(module, "_hydra_main")
    def _hydra_main(original: Any, cfg: Any, **kwargs: Any) -> Any:
        from fairseq.dataclass.configs import FairseqConfig

        valid = sorted(FairseqConfig.__dataclass_fields__.keys() - {"_name"})
        for key in cfg:
            if key not in (*valid, "_name", *NOT_FAIRSEQS):
                near = did_you_mean(str(key), valid) or " (a setting is of a group, as model.dropout is)"
                raise UserError(f"unknown key {key} in the configuration{near}; valid: {', '.join(valid)}")
        return original(cfg, **kwargs)
