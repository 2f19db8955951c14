"""Wirings of each shape compute in every format what they compute under fairseq, and beam search finds the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.sequence_generator import SequenceGenerator
from perturbation import perturb
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.exporting import to_graphs, to_hf
from fairseq_residuals.plugin.checkpoints.exporting.exporter import random_batch
from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import PortableCheckpoint, portable_of
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings, complete, synthetic_dictionary, task_of
from fairseq_residuals.wirings.blocks.settings import EOS, PAD
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.export.graphs import Graphs, load_onnx
from tests.rotation import SHAPES_OF_CODE

pytest.importorskip("transformers", reason="the extra hf is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

WORDS = 40
BEAM, LONGEST = 4, 20
PAIR, ALONE = "translation", "language_modeling"
"""Tasks: of an encoder-decoder, of a decoder alone."""


def small_model(wiring: str, layers: int = 2, dim: int = 16, *, task: str) -> PortableCheckpoint:
    """Build a small model as fairseq does, its parameters away from where they start.

    Args:
        wiring: a variant, or a list of variants with their layers.
        task: translation or language_modeling.
    """
    torch.manual_seed(1)
    pair = task == PAIR
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
    perturb(model)
    checkpoint = portable_of(Path(wiring), args, model.eval(), settings)
    _make_ends_likely(checkpoint)
    return portable_of(Path(wiring), args, model, settings)


@torch.no_grad()
def _make_ends_likely(checkpoint: PortableCheckpoint) -> None:
    """Lean the word that ends a sentence towards the decoder's output, so that sentences end before they have to."""
    model: Any = checkpoint.fairseq_model
    batch = random_batch(model)
    previous = batch.get("prev_output_tokens", batch["src_tokens"])
    output = model(**batch, features_only=True)[0][previous.ne(PAD)]
    words = model.decoder.embed_tokens.weight
    mean = output.mean(0)
    words[EOS] += 2 * (output @ words.T).std() * mean / mean.dot(mean)


class Subject:
    """A model, with what is computed of it once for all formats."""

    def __init__(self, checkpoint: PortableCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.batch = random_batch(checkpoint.fairseq_model)
        words, self.previous = self.batch["src_tokens"], self.batch.get("prev_output_tokens")
        self.source: Tensor | None = words
        if self.previous is None:
            self.source, self.previous = None, words
        sentences: Sequence[Tensor | None] = [None]
        if self.source is not None:
            sentences = [row[row.ne(PAD)] for row in self.source]
        self.sentences = sentences

    @cached_property
    def logits(self) -> Tensor:
        """What fairseq computes of ``source`` and ``previous``, (B, T, words)."""
        with torch.no_grad():
            return self.checkpoint.fairseq_model(**self.batch)[0]  # type: ignore[no-any-return]

    @cached_property
    def exact_logits(self) -> Tensor:
        """The same in double precision: how a processor rounds is no part of what is promised."""
        with torch.no_grad():
            return copy.deepcopy(self.checkpoint.fairseq_model).double()(**self.batch)[0]  # type: ignore[no-any-return]

    @cached_property
    def hypotheses(self) -> list[list[int]]:
        """The best that fairseq finds of each sentence."""
        return [_fairseq_search(self.checkpoint, sentence) for sentence in self.sentences]


def compare(subject: Subject, kind: str, folder: Path) -> tuple[float, int, int]:
    """Export a model to a new folder, load what was written, and run both.

    Returns:
        the largest difference of logits to fairseq's; tokens of the best hypotheses that are not fairseq's, and all.
    """
    folder.mkdir()
    if kind == "hf":
        to_hf.write_hf(subject.checkpoint, None, folder)
        run, search = _through_transformers(folder, pair=subject.source is not None)
        expected = subject.exact_logits
    else:
        model = subject.checkpoint.model
        to_graphs.write_onnx(to_graphs.trace_graphs(model), model.settings, folder)
        graphs = load_onnx(folder)
        run, search = graphs.logits, _searcher(graphs)
        expected = subject.logits
    real = subject.previous.ne(PAD)
    with torch.no_grad():
        difference = (run(subject.previous, subject.source) - expected)[real].abs().max().item()
    return difference, *_differing(subject, search)


Search = Callable[[Tensor | None], list[int]]
"""The best hypothesis of a sentence, with its end."""


def _through_transformers(folder: Path, *, pair: bool) -> tuple[Callable[..., Tensor], Search]:
    import transformers

    transformers.logging.disable_progress_bar()
    auto = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    exact = copy.deepcopy(model).double()

    def run(previous: Tensor, source: Tensor | None) -> Tensor:
        inputs = {"input_ids": previous} if source is None else {"input_ids": source, "decoder_input_ids": previous}
        mask = (previous if source is None else source).ne(PAD).long()
        return exact(**inputs, attention_mask=mask, use_cache=False).logits  # type: ignore[no-any-return]

    def search(source: Tensor | None) -> list[int]:
        prompt = torch.tensor([[EOS]]) if source is None else source[None]
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), num_beams=BEAM, max_new_tokens=LONGEST + 1
        )
        return [token for token in found[0].tolist()[1:] if token != PAD]

    return run, search


def _searcher(graphs: Graphs) -> Search:
    return lambda source: graphs.search(source, beam=BEAM, longest=LONGEST)[0].tokens


def _differing(subject: Subject, search: Search) -> tuple[int, int]:
    """Count the tokens of best hypotheses that differ, and all."""
    wrong = total = 0
    for sentence, expected in zip(subject.sentences, subject.hypotheses, strict=True):
        found = search(sentence)
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


