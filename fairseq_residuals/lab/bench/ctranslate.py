"""CTranslate2's beam search of the plugin's Post-LN model, exported and converted as a user does it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from fairseq_residuals.lab.bench.case import Case
from fairseq_residuals.lab.bench.contestants import Contestant, parse
from fairseq_residuals.lab.bench.fairseq_models import network
from fairseq_residuals.lab.bench.others import load
from fairseq_residuals.lab.look import batches
from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.plugin.checkpoints.exporting.exporter import export_checkpoint
from fairseq_residuals.wirings.core.errors import UserError

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def search(contestant: Contestant, case: Case) -> Callable[[], int]:
    """Search; every hypothesis has ``case.tokens`` + 1 words, as many steps as fairseq makes with its end.

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
            sentences = pool.submit(convert, Path(folder), contestant.flags, case).result()
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
    post_ln = parse("post_ln")
    model, settings, task = network(
        Contestant(post_ln.name, arch=post_ln.arch, flags=flags), replace(case, precision="fp32")
    )
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
