"""Tasks that generate and score during validation, so that ``--best-checkpoint-metric rouge`` can choose by it.

``scored_translation`` and ``scored_speech_to_text`` are fairseq's tasks with two flags more: ``--eval-scoring METRIC``
and ``--eval-scoring-args`` (as JSON, how to generate). Training is the same, and a checkpoint can be used with either.
As in fairseq's ``--eval-bleu``, statistics are summed over batches and workers, and the value is that of the whole set.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fairseq import utils
from fairseq.data import encoders
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_residuals.plugin.scoring.metrics import METRICS, Metric, make_metric
from fairseq_residuals.plugin.scoring.text import UNKNOWN
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import parse_json

SCORING_HELP = (
    f"generate during validation and score by one of {', '.join(METRICS)}; --best-checkpoint-metric may then name it"
)
ARGUMENTS_HELP = """how to generate for --eval-scoring, as JSON: '{"beam": 4, "lenpen": 0.6}'"""


class Scored:
    """Adds generation and a metric to the validation of a task; goes before the task among a class's bases."""

    metric: Metric | None = None

    def scoring_settings(self) -> tuple[str, str]:
        """Return ``--eval-scoring``, empty if not given, and ``--eval-scoring-args``."""
        raise NotImplementedError

    def decode(self, tokens: Tensor, unknown: str) -> str:
        """Return a sentence from its tokens."""
        raise NotImplementedError

    def given_words(self) -> int:
        """Return how many words of the reference each hypothesis begins with."""
        return 0

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, and the search and the metrics of the validation.

        Raises:
            UserError: an unknown metric, or arguments that are not a JSON object.
        """
        model = super().build_model(cfg, from_checkpoint)  # type: ignore[misc]
        name, arguments = self.scoring_settings()
        if name:
            self.metric = make_metric(name)
            settings = {"prefix_size": self.given_words(), **_parse("--eval-scoring-args", arguments)}
            self.scoring_generator = self.build_generator([model], argparse.Namespace(**settings))  # type: ignore[attr-defined]
        return model

    def valid_step(self, sample: Any, model: Any, criterion: Any) -> tuple[Any, Any, dict[str, Any]]:
        loss, sample_size, log = super().valid_step(sample, model, criterion)  # type: ignore[misc]
        if self.metric is not None:
            prefix = sample["target"][:, : self.given_words()] if self.given_words() else None
            found = self.inference_step(self.scoring_generator, [model], sample, prefix)  # type: ignore[attr-defined]
            pad = self.target_dictionary.pad()  # type: ignore[attr-defined]
            for hypotheses, target in zip(found, sample["target"], strict=True):
                reference = self.decode(utils.strip_pad(target, pad), UNKNOWN)
                statistics = self.metric.statistics(self.decode(hypotheses[0]["tokens"], "<unk>"), reference)
                # numbers under names of their own: fairseq adds them up, over workers too
                for i, value in enumerate(statistics):
                    log[self._key(i)] = log.get(self._key(i), 0.0) + value
        return loss, sample_size, log

    def reduce_metrics(self, logging_outputs: Sequence[dict[str, Any]], criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)  # type: ignore[misc]
        metric = self.metric
        if metric is None or not any(self._key(0) in log for log in logging_outputs):
            return
        length = sum(key.startswith(self._key("")) for key in logging_outputs[0])
        totals = [sum(float(log.get(self._key(i), 0.0)) for log in logging_outputs) for i in range(length)]
        metrics.log_scalar(self._key("totals"), np.array(totals))
        for name in metric.names:
            metrics.log_derived(name, _value_of(metric, self._key("totals"), name))

    def _key(self, what: int | str) -> str:
        assert self.metric is not None
        # what begins with an underscore is summed but not printed
        return f"_{self.metric.name}_{what}"


def _value_of(metric: Metric, totals: str, name: str) -> Any:
    return lambda meters: round(metric.values(meters[totals].sum)[name], 2)


def _parse(flag: str, arguments: str) -> dict[str, Any]:
    try:
        parsed = parse_json(arguments)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise UserError(f"""{flag} {arguments!r} is no JSON object such as '{{"beam": 4, "lenpen": 0.6}}'""")
    return parsed


@dataclass
class ScoredTranslationConfig(TranslationConfig):
    eval_scoring: str = field(default="", metadata={"help": SCORING_HELP})
    eval_scoring_args: str = field(default="{}", metadata={"help": ARGUMENTS_HELP})


@register_task("scored_translation", dataclass=ScoredTranslationConfig)
class ScoredTranslationTask(Scored, TranslationTask):
    """Translation with scores of validation data.

    fairseq's ``--eval-bleu-remove-bpe``, ``--eval-bleu-detok`` and ``--eval-bleu-detok-args`` say how to make text of
    the tokens.
    """

    def scoring_settings(self) -> tuple[str, str]:
        return self.cfg.eval_scoring, self.cfg.eval_scoring_args

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if self.metric is not None:
            arguments = _parse("--eval-bleu-detok-args", self.cfg.eval_bleu_detok_args)
            settings = argparse.Namespace(tokenizer=self.cfg.eval_bleu_detok, **arguments)
            self.detokenizer = encoders.build_tokenizer(settings)
        return model

    def decode(self, tokens: Tensor, unknown: str) -> str:
        text = self.tgt_dict.string(tokens.int().cpu(), self.cfg.eval_bleu_remove_bpe, unk_string=unknown)
        return self.detokenizer.decode(text) if self.detokenizer else text


@register_task("scored_speech_to_text")
class ScoredSpeechToTextTask(Scored, SpeechToTextTask):
    """The data's configuration says how to make text of the tokens."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        parser.add_argument("--eval-scoring", default="", metavar="METRIC", help=SCORING_HELP)
        parser.add_argument("--eval-scoring-args", default="{}", metavar="JSON", help=ARGUMENTS_HELP)

    def scoring_settings(self) -> tuple[str, str]:
        return self.args.eval_scoring, self.args.eval_scoring_args

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if self.metric is not None:
            self.steps = [s for s in (self.build_bpe(self.args), self.build_tokenizer(self.args)) if s is not None]
        return model

    def given_words(self) -> int:
        """Return the tag of the language, where the data has one."""
        return int(self.data_cfg.prepend_tgt_lang_tag)

    def decode(self, tokens: Tensor, unknown: str) -> str:
        left_out = self.scoring_generator.symbols_to_strip_from_output
        text = self.tgt_dict.string(tokens.int().cpu(), unk_string=unknown, extra_symbols_to_ignore=left_out)
        for step in self.steps:
            text = step.decode(text)
        return text
