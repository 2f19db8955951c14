"""What each format makes of each wiring: differences of logits, tokens that differ in beam search, sizes.

::

    python -m fairseq_residuals.checkpoints.exporting.comparison

prints the table that docs/CHECKPOINTS.md has. The models are small, and away from their initial values.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_residuals.checkpoints.exporting import to_graphs, to_hf
from fairseq_residuals.checkpoints.exporting.folders import fairseq_logits, random_input
from fairseq_residuals.checkpoints.exporting.portable_checkpoint import PortableCheckpoint, portable_of
from fairseq_residuals.checkpoints.fairseq_config import Settings, complete, synthetic_dictionary, task_of
from fairseq_residuals.checkpoints.transformers_classes import TransformersClass, fitting_class
from fairseq_residuals.core.registry import VARIANTS, list_variants
from fairseq_residuals.portable.graphs import Graphs, load_onnx, load_torch_export
from fairseq_residuals.portable.settings import EOS, PAD

WORDS = 40
BEAM, LONGEST = 4, 20
SPREAD = 0.1
"""Standard deviation of what is added to every parameter, so that no gain of 1 hides anything."""
HEADINGS = ("wiring", "format", "largest difference of logits", "tokens that differ in beam search", "bytes")
RULE = ("---", "---", "---:", "---:", "---:")


@dataclass(frozen=True)
class Row:
    """One wiring in one format.

    Attributes:
        wiring: and of what it is, a pair or a language model.
        kind: the format.
        difference: the largest one of logits to fairseq's.
        differing: tokens of the best hypotheses that are not fairseq's, and all tokens; of classes of transformers only
            those of sentences that end by themselves.
        size: bytes of the folder.
    """

    wiring: str
    kind: str
    difference: float
    differing: tuple[int, int]
    size: int

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        wrong, total = self.differing
        return self.wiring, self.kind, f"{self.difference:.1e}", f"{wrong} of {total}", f"{self.size:,}"


def small_model(wiring: str, layers: int = 2, dim: int = 16, *, task: str) -> PortableCheckpoint:
    """Build a small model as fairseq does, its parameters away from where they start.

    Args:
        wiring: a variant, or a list of variants with their layers.
        task: translation or language_modeling.
    """
    torch.manual_seed(1)
    pair = task == "translation"
    sides = ("encoder", "decoder") if pair else ("decoder",)
    sizes = {"layers": layers, "embed_dim": dim, "ffn_embed_dim": 2 * dim, "attention_heads": 2}
    exactly: Settings = {f"{side}_{key}": value for side in sides for key, value in sizes.items()}
    exactly["residual"] = wiring
    exactly |= {"share_all_embeddings": True} if pair else {"share_decoder_input_output_embed": True}
    exactly |= {f"max_{side}_positions": 64 for side in (("source", "target") if pair else ("target",))}
    settings = {"task": task, "source_lang": "de", "target_lang": "en"}
    # the architecture of any wiring: the list chooses
    args, _ = complete(f"{'transformer' if pair else 'transformer_lm'}_post_ln", settings, exactly)
    model = build_model(convert_namespace_to_omegaconf(args).model, task_of(args, {"target": WORDS}))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(SPREAD * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    checkpoint = portable_of(Path(wiring), args, model.eval(), settings)
    _make_ends_likely(checkpoint)
    return portable_of(Path(wiring), args, model, settings)


@torch.no_grad()
def _make_ends_likely(checkpoint: PortableCheckpoint) -> None:
    """Lean the word that ends a sentence towards the decoder's output, so that sentences end before they have to."""
    source, previous = random_input(checkpoint.model)
    model: Any = checkpoint.fairseq_model
    inputs = (previous,) if source is None else (source, source.ne(PAD).sum(1), previous)
    output = model(*inputs, features_only=True)[0][previous.ne(PAD)]
    words = model.decoder.embed_tokens.weight
    mean = output.mean(0)
    words[EOS] += 2 * (output @ words.T).std() * mean / mean.dot(mean)


def compare(checkpoint: PortableCheckpoint, kind: str, folder: Path) -> Row:
    """Export a model to a new folder, load what was written, and run both."""
    folder.mkdir()
    if kind == "hf":
        source, previous = random_input(checkpoint.model)
        run, search = _through_transformers(checkpoint, folder)
    else:
        write, load = GRAPHS[kind]
        write(checkpoint.model, folder)
        graphs = load(folder)
        source, previous = random_input(checkpoint.model)
        run, search = graphs.logits, _searcher(graphs)
    expected = fairseq_logits(checkpoint, source, previous)
    real = previous.ne(PAD)
    with torch.no_grad():
        difference = (run(previous, source) - expected)[real].abs().max().item()
    pair = "pair" if source is not None else "language model"
    wiring = f"{checkpoint.model.settings.decoder.residual} ({pair})"
    size = sum(file.stat().st_size for file in folder.iterdir())
    fit = fitting_class(checkpoint.model.settings) if kind == "hf" else None
    if isinstance(fit, TransformersClass):
        # a sentence that is cut off gets another end there than from fairseq and from us
        differing = _differing(checkpoint, source, search, longest=LONGEST)
        return Row(wiring, f"hf: {fit.name}", difference, differing, size)
    name = "hf: own file" if kind == "hf" else kind
    return Row(wiring, name, difference, _differing(checkpoint, source, search), size)


