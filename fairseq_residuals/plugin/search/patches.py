"""How fairseq's commands and tasks get the faster search: the plugin's entries in the table of ``modern_fairseq``."""

from __future__ import annotations

import functools
import types
from typing import Any

from fairseq_residuals.plugin.search.beam_search import FasterSequenceGenerator, searchable
from fairseq_residuals.wirings.speed.allocator import keep_freed_memory


def search_faster(module: types.ModuleType) -> None:
    """Build a :class:`FasterSequenceGenerator` for one model of this plugin.

    Another class that is asked for, or alignments, are left to fairseq.

    fairseq-generate, fairseq-interactive, ``from_pretrained`` and scored validation call the method that is patched,
    which knows two classes alone (tasks/fairseq_task.py:464-469). Can stay as long as a task cannot be told from
    outside which class to build.
    """
    original = module.FairseqTask.build_generator

    @functools.wraps(original)
    def build_generator(self: Any, models: Any, args: Any, seq_gen_cls: Any = None, *rest: Any, **kwargs: Any) -> Any:
        each = list(getattr(models, "models", models))
        if seq_gen_cls is None and not getattr(args, "print_alignment", False) and searchable(each):
            seq_gen_cls = FasterSequenceGenerator
            if getattr(each[0], "keep_freed_memory", False) and next(each[0].parameters()).device.type == "cpu":
                keep_freed_memory()
        return original(self, models, args, seq_gen_cls, *rest, **kwargs)

    module.FairseqTask.build_generator = build_generator


def search_in_bf16(module: types.ModuleType) -> None:
    """Let ``--bf16`` put a model of this plugin into that precision.

    This is about fairseq-generate, fairseq-interactive and fairseq-eval-lm.

    fairseq takes the flag and ignores it (fairseq_cli/generate.py:132 knows ``--fp16`` alone). With ``from_pretrained``
    the flag is that of the training, and the model stays as it is. Can go when fairseq > 0.12.2 heeds the flag.
    """
    original = module.BaseFairseqModel.prepare_for_inference_

    @functools.wraps(original)
    def prepare_for_inference_(self: Any, cfg: Any) -> None:
        original(self, cfg)
        if cfg.common.bf16 and not cfg.common.fp16 and cfg.common_eval.path and searchable([self]):
            self.bfloat16()

    module.BaseFairseqModel.prepare_for_inference_ = prepare_for_inference_
