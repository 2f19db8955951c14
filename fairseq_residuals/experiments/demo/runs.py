"""One variant trained from one seed, and its translations of the test set."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_residuals.experiments.demo.corpus import Data
from fairseq_residuals.experiments.demo.processes import Children, StepFailed, program
from fairseq_residuals.experiments.demo.settings import (
    COMPATIBILITY,
    PLUGIN,
    Settings,
    code_digest,
    fresh_folder,
    key,
    partial_of,
    versions,
)
from fairseq_residuals.scoring.text import read_generation
from fairseq_residuals.utils.atomic_write import whole_file
from fairseq_residuals.utils.documents import read_json

WIDTH, FFN_WIDTH, HEADS = 64, 128, 4
VALIDATIONS = 4
POINTS = 40  # of a loss curve

# fmt: off
OPTIMISATION = (
    "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.001", "--lr-scheduler", "fixed",
    "--warmup-updates", "100", "--clip-norm", "1.0", "--dropout", "0", "--max-tokens", "1500",
    "--share-all-embeddings",
)
SEARCH = ("--beam", "4", "--max-len-a", "1.5", "--max-len-b", "10", "--max-tokens", "4000", "--remove-bpe")
# fmt: on


@dataclass(frozen=True)
class Run:
    """One variant trained from one seed, and its translation of the test set."""

    settings: Settings
    data: Data
    variant: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant} seed {self.seed}"

    @property
    def architecture(self) -> list[str]:
        layers = str(self.settings.layers)
        name = f"transformer_{self.variant}"
        if f"{name}_{layers}l" in ARCH_MODEL_REGISTRY:
            return ["--arch", f"{name}_{layers}l"]
        return ["--arch", name, "--encoder-layers", layers, "--decoder-layers", layers]

    @property
    def recipe(self) -> list[str]:
        """The flags of fairseq-train that decide what comes out."""
        flags = [*self.architecture, *OPTIMISATION, "--seed", str(self.seed)]
        for side in ("encoder", "decoder"):
            flags += [f"--{side}-embed-dim", str(WIDTH), f"--{side}-ffn-embed-dim", str(FFN_WIDTH)]
            flags += [f"--{side}-attention-heads", str(HEADS)]
        return [*flags, "--max-update", str(self.settings.updates)]

    @property
    def folder(self) -> Path:
        made_by = [code_digest(PLUGIN, COMPATIBILITY), *versions("torch", "fairseq")]
        name = key(self.recipe, self.data.folder.name, made_by)
        label = f"{self.variant}-{self.settings.layers}l-seed{self.seed}-{name}"
        return self.settings.out / "runs" / label

    @property
    def log(self) -> Path:
        """Where the training logs, or has logged."""
        return (self.folder if self.trained else partial_of(self.folder)) / "train.log"

    @property
    def trained(self) -> bool:
        return self.folder.exists()

    @property
    def hypotheses(self) -> Path:
        return self.folder / "test.hyp.de"

    @property
    def translated(self) -> bool:
        return self.hypotheses.exists()

    @property
    def cpu_seconds(self) -> float:
        """What the finished training took."""
        return read_json(self.folder / "cpu_seconds.json")

    def train(self, children: Children) -> None:
        """Trains unless that is done."""
        if self.trained:
            return
        work = fresh_folder(self.folder)
        updates = self.settings.updates
        command = [program("fairseq-train"), str(self.data.bin), "--user-dir", str(PLUGIN), *self.recipe]
        command += ["--cpu", "--num-workers", "0", "--save-dir", str(work), "--no-epoch-checkpoints"]
        command += ["--validate-interval-updates", str(math.ceil(updates / VALIDATIONS))]
        command += ["--log-format", "json", "--log-interval", str(math.ceil(updates / POINTS))]
        seconds = children.run(command, work / "train.log")
        (work / "cpu_seconds.json").write_text(json.dumps(seconds))
        work.rename(self.folder)

    def translate(self, children: Children) -> None:
        """Translates the test set by beam search, unless that is done."""
        if self.translated:
            return
        command = [program("fairseq-generate"), str(self.data.bin), "--user-dir", str(PLUGIN), *SEARCH]
        command += ["--cpu", "--num-workers", "0", "--path", str(self.folder / "checkpoint_last.pt")]
        children.run(command, self.folder / "generate.log")
        with whole_file(self.hypotheses) as new:
            found = read_generation(self.folder / "generate.log").detokenized
            if len(found) != self.settings.sizes["test"]:
                raise StepFailed(
                    f"{self.folder}/generate.log has {len(found)} of {self.settings.sizes['test']} translations"
                )
            new.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
