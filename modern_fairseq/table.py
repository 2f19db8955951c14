"""Which fairseq module gets which patches.

Every patch is a function that takes the executed module and changes its globals or classes, or a context in
which a module is executed, and says in its docstring why (with file and line of fairseq 0.12.2) and when it can
go.  A patch is named here as
"module:function" and imported when it is needed, so that the import hook itself stays light.
"""

import contextlib
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator

COMMANDS = {
    "fairseq_cli.preprocess": "fairseq-preprocess",
    "fairseq_cli.train": "fairseq-train",
    "fairseq_cli.generate": "fairseq-generate",
    "fairseq_cli.interactive": "fairseq-interactive",
    "fairseq_cli.validate": "fairseq-validate",
    "fairseq_cli.eval_lm": "fairseq-eval-lm",
    "fairseq_cli.score": "fairseq-score",
    "fairseq_cli.hydra_train": "fairseq-hydra-train",
}

_AROUND = {
    "fairseq.dataclass.configs": "configs:hashable_defaults",
    "fairseq.tasks.text_to_speech": "logs:root_logger_kept",
    "fairseq.tasks.frm_text_to_speech": "logs:root_logger_kept",
}

_AFTER = {
    "fairseq.dataclass.configs": ("configs:restore_decorator",),
    "fairseq.dataclass.utils": ("hydra_api:current_api", "yaml_mistakes:settings_of_groups"),
    "fairseq.checkpoint_utils": (
        "checkpoints:safe_load",
        "checkpoints:explain_misfits",
        "overrides:check_overrides",
        "saving:save_atomically",
        "saving:copy_atomically",
        "saving:begin_in_a_clean_folder",
        "wrong_answers:check_ensembles",
    ),
    "fairseq.utils": ("literals:literals_only", "at_once:norms", "wrong_answers:plugin_in_checkout"),
    "fairseq.criterions.ctc": ("literals:literals_only",),
    "fairseq.models.fconv": ("literals:literals_only",),
    "fairseq.models.fconv_lm": ("literals:literals_only",),
    "fairseq.models.fconv_self_att": ("literals:literals_only",),
    "fairseq.models.hubert.hubert": ("literals:literals_only",),
    "fairseq.models.lightconv_lm": ("literals:literals_only",),
    "fairseq.models.speech_to_text.s2t_wav_transformer": ("literals:literals_only",),
    "fairseq.models.transformer_lm": ("literals:literals_only",),
    "fairseq.models.wav2vec.wav2vec": ("literals:literals_only",),
    "fairseq.models.wav2vec.wav2vec2": ("literals:literals_only",),
    "fairseq.trainer": (
        "resuming:read_before_resuming",
        "resuming:explain_trainer_misfits",
        "precision:overflow_on_cpu",
    ),
    "fairseq.models.text_to_speech.vocoder": ("checkpoints:safe_load",),
    "fairseq.models.speech_to_text.xm_transformer": ("checkpoints:safe_load",),
    "fairseq.data.codedataset": ("checkpoints:safe_load", "literals:literals_only"),
    "fairseq.modules.quantization.pq.em": ("checkpoints:safe_load",),
    "fairseq.distributed.utils": (
        "distributed:trust_own_ranks",
        "distributed:spawn_workers",
        "distributed:train_on_cpu",
        "distributed:leave_when_done",
        "distributed:gather_on_cpu",
    ),
    "fairseq.models.distributed_fairseq_model": ("distributed:ddp_on_cpu",),
    "fairseq.modules.transformer_layer": ("layers:no_fused_path", "layers:no_dead_parameters"),
    "fairseq.models.transformer.transformer_encoder": ("layers:no_fused_path",),
    "fairseq.options": ("precision:bf16_without_tpu", "commands:missing_choices", "commands:short_refusals"),
    "fairseq.ngram_repeat_block": ("search:ngrams_of_what_is_there",),
    "fairseq.nan_detector": ("nan_detector:backward_hooks_on_leaves", "nan_detector:look_without_gradients"),
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule": ("commands:warmup_of_inverse_sqrt",),
    "fairseq.optim.fairseq_optimizer": ("at_once:products",),
    "fairseq.optim.fp16_optimizer": (
        "precision:fp16_on_cpu",
        "at_once:copies",
        "at_once:zeros",
        "master_weights:save_with_optimizer",
    ),
    "fairseq.data.data_utils": (
        "numpy_names:removed_aliases",
        "commands:explain_data_folder",
        "wrong_answers:check_batches",
    ),
    "fairseq.modules.dynamic_crf_layer": ("numpy_names:removed_aliases",),
    "fairseq.data.token_block_dataset": ("numpy_names:removed_aliases",),
    "fairseq.data.language_pair_dataset": ("numpy_names:removed_aliases",),
    "fairseq.data.audio.raw_audio_dataset": ("literals:literals_only",),
    "fairseq.data.fasta_dataset": ("data_sets:index_without_a_shell",),
    "fairseq.data.indexed_dataset": ("data_sets:whole_files",),
    "fairseq.data.audio.audio_utils": ("audio:without_torchaudio",),
    "fairseq.data.audio.feature_transforms.delta_deltas": ("audio:deltas_without_torchaudio",),
    "fairseq.data.iterators": ("iterators:background_ends_first",),
    "fairseq.models": ("models:name_unknown_architectures",),
    "fairseq.tasks.fairseq_task": ("wrong_answers:sentences_to_iterate",),
    "fairseq.tasks.translation": ("wrong_answers:sides_of_one_length",),
    "fairseq.tasks": ("tasks:tasks_without_dataclass_in_yaml",),
    "fairseq_cli.score": ("scoring:sequences_for_sacrebleu",),
    "fairseq_cli.train": ("finished:train_no_further",),
    "fairseq_cli.preprocess": ("texts:check_texts",),
    **{
        f"fairseq_cli.{name}": ("literals:read_overrides", "wrong_answers:check_generation")
        for name in ("generate", "interactive")
    },
    **{f"fairseq_cli.{name}": ("literals:read_overrides",) for name in ("validate", "eval_lm")},
    "fairseq.optim.adam": ("literals:read_betas",),
    "fairseq.optim.cpu_adam": ("literals:read_betas",),
    "fairseq.optim.adafactor": ("literals:literals_only",),
    "fairseq.optim.adamax": ("literals:literals_only",),
    "fairseq.optim.fused_lamb": ("literals:literals_only",),
    "fairseq.file_utils": ("hub:archives_stay_in_their_folder",),
    "fairseq.models.speech_to_text.hub_interface": ("hub:no_code_that_an_archive_names",),
    "fairseq_cli.hydra_train": (
        "commands:user_dir_before_compose",
        "yaml_mistakes:names_of_groups",
        "commands:missing_groups",
        "commands:errors_in_hydra_job",
        "yaml_mistakes:errors_in_hydra_config",
    ),
}

