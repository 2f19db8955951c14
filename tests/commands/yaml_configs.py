"""The jobs as configurations of fairseq-hydra-train."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from running import PLUGIN, argv_of
from tiny_jobs import DECODER, ENCODER, LANGUAGE_MODEL, SPEECH, STACK, TRANSLATION

NESTED = {"encoder": dict(STACK), "decoder": dict(STACK)}
"""The dimensions of translation and speech models as fairseq's own configurations nest them."""

SMOOTHED = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1}
PARTS: dict[str, dict[str, Any]] = {
    TRANSLATION.name: {
        "task": {"_name": "translation", "source_lang": "s", "target_lang": "t"},
        "criterion": SMOOTHED,
        "model": {"_name": TRANSLATION.arch, "share_all_embeddings": True, "dropout": 0.1} | ENCODER | DECODER,
    },
    LANGUAGE_MODEL.name: {
        "task": {"_name": "language_modeling", "sample_break_mode": "none", "tokens_per_sample": 12},
        "criterion": {"_name": "cross_entropy"},
        "model": {"_name": LANGUAGE_MODEL.arch, "share_decoder_input_output_embed": True, "dropout": 0.1} | DECODER,
    },
    SPEECH.name: {
        "task": {"_name": "speech_to_text", "config_yaml": "config.yaml"},
        "criterion": SMOOTHED,
        "model": {"_name": SPEECH.arch, "conv_channels": 16, "dropout": 0.1} | ENCODER | DECODER,
    },
}
"""What differs between the jobs; the same settings as their flags for fairseq-train."""


def config(job: Any, data: Path, save_dir: Path) -> dict[str, Any]:
    """The whole configuration of a job."""
    settings = copy.deepcopy(PARTS[job.name])
    settings["task"]["data"] = str(data)
    return settings | {
        "common": {"user_dir": PLUGIN, "cpu": True, "seed": 7, "log_format": "json", "log_interval": 1},
        "checkpoint": {"save_dir": str(save_dir), "no_epoch_checkpoints": True},
        "dataset": {"num_workers": 0, "batch_size": 4, "required_batch_size_multiple": 1},
        "optimization": {"lr": [0.005], "max_update": 6},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 4},
    }


def hydra_argv(settings: dict[str, Any], folder: Path) -> list[str]:
    """Writes a configuration into ``folder`` and returns the command that runs it; hydra's files go there."""
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "run.yaml").write_text(yaml.safe_dump(settings))
    return argv_of(
        *("fairseq-hydra-train", "--config-dir", folder / "conf", "--config-name", "run"),
        f"hydra.run.dir={folder / 'hydra'}",
    )
