"""A checkpoint of post_ln or pre_ln generates in stock fairseq what it generates here, and conversely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from tiny import EOS, TASKS, batch, build, build_stock, make_dictionary, perturb
from torch import Tensor, nn

BEAM = 4


def generate(model: nn.Module, task: str, inputs: dict[str, Tensor]) -> list[list[dict[str, Tensor]]]:
    net_input = {name: value for name, value in inputs.items() if name != "prev_output_tokens"}
    # a language model goes on from the first words of each sentence
    prefix = inputs["src_tokens"][:, 1:3] if task == "language_modeling" else None
    generator = SequenceGenerator([model], make_dictionary(), beam_size=BEAM, max_len_b=12)
    return generator.generate([model], {"net_input": net_input}, prefix_tokens=prefix, bos_token=EOS)


@pytest.mark.parametrize("written_by", ["plugin", "stock"])
@pytest.mark.parametrize("variant", ["post_ln", "pre_ln"])
@pytest.mark.parametrize("task", TASKS)
def test_same_sentences_from_the_same_checkpoint(task: str, variant: str, written_by: str, tmp_path: Path) -> None:
    ours = build(task, variant, seed=1)
    stock = build_stock(task, normalize_before=variant == "pre_ln", seed=2)
    writer, reader = (ours, stock) if written_by == "plugin" else (stock, ours)
    torch.save(perturb(writer, scale=0.3).state_dict(), tmp_path / "weights.pt")
    reader.load_state_dict(torch.load(tmp_path / "weights.pt"), strict=True)

    inputs = batch(task)
    found, expected = generate(ours, task, inputs), generate(stock, task, inputs)
    assert len(found) == len(expected) == len(inputs["src_tokens"])
    sentences = set()
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine) == len(theirs) == BEAM
        for a, b in zip(mine, theirs, strict=True):
            assert a["tokens"].tolist() == b["tokens"].tolist()
            torch.testing.assert_close(a["positional_scores"], b["positional_scores"], rtol=0, atol=1e-5)
        sentences |= {tuple(hypothesis["tokens"].tolist()) for hypothesis in mine}
    # models that say the same whatever they read would agree as well
    assert len(sentences) > BEAM
