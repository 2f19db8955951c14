"""What the commands need beside the file that they are to read: data sets of a few sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from running import succeed
from tiny_jobs import TRANSLATION
from yaml_configs import config

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
    settings = config(TRANSLATION, data, Path("save"))
    settings["model"]["share_all_embeddings"] = False
    return settings
