"""Other libraries: how they are imported, and CTranslate2, which searches with the plugin's model.

The model is Post-LN, exported and converted as a user does it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.lab.bench.entries import Case, Entry, parse
from fairseq_residuals.lab.bench.fairseq_models import network
from fairseq_residuals.lab.look import batches
from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.plugin.checkpoints.exporting.exporter import export_checkpoint
from fairseq_residuals.wirings.core.errors import UserError

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def ctranslate2(entry: Entry, case: Case) -> Callable[[], int]:
    """Return a function that searches as many steps as fairseq makes, with the end: ``case.tokens`` + 1.

    Raises:
        UserError: CTranslate2 is not installed, or not efficient in this precision here.
    """
    (library,) = load("ctranslate2", "")
    wanted, device = COMPUTE_TYPES[case.precision], torch.device(case.device)
    if wanted not in library.get_supported_compute_types(device.type, device.index or 0):
        raise UserError(f"CTranslate2 does not compute in {wanted} on this {device.type}")
    with tempfile.TemporaryDirectory() as folder:
        # in a process of its own, whose memory is not that of the search
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            sentences = pool.submit(convert, Path(folder), entry.flags, case).result()
        translator = library.Translator(
            str(Path(folder, "converted")),
            device=device.type,
            device_index=device.index or 0,
            compute_type=wanted,
            intra_threads=torch.get_num_threads(),
        )

    def run() -> int:
        length = case.tokens + 1
        found = translator.translate_batch(
            sentences, beam_size=case.beam, min_decoding_length=length, max_decoding_length=length
        )
        return sum(len(result.hypotheses[0]) for result in found)

    return run


def convert(folder: Path, flags: tuple[str, ...], case: Case) -> list[list[str]]:
    """Write the model to ``folder``/converted, and return what is to be translated."""
    (converters,) = load("ctranslate2", "converters")
    model, settings, task = network(replace(parse("post_ln"), flags=flags), replace(case, precision="fp32"))
    save({"args": settings, "model": model.state_dict()}, folder / "ours.pt")
    save(export_checkpoint(folder / "ours.pt").checkpoint, folder / "stock.pt")
    for language in "st":
        task.source_dictionary.save(str(folder / f"dict.{language}.txt"))
    # the settings in a checkpoint of fairseq are a Namespace, which torch loads only where it is told to
    converter = converters.FairseqConverter(
        str(folder / "stock.pt"), str(folder), source_lang="s", target_lang="t", unsafe_deserialization=True
    )
    converter.convert(str(folder / "converted"))
    source = batches.make_up(case.arguments(), settings, task, model).sample["net_input"]["src_tokens"]
    return [[task.source_dictionary[word] for word in words[:-1]] for words in source.tolist()]


def load(package: str, *modules: str) -> list[Any]:
    """Return modules of a package that need not be there.

    Raises:
        UserError: it is not installed, or what it needs does not work here.
    """
    if find_spec(package) is None:
        raise UserError(f"not installed (pip install {package.replace('_', '-')})")
    try:
        return [import_module(f"{package}.{module}".rstrip(".")) for module in modules]
    except Exception as error:
        # whatever goes wrong in there, and in what it imports, is the same news
        raise UserError(f"{package} cannot be imported here: {type(error).__name__}: {error}") from error
