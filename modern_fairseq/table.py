"""Patches by the fairseq module that gets them: the whole table, to which a plugin adds its own.

Every patch is a function that takes the executed module and changes its globals or classes, or a context in which a
module is executed. Its docstring says why (with file and line of fairseq 0.12.2) and when it can go. It is named here
as "module:function" within this package, and imported when it is needed, so that the import hook itself stays light.
``python -m modern_fairseq`` prints the table.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator

from modern_fairseq import AFTER_FAIRSEQ

VERSION = "0.12.2"
"""The only version of fairseq that the patches are for."""
SWITCH = "MODERN_FAIRSEQ"
"""Environment variable; set to 0, fairseq is left as it is."""

Patch = Callable[[types.ModuleType], None]

_LOG = logging.getLogger(__name__)

COMMANDS = tuple(
    f"fairseq_cli.{name}"
    for name in ("preprocess", "train", "generate", "interactive", "validate", "eval_lm", "score", "hydra_train")
)
"""Modules of the commands whose errors are said in one sentence."""

_AROUND = {
    "fairseq.dataclass.configs": "compat.configs:hashable_defaults",
    "fairseq.tasks.text_to_speech": "fixes.logs:root_logger_kept",
    "fairseq.tasks.frm_text_to_speech": "fixes.logs:root_logger_kept",
}

_AFTER = {
    "compat.configs:optional_types": "fairseq.dataclass.utils",
    "compat.hydra_api:current_api": "fairseq.dataclass.utils",
    "compat.hydra_api:lazy_help": "fairseq_cli.hydra_train",
    "compat.numpy_names:removed_aliases": (
        "fairseq.data.data_utils fairseq.data.language_pair_dataset fairseq.data.token_block_dataset"
        " fairseq.modules.dynamic_crf_layer"
    ),
    "compat.numpy_names:whole_sums": "fairseq.data.indexed_dataset",
    "compat.torch_load:safe_load": (
        "fairseq.checkpoint_utils fairseq.data.codedataset fairseq.models.speech_to_text.xm_transformer"
        " fairseq.models.text_to_speech.vocoder fairseq.modules.quantization.pq.em"
    ),
    "compat.torch_load:trust_own_ranks": "fairseq.distributed.utils",
    "compat.audio:without_torchaudio": "fairseq.data.audio.audio_utils",
    "fixes.literals:literals_only": (
        "fairseq.utils fairseq.criterions.ctc fairseq.data.audio.raw_audio_dataset fairseq.data.codedataset"
        " fairseq.models.fconv fairseq.models.fconv_lm fairseq.models.fconv_self_att fairseq.models.hubert.hubert"
        " fairseq.models.lightconv_lm fairseq.models.speech_to_text.s2t_wav_transformer fairseq.models.transformer_lm"
        " fairseq.models.wav2vec.wav2vec fairseq.models.wav2vec.wav2vec2 fairseq.optim.adafactor fairseq.optim.adamax"
        " fairseq.optim.fused_lamb fairseq_cli.eval_lm fairseq_cli.validate"
    ),
    "fixes.literals:betas_in_range": "fairseq.optim.adam fairseq.optim.cpu_adam",
    "fixes.hub:archives_stay_in_their_folder": "fairseq.file_utils",
    "fixes.hub:no_code_that_an_archive_names": "fairseq.models.speech_to_text.hub_interface",
    "fixes.hub:plain_names": "fairseq.data.fasta_dataset",
    "fixes.checkpoint_loading:check_what_is_read": "fairseq.checkpoint_utils",
    "fixes.checkpoint_loading:check_what_is_resumed": "fairseq.trainer",
    "fixes.distributed:spawn_workers": "fairseq.distributed.utils",
    "fixes.distributed:train_on_cpu": "fairseq.distributed.utils",
    "fixes.distributed:leave_when_done": "fairseq.distributed.utils",
    "fixes.distributed:leave_out_what_fills_up": "fairseq.trainer",
    "fixes.distributed:use_in_one_process": "fairseq_cli.validate fairseq_cli.eval_lm fairseq_cli.interactive",
    "fixes.distributed:ddp_on_cpu": "fairseq.models.distributed_fairseq_model",
    "fixes.distributed:fork_to_load_data": (
        "fairseq_cli.train fairseq_cli.generate fairseq_cli.interactive fairseq_cli.validate fairseq_cli.eval_lm"
    ),
    "fixes.finished:train_no_further": "fairseq_cli.train",
    "fixes.saving:one_training_in_a_folder": "fairseq_cli.train",
    "fixes.saving:save_atomically": "fairseq.checkpoint_utils",
    "fixes.saving:copy_atomically": "fairseq.checkpoint_utils",
    "fixes.saving:begin_in_a_clean_folder": "fairseq.checkpoint_utils",
    "fixes.schedules:step_after_last_validation": "fairseq.checkpoint_utils",
    "fixes.schedules:save_patience": "fairseq.optim.lr_scheduler.reduce_lr_on_plateau",
    "fixes.half_precision:bf16_without_tpu": "fairseq.options",
    "fixes.half_precision:fp16_on_cpu": "fairseq.optim.fp16_optimizer",
    "fixes.half_precision:overflow_on_cpu": "fairseq.trainer",
    "fixes.at_once:copies": "fairseq.optim.fp16_optimizer",
    "fixes.at_once:norms": "fairseq.utils",
    "fixes.master_weights:save_with_optimizer": "fairseq.optim.fp16_optimizer",
    "fixes.layers:no_fused_path": "fairseq.modules.transformer_layer fairseq.models.transformer.transformer_encoder",
    "fixes.layers:no_dead_parameters": "fairseq.modules.transformer_layer",
    "fixes.layers:fill_buffers": (
        "fairseq.models.transformer.transformer_encoder fairseq.models.transformer.transformer_decoder"
        " fairseq.modules.sinusoidal_positional_embedding fairseq.modules.adaptive_input"
        " fairseq.modules.adaptive_softmax"
    ),
    "fixes.layers:with_silu": "fairseq.utils",
    "fixes.search:ngrams_of_what_is_there": "fairseq.ngram_repeat_block",
    "fixes.nan_detector:search_to_the_end": "fairseq.nan_detector",
    "fixes.augmentation:draw_by_example": "fairseq.data.audio.speech_to_text_dataset",
    "fixes.augmentation:remember_seed": (
        "fairseq.data.audio.speech_to_text_dataset fairseq.data.audio.speech_to_speech_dataset"
        " fairseq.data.audio.speech_to_text_joint_dataset"
    ),
    "fixes.iterators:background_ends_first": "fairseq.data.iterators",
    "fixes.iterators:epochs_in_processes": "fairseq.data.iterators",
    "fixes.iterators:epochs_as_asked": "fairseq.data.iterators",
    "fixes.iterators:batches_of_each_epoch": "fairseq.trainer",
    "fixes.iterators:position_in_batches": "fairseq.data.iterators",
    "fixes.averages:shared_parameters_once": "fairseq.models.ema.ema",
    "fixes.averages:same_updates_when_resumed": "fairseq.models.ema.ema",
    "fixes.averages:versions_kept": "fairseq.models.ema.ema",
    "fixes.averages:averages_that_move": "fairseq.models.ema.ema",
    "fixes.tasks:tasks_without_dataclass_in_yaml": "fairseq.tasks",
    "fixes.tasks:record_languages": "fairseq.tasks",
    "fixes.tasks:positions_once": "fairseq.tasks.denoising",
    "fixes.tasks:settings_of_bart": "fairseq.tasks.translation_from_pretrained_bart",
    "fixes.tasks:user_dir_before_compose": "fairseq_cli.hydra_train",
    "compat.scoring:lines_to_score": "fairseq_cli.score",
    "messages.data_sets:whole_files": "fairseq.data.indexed_dataset",
    "messages.speech_data:settings_as_data": "fairseq.data.audio.data_cfg",
    "messages.texts:check_texts": "fairseq_cli.preprocess",
    "messages.wrong_answers:check_generation": (
        "fairseq_cli.generate fairseq_cli.interactive fairseq_cli.validate fairseq_cli.train"
    ),
    "messages.wrong_answers:keys_at_the_top": "fairseq_cli.hydra_train",
    "messages.wrong_answers:plugin_in_checkout": "fairseq.utils",
    "messages.wrong_answers:sentences_to_iterate": "fairseq.tasks.fairseq_task",
    "messages.wrong_answers:whole_text": "fairseq.tasks.language_modeling fairseq.tasks.multilingual_language_modeling",
    "messages.wrong_answers:words_of_language_model": "fairseq.sequence_generator",
    "messages.commands:choices_first": "fairseq.options",
    "messages.commands:short_refusals": "fairseq.options",
    "messages.commands:name_unknown_architectures": "fairseq.models",
    "messages.commands:errors_in_hydra_job": "fairseq_cli.hydra_train",
    "messages.commands:one_sentence_errors": " ".join(COMMANDS),
}
"""Each patch, and the modules that it changes once they have been executed; a module gets its patches in this order."""

_BY_MODULE: dict[str, list[str]] = {}
for _reference, _names in _AFTER.items():
    for _name in _names.split():
        _BY_MODULE.setdefault(_name, []).append(_reference)

_OF_PLUGINS: dict[str, list[Patch]] = {"fairseq": AFTER_FAIRSEQ}
"""Patches by module that :func:`when_imported` has entered in this process."""

# Deprecations inside fairseq that still work and that no user can act upon.
_QUIET = (
    (r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated", FutureWarning),
    (r"Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning),
    (r"`broadcast_buffers` is deprecated", FutureWarning),
    # what fairseq's modules say of themselves as they are imported
    (r"`torch\.jit\.\w+` is (not supported in Python 3\.14\+|deprecated)", FutureWarning),
    # hydra_train.py:25 and fairseq/config, which fairseq-hydra-train hands to hydra
    (r"\s*The version_base parameter is not specified", UserWarning),
    (r"\s*In '.*': Usage of deprecated keyword in package header '# @package _group_'", UserWarning),
    (r"\s*'.*' is validated against ConfigStore schema with the same name", UserWarning),
    (r"\s*Future Hydra versions will no longer change working directory", UserWarning),
)


@functools.cache
def reason_if_off() -> str | None:
    """Return why fairseq is left alone, as the beginning of a sentence; None where it is patched.

    A fairseq without metadata, say a folder on PYTHONPATH, is taken for 0.12.2. The answer holds for the process.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 leaves fairseq as it is"
    try:
        installed = importlib.metadata.version("fairseq")
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed != VERSION:
        return f"fairseq {installed} is left as it is, since the patches of modern_fairseq are for {VERSION}"
    return None