_ASKED_FOR: dict[str, list[Callable[[types.ModuleType], None]]] = {}
"""Patches that a plugin needs only in some processes."""

# Deprecations inside fairseq that still work and that no user can act upon.
_QUIET = (
    (r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated", FutureWarning),
    (r"Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning),
    (r"`broadcast_buffers` is deprecated", FutureWarning),
    # hydra_train.py:25 and fairseq/config, which fairseq-hydra-train hands to hydra
    (r"\s*The version_base parameter is not specified", UserWarning),
    (r"\s*In '.*': Usage of deprecated keyword in package header '# @package _group_'", UserWarning),
    (r"\s*'.*' is validated against ConfigStore schema with the same name", UserWarning),
    (r"\s*Future Hydra versions will no longer change working directory", UserWarning),
)


def has(name: str) -> bool:
    """Whether the table has anything for the module ``name``."""
    return name in _AROUND or name in _AFTER or name in COMMANDS or name in _ASKED_FOR


def _resolve(reference: str) -> Callable:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(f"modern_fairseq.{module}"), function)


def around(name: str) -> contextlib.AbstractContextManager:
    """The context in which the module ``name`` is to be executed."""
    return _resolve(_AROUND[name])() if name in _AROUND else contextlib.nullcontext()


def patches(name: str) -> Iterator[Callable[[types.ModuleType], None]]:
    """The patches to apply, in order, to the module ``name`` once it has been executed."""
    for reference in _AFTER.get(name, ()):
        yield _resolve(reference)
    if name in COMMANDS:
        yield _resolve("commands:one_sentence_errors")
    yield from _ASKED_FOR.get(name, ())


def when_imported(name: str, patch: Callable[[types.ModuleType], None]) -> None:
    """Apply ``patch`` to the module ``name`` once: now, or where it is not imported yet, as soon as it is."""
    asked_for = _ASKED_FOR.setdefault(name, [])
    if patch in asked_for:
        return
    asked_for.append(patch)
    if name in sys.modules:
        patch(sys.modules[name])


def quiet() -> None:
    """Silence the warnings of ``_QUIET``, and no others."""
    for message, category in _QUIET:
        warnings.filterwarnings("ignore", message=message, category=category)
