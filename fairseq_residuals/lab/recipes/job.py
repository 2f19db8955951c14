"""One configuration with one seed: its folder, and the command lines from the corpus to what is scored."""

from __future__ import annotations

import copy
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

import fairseq_residuals
from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.recipes.compose import (
    SEED,
    as_command_line,
    compose,
    key_of,
    override,
    plain,
    training_hash,
    whole_hash,
)
from fairseq_residuals.lab.recipes.effective_batch import Batch, batch_on
from fairseq_residuals.lab.recipes.recipe import Measurement, Recipe
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError

PLUGIN = Path(fairseq_residuals.__file__).parent
Precision = Literal["fp16", "bf16", "fp32"]
_PRECISIONS = {
    "fp32": dict.fromkeys(("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16"), False),
    "fp16": {"fp16": True, "bf16": False, "amp": False},
    "bf16": {"bf16": True, "fp16": False, "amp": False, "memory_efficient_fp16": False},
}
_NOT_OVERRIDDEN = {
    "task.data": "--data names the folder of prepared corpora",
    "task.lang_pairs": "they are those of the corpus",
    "checkpoint.save_dir": "--out names the folder of runs",
    "common.user_dir": "it is the plugin",
    **dict.fromkeys(("generation", "eval_lm", "common_eval", "interactive"), "recipe.evaluate.flags says this"),
}
"""Settings, or groups of them, of which an override would be ignored, and what says it instead."""


@dataclass(frozen=True)
class Settings:
    """Settings that are the same for all runs of one call."""

    configs: Path
    data: Path
    out: Path
    gpus: int
    """GPUs of a run; 0: the CPU."""
    precision: Precision | None = None
    """None: the recipe's; on a CPU fp32."""
    max_tokens: int | None = None
    """Most tokens that a device takes in one pass; None: the recipe's."""
    overrides: tuple[str, ...] = ()
    """Settings to change, as hydra takes them."""
    label: str = ""
    """A part of the name of a run's folder, for people, where one configuration is trained with many overrides."""
    user_dir: Path = PLUGIN
    """Package that fairseq imports: the plugin, or a package that imports it and has wirings of its own."""

    @property
    def downloads(self) -> Path:
        """Folder that all corpora download to: several papers take the same archives."""
        return self.data / "downloads"