def has(name: str) -> bool:
    """Return whether the table has anything for the module ``name``."""
    return name in _AROUND or name in _BY_MODULE or name in _OF_PLUGINS


def entries() -> Iterator[tuple[str, str]]:
    """Yield the entries of this package: the name of a fairseq module, and "module:function" of its patch."""
    yield from _AROUND.items()
    for name, references in _BY_MODULE.items():
        for reference in references:
            yield name, reference


def _resolve(reference: str) -> Callable:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(f"modern_fairseq.{module}"), function)


def around(name: str) -> contextlib.AbstractContextManager:
    """Return the context in which the module ``name`` is to be executed."""
    return _resolve(_AROUND[name])() if name in _AROUND else contextlib.nullcontext()


def patches(name: str) -> list[Patch]:
    """Return the patches to apply, in order, to the module ``name`` once it has been executed."""
    return [*map(_resolve, _BY_MODULE.get(name, ())), *_OF_PLUGINS.get(name, ())]


def when_imported(name: str, patch: Patch) -> None:
    """Enter a patch of a plugin for the fairseq module ``name``, once.

    It is applied now, or where the module is not imported yet, as soon as it is; and not at all, with a warning, where
    fairseq is left alone.
    """
    entered = _OF_PLUGINS.setdefault(name, [])
    if patch in entered:
        return
    entered.append(patch)
    if reason := reason_if_off():
        _LOG.warning("%s, so %s.%s does not reach %s", reason, patch.__module__, patch.__name__, name)
    elif name in sys.modules:
        patch(sys.modules[name])


def quiet() -> None:
    """Silence the warnings of ``_QUIET``, and no others."""
    for message, category in _QUIET:
        warnings.filterwarnings("ignore", message=message, category=category)