def cases(variants: Iterable[str], tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Return each wiring with one of the tasks that it has a meaning in, these in turn."""
    found = []
    for i, variant in enumerate(variants):
        meant = [task for task in tasks if not VARIANTS[variant].refusal(alone=task == ALONE, topmost=True)]
        found.append((variant, meant[i % len(meant)]))
    return found


TOLERANCE = 1e-5
CASES = cases([*SHAPES_OF_CODE, "t_fixup", "zaya_residual"], (PAIR, ALONE))
WITH_OPTIONS = [
    ("post_ln(gpas=layer)", PAIR),
    ("post_ln(fixnorm=true)", PAIR),
    ("pre_ln(norm_type=rms)", ALONE),
    ("pre_ln(depth_mup=true,base_depth=1)", PAIR),
]


@pytest.mark.parametrize(("wiring", "task"), CASES + WITH_OPTIONS)
def test_transformers(wiring: str, task: str, tmp_path: Path) -> None:
    difference, differing, tokens = compare(Subject(small_model(wiring, task=task)), "hf", tmp_path / "out")
    assert difference <= TOLERANCE
    assert differing == 0 and tokens > 0


def exported(task: str, folder: Path) -> Any:
    """Return a model as transformers loads it."""
    to_hf.write_hf(small_model("post_ln", task=task), None, folder)
    auto = AutoModelForSeq2SeqLM if task == PAIR else AutoModelForCausalLM
    return auto.from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("task", (PAIR, ALONE))
def test_the_loss_of_several_batches_is_that_of_one(task: str, tmp_path: Path) -> None:
    """Trainer, which accumulates gradients, divides by nothing where a model takes any argument."""
    model = exported(task, tmp_path).eval()
    words = torch.arange(5, 15).view(2, 5)
    labels = words.clone()
    labels[1, 3:] = -100
    losses = [model(input_ids=words[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=8).loss for i in (0, 1)]
    items = (labels if task == PAIR else labels[:, 1:]).ne(-100).sum()
    whole = model(input_ids=words, labels=labels)
    torch.testing.assert_close(sum(losses) * 8 / items, whole.loss)
    if task == PAIR:  # the collator asks for these where labels are smoothed; predict_with_generate gives labels along
        moved = model.prepare_decoder_input_ids_from_labels(labels)
        assert torch.equal(model(input_ids=words, decoder_input_ids=moved).logits, whole.logits)
        assert len(model.generate(words, labels=labels, max_new_tokens=2)) == len(words)
    many = words.repeat(4000, 1)  # whose losses add up to more than half precision holds
    assert model.half()(input_ids=many, labels=many).loss.isfinite()


@pytest.mark.parametrize("task", (PAIR, ALONE))
def test_what_is_drawn_ends_at_the_last_position(task: str, tmp_path: Path) -> None:
    """Where the end is not among the words that are drawn from, and not where none is asked for."""
    words, model = torch.full((8, 1), EOS), exported(task, tmp_path)
    choice = {"do_sample": True, "num_beams": 1, "top_k": 2}
    drawn = model.generate(words, **choice, min_new_tokens=3, max_new_tokens=4)
    assert drawn.shape[1] == 5
    assert drawn[:, -1].tolist() == [EOS] * 8
    exactly = model.generate(words, num_beams=2, min_new_tokens=4, max_new_tokens=4)
    assert exactly.shape[1] == 5 and (exactly[:, 1:] > EOS).all()


@pytest.mark.parametrize("task", (PAIR, ALONE))
def test_generation_computes_each_position_once(task: str, tmp_path: Path) -> None:
    model, lengths = exported(task, tmp_path), []
    model.decoder.register_forward_pre_hook(lambda module, args: lengths.append(args[0].size(1)))
    model.generate(torch.tensor([[5, 6, 7]]), num_beams=2, min_new_tokens=3, max_new_tokens=4)
    assert len(lengths) > 2 and set(lengths[1:]) == {1}


def test_generate_masks_the_source_s_padding_unasked(tmp_path: Path) -> None:
    model, words = perturb(exported(PAIR, tmp_path)), torch.tensor([[5, 6, 7, 8, EOS], [PAD, PAD, 5, 6, EOS]])
    asked = {"num_beams": 2, "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}
    found, expected = (model.generate(words, attention_mask=m, **asked) for m in (None, words.ne(PAD).long()))
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


# A graph takes seconds to trace, and half a second for each layer, whatever wires it. So wirings are layers of a model,
# one for each shape of code; test_contract.py traces all of them.
GROUPS = [
    (ALONE, ["post_ln", "dlcl_pre", "sub_ln", "laurel_pa", "hyper_connections", "mudd", "attention_residuals"]),
    (ALONE, ["parallel", "hybrid_norm", "depthwise_lstm", "siamese_norm", "mhc_lite", "unet_skip", "x0_read"]),
    (PAIR, ["realformer", "transparent_attention"]),
]
ACROSS_LAYERS = {"attention_residuals", "depthwise_lstm", "dlcl_pre", "laurel_pa", "mudd", "realformer", "unet_skip"}
"""Their second layer reads what the first one left, shares modules with it, or is wired otherwise."""


@pytest.mark.parametrize(("task", "names"), GROUPS, ids=lambda part: part if isinstance(part, str) else part[0])
def test_graphs(task: str, names: list[str], tmp_path: Path) -> None:
    parts, depth = [], 0
    for name in names:
        layers = 2 if name in ACROSS_LAYERS else 1
        parts.append(f"{name}:{depth}-{depth + layers - 1}")
        depth += layers
    subject = Subject(small_model(",".join(parts), depth, task=task))
    difference, differing, tokens = compare(subject, "onnx", tmp_path / "onnx")
    assert difference <= TOLERANCE
    assert differing == 0 and tokens > 0