GRAPHS: dict[str, tuple[Callable[..., None], Callable[[Path], Graphs]]] = {
    "torch_export": (to_graphs.write_torch_export, load_torch_export),
    "onnx": (to_graphs.write_onnx, load_onnx),
}
Search = Callable[[Tensor | None], list[int]]
"""The best hypothesis of a sentence, with its end."""


def _through_transformers(checkpoint: PortableCheckpoint, folder: Path) -> tuple[Callable[..., Tensor], Search]:
    import transformers

    pair = checkpoint.model.encoder is not None
    kind = fitting_class(checkpoint.model.settings)
    if isinstance(kind, TransformersClass):
        to_hf.write_class(checkpoint, kind, None, folder)
    else:
        to_hf.write_hf(checkpoint, None, folder)
    transformers.logging.disable_progress_bar()
    auto = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    # the file was written a moment ago, by this process
    model = auto.from_pretrained(folder, trust_remote_code=not isinstance(kind, TransformersClass)).eval()

    def run(previous: Tensor, source: Tensor | None) -> Tensor:
        inputs = {"input_ids": previous} if source is None else {"input_ids": source, "decoder_input_ids": previous}
        mask = (previous if source is None else source).ne(PAD).long()
        # with a cache, FSMT expects one token and no future to mask
        return model(**inputs, attention_mask=mask, use_cache=False).logits  # type: ignore[no-any-return]

    def search(source: Tensor | None) -> list[int]:
        prompt = torch.tensor([[EOS]]) if source is None else source[None]
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), num_beams=BEAM, max_new_tokens=LONGEST + 1
        )
        return [token for token in found[0].tolist()[1:] if token != PAD]

    return run, search


def _searcher(graphs: Graphs) -> Search:
    return lambda source: graphs.search(source, beam=BEAM, longest=LONGEST)[0].tokens


def _differing(
    checkpoint: PortableCheckpoint, source: Tensor | None, search: Search, longest: int = LONGEST + 1
) -> tuple[int, int]:
    """Count the tokens of best hypotheses that differ, and all, where fairseq's has at most ``longest``."""
    wrong = total = 0
    sentences: Sequence[Tensor | None] = [None] if source is None else [row[row.ne(PAD)] for row in source]
    for sentence in sentences:
        expected, found = _fairseq_search(checkpoint, sentence), search(sentence)
        if len(expected) > longest:
            continue
        total += len(expected)
        same = sum(a == b for a, b in zip(expected, found, strict=False))
        wrong += max(len(expected), len(found)) - same
    return wrong, total


def _fairseq_search(checkpoint: PortableCheckpoint, sentence: Tensor | None) -> list[int]:
    model: Any = checkpoint.fairseq_model
    generator = SequenceGenerator([model], synthetic_dictionary(WORDS), beam_size=BEAM, max_len_b=LONGEST)
    if sentence is None:
        # a language model goes on from the end of a sentence
        tokens = torch.tensor([[EOS]])
        best = generator.generate([model], {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([1])}})
    else:
        lengths = torch.tensor([len(sentence)])
        best = generator.generate([model], {"net_input": {"src_tokens": sentence[None], "src_lengths": lengths}})
    return best[0][0]["tokens"].tolist()  # type: ignore[no-any-return]


def rows(variants: Iterable[str], kinds: Iterable[str], folder: Path, layers: int = 2) -> Iterable[Row]:
    """Yield the rows of the table, a wiring's formats together."""
    for variant in variants:
        for task in ("translation", "language_modeling"):
            if VARIANTS[variant].refusal(alone=task != "translation", topmost=True):
                continue
            checkpoint = small_model(variant, layers, task=task)
            for kind in kinds:
                yield compare(checkpoint, kind, folder / f"{variant}_{task}_{kind}")


def main() -> None:
    """Print the table, in Markdown, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", nargs="+", default=list_variants(), metavar="NAME", help="default: all")
    parser.add_argument("--formats", nargs="+", default=["hf", *GRAPHS], choices=["hf", *GRAPHS], metavar="FORMAT")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        lines = chain([HEADINGS, RULE], (row.cells() for row in rows(args.variants, args.formats, Path(folder))))
        for cells in lines:
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
