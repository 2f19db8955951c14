"""Wirings of each shape compute in every format what they compute under fairseq, and beam search finds the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_comparison import ALONE, PAIR, Subject, cases, compare, small_model

from fairseq_residuals.plugin.checkpoints.exporting import to_hf
from fairseq_residuals.wirings.blocks.settings import EOS
from tests.rotation import SHAPES_OF_CODE

pytest.importorskip("transformers", reason="the extra hf is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

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


@pytest.mark.parametrize("task", (PAIR, ALONE))
def test_what_is_drawn_ends_at_the_last_position(task: str, tmp_path: Path) -> None:
    """Where the end is not among the words that are drawn from."""
    words = torch.full((8, 1), EOS)
    choice = {"do_sample": True, "num_beams": 1, "top_k": 2}
    drawn = exported(task, tmp_path).generate(words, **choice, min_new_tokens=3, max_new_tokens=4)
    assert drawn.shape[1] == 5
    assert drawn[:, -1].tolist() == [EOS] * 8


@pytest.mark.parametrize("task", (PAIR, ALONE))
def test_generation_computes_each_position_once(task: str, tmp_path: Path) -> None:
    model, lengths = exported(task, tmp_path), []
    model.decoder.register_forward_pre_hook(lambda module, args: lengths.append(args[0].size(1)))
    model.generate(torch.tensor([[5, 6, 7]]), num_beams=2, min_new_tokens=3, max_new_tokens=4)
    assert len(lengths) > 2 and set(lengths[1:]) == {1}


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
