"""What the commands need beside the file that they are to read: data sets of a few sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from command_lines import SIZES
from running import PLUGIN, succeed

WORDS = ("a", "b", "c", "d")
SPLITS = ("train", "valid", "test")


def prepare(folder: Path) -> None:
    """Write ``pair`` (translation), ``text`` (language modelling), ``speech``, ``run.yaml`` (fairseq-hydra-train)."""
    folder.mkdir()
    for split in SPLITS:
        for language in ("s", "t"):
            (folder / f"{split}.{language}").write_text("a b\nc d a\nb\nd d c b\n")
    prefixes = [text for split in SPLITS for text in (f"--{split}pref", str(folder / split))]
    succeed("fairseq-preprocess", *prefixes, "-s", "s", "-t", "t", "--destdir", str(folder / "pair"))
    prefixes = [text for split in SPLITS for text in (f"--{split}pref", str(folder / f"{split}.s"))]
    succeed("fairseq-preprocess", *prefixes, "--only-source", "--destdir", str(folder / "text"))
    (folder / "segments.xml").write_text('<seg id="1"> a b </seg>\n<seg id="2"> c </seg>\n')
    _write_speech(folder / "speech")
    (folder / "run.yaml").write_text(yaml.safe_dump(configuration(folder / "pair")))


def _write_speech(folder: Path) -> None:
    folder.mkdir()
    rows = []
    for number, word in enumerate(WORDS):
        np.save(folder / f"{number}.npy", np.random.default_rng(number).normal(size=(12, 80)).astype(np.float32))
        rows.append(f"{number}\t{folder / f'{number}.npy'}\t12\t{word}\tx\n")
    for split in SPLITS:
        (folder / f"{split}.tsv").write_text("id\taudio\tn_frames\ttgt_text\tspeaker\n" + "".join(rows))
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    (folder / "config.yaml").write_text("vocab_filename: dict.txt\ninput_feat_per_channel: 80\ninput_channels: 1\n")


def configuration(data: Path) -> dict[str, dict[str, object]]:
    """A tiny training for fairseq-hydra-train."""
    sizes = dict(flag.removeprefix("--").replace("-", "_").split("=") for flag in SIZES)
    return {
        "task": {"_name": "translation", "data": str(data), "source_lang": "s", "target_lang": "t"},
        "criterion": {"_name": "cross_entropy"},
        "model": {"_name": "transformer_b2t_6l"} | {name: int(value) for name, value in sizes.items()},
        "common": {"user_dir": PLUGIN, "cpu": True},
        "checkpoint": {"save_dir": "save"},
        "dataset": {"num_workers": 0, "batch_size": 4},
        "optimization": {"lr": [0.001], "max_update": 1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
    }