@dataclass(frozen=True)
class Job:
    """One training run and what follows it."""

    settings: Settings
    name: str
    """Name of a row or of a file, as :func:`.compose` takes it."""
    given_seed: int | None = None
    """None: the configuration's."""

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe.parse(self.name, plain(self.asked)["recipe"])

    @cached_property
    def asked(self) -> DictConfig:
        """Configuration as the recipe has it, for one device."""
        return compose(self.settings.configs, self.name, self._asked_overrides)

    def check_model(self) -> None:
        """Check the settings of the model.

        Raises:
            UserError: a setting of the model that cannot be.
        """
        if (name := self.asked.model._name) in ARCHITECTURES:  # which complete settings in place
            ARCHITECTURES[name](copy.deepcopy(self.asked.model))

    def check_average(self) -> None:
        """Check that training saves and keeps enough checkpoints to average; how many epochs it has, nobody knows yet.

        Raises:
            UserError: it saves or keeps too few.
        """
        last, unit = self.recipe.average or (0, "epoch")
        updates, every = self.asked.optimization.max_update, self.asked.checkpoint.save_interval_updates
        key = "keep_last_epochs" if unit == "epoch" else "keep_interval_updates"
        if 0 < (kept := self.asked.checkpoint[key]) < last:
            also = f"--override checkpoint.{key}={last} as well"
            raise UserError(f"{self.name} averages {last} checkpoints, and training keeps {kept}: {also}")
        if unit == "update" and 0 < updates < last * every:
            raise UserError(
                f"{self.name} averages {last} checkpoints, and saves {updates // every} in {updates} updates:"
                " --override checkpoint.save_interval_updates=N for more, or recipe.average=null to average none"
            )

    @cached_property
    def config(self) -> DictConfig:
        """The same, adapted to this machine."""
        config = copy.deepcopy(self.asked)
        for key, value in self._of_the_machine.items():
            OmegaConf.update(config, key, value)
        return config

    @property
    def seed(self) -> int:
        return self.asked.common.seed if self.given_seed is None else self.given_seed

    @cached_property
    def config_hash(self) -> str:
        return whole_hash(self.asked)

    @cached_property
    def folder(self) -> Path:
        settings = "-".join(filter(None, (self.settings.label, training_hash(self.asked))))
        return self.settings.out / self.name / settings / f"seed{self.seed}"

    @property
    def logs(self) -> list[Path]:
        """The logs of all attempts to train, the first one first."""
        return sorted(self.folder.glob("train.*.log"))

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint that is evaluated; its name says which, as an override may choose another of the same training."""
        if self.recipe.average is None:
            return self.checkpoints / self.recipe.checkpoint
        last, unit = self.recipe.average
        return self.folder / f"average_{last}_{unit}.pt"

    @property
    def corpus(self) -> Path:
        """Folder in which the corpus is prepared."""
        return self.settings.data / self.recipe.corpus / (self.recipe.variant or "")

    @property
    def data(self) -> Path:
        """The binarized corpus."""
        return self.corpus / "data-bin"

    @cached_property
    def batch(self) -> Batch:
        """Return how the recipe's batch is shared out on this machine.

        Raises:
            UserError: the recipe's batch cannot be shared out on this machine.
        """
        try:
            return batch_on(self.asked, self.data, max(1, self.settings.gpus), self.settings.max_tokens)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    @property
    def prepare(self) -> list[str]:
        variant = ["--variant", self.recipe.variant] if self.recipe.variant else []
        kept = ["--downloads", str(self.settings.downloads)]
        return ["fairseq-residuals", "prepare", self.recipe.corpus, str(self.corpus), *variant, *kept]

    @property
    def train(self) -> list[str]:
        machine = [override(key, value) for key, value in self._of_the_machine.items()]
        primary, of_row = as_command_line(self.settings.configs, self.name)
        command = ["fairseq-hydra-train", "--config-dir", str(self.settings.configs), "--config-name", primary, *of_row]
        return [*command, override("hydra.run.dir", str(self.folder)), *self._asked_overrides, *machine]

    @property
    def average(self) -> list[str] | None:
        if self.recipe.average is None:
            return None
        last, unit = self.recipe.average
        return [
            *("fairseq-residuals", "average", "--inputs", str(self.checkpoints)),
            *(f"--num-{unit}-checkpoints", str(last), "--output", str(self.checkpoint)),
        ]

    def evaluate(self, measurement: Measurement) -> Iterator[Evaluation]:
        """Yield the runs of fairseq's tools for one measurement; none for what is read from the training's log."""
        if measurement.tool == "train-log":
            return
        if measurement.tool == "linearize":
            yield self._linearization(measurement)
            return
        pairs: Sequence[str | None] = [None]
        if measurement.directions is not None:
            pairs = fnmatch.filter(self._lang_pairs().split(","), measurement.directions)
        for pair in pairs:
            yield self._evaluation(measurement, pair)

    def subset(self, measurement: Measurement) -> str:
        """Return what fairseq calls a test set."""
        if self.recipe.corpus not in CORPORA:
            return measurement.set
        _, prepared = find_corpus(self.recipe.corpus).variant(self.recipe.variant)
        return prepared.test_sets.get(measurement.set, measurement.set)

    def _linearization(self, measurement: Measurement) -> Evaluation:
        subset = self.subset(measurement)
        device = "cuda" if self.settings.gpus else "cpu"
        flags = [*as_flags(measurement.flags), "--split", subset, "--device", device]
        folder = self.folder / "evaluated"
        name = f"linearized-{sha256(json.dumps([self.checkpoint.name, *flags]).encode()).hexdigest()[:8]}"
        command = ["fairseq-residuals", "linearize", str(self.checkpoint), "--data", str(self.data), *flags]
        command += ["--out", str(folder), "--name", name]
        return Evaluation(command, folder / f"{name}.log", subset, None, None)

    def _evaluation(self, measurement: Measurement, pair: str | None) -> Evaluation:
        subset = self.subset(measurement)
        flags = dict(measurement.flags)
        if measurement.tool == "fairseq-validate":  # which has no task by default
            flags |= {"task": self.asked.task._name, "valid_subset": subset}
        else:
            flags["gen_subset"] = subset
        if pair is not None:
            flags |= dict(zip(("source_lang", "target_lang"), pair.split("-"), strict=True))
            flags["lang_pairs"] = self._lang_pairs()
        elif "tokenizer" in flags:  # fairseq gives the languages to the tokenizer too, and it takes no null
            flags = {key: self.asked.task[key] for key in ("source_lang", "target_lang")} | flags
        if self.settings.gpus == 0:
            flags["cpu"] = True
        target = flags.get("target_lang") or self.asked.task.get("target_lang")
        what = json.dumps([measurement.tool, flags, self.checkpoint.name], sort_keys=True)
        key = sha256(what.encode()).hexdigest()[:8]
        log = self.folder / "evaluated" / f"{'.'.join(filter(None, [subset, pair]))}-{key}.log"
        paths = [str(self.data), "--user-dir", str(self.settings.user_dir), "--path", str(self.checkpoint)]
        return Evaluation([measurement.tool, *paths, *as_flags(flags)], log, subset, target, pair)

    def _lang_pairs(self) -> str:
        path = self.data / "lang_pairs.txt"
        # known only when the corpus is there; until then a pair stands for all
        return path.read_text(encoding="utf-8").strip() if path.is_file() else "en-LANG,LANG-en"

    @cached_property
    def _asked_overrides(self) -> list[str]:
        precision = self.settings.precision
        if self.settings.gpus == 0 and precision is None:
            precision = "fp32"
        chosen = _PRECISIONS[precision] if precision else {}
        for key in map(key_of, self.settings.overrides):
            if instead := _NOT_OVERRIDDEN.get(key) or _NOT_OVERRIDDEN.get(key.partition(".")[0]):
                raise UserError(f"--override {key} would have no effect: {instead}")
            if key == SEED and self.given_seed is not None:
                raise UserError(f"--override {key} would have no effect on runs of given seeds: --seeds says this")
        own = (text if self._is_no_setting(text) else f"++{text}" for text in self.settings.overrides)
        return [*(override(f"common.{key}", value) for key, value in chosen.items()), *own]

    def _is_no_setting(self, text: str) -> bool:
        """Tell whether hydra takes an override as it is: elsewhere ++ lets it add a key that the file has not."""
        key = text.partition("=")[0]
        return key.startswith(("+", "~")) or (key != "" and (self.settings.configs / key).is_dir())

    @cached_property
    def _of_the_machine(self) -> dict[str, str | int | bool | list[int]]:
        batch = self.batch
        settings: dict[str, str | int | bool | list[int]] = {
            "common.user_dir": str(self.settings.user_dir),
            "common.seed": self.seed,
            "task.data": str(self.data),
            "checkpoint.save_dir": str(self.checkpoints),
            "dataset.max_tokens": batch.max_tokens,
            "optimization.update_freq": [batch.update_freq],
            "distributed_training.distributed_world_size": batch.devices,
        }
        if self.settings.gpus == 0:
            settings["common.cpu"] = True
        if self.asked.task._name == "translation_multi_simple_epoch":
            settings["task.lang_pairs"] = self._lang_pairs()
        return settings


@dataclass(frozen=True)
class Evaluation:
    """One run of one of fairseq's tools."""

    command: list[str]
    log: Path
    """The file that keeps what it prints."""
    subset: str
    target: str | None
    """The language of the hypotheses."""
    pair: str | None
    """The direction, of a model for several."""


def as_flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Return ``{beam: 4, cpu: true}`` as --beam 4 --cpu; what is None or False is left out."""
    for key, value in settings.items():
        if value is None or value is False:
            continue
        yield f"--{key.replace('_', '-')}"
        if value is not True:
            yield str(value)
