"""Validation of speech by generation where each reference begins with a tag of its language."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from tiny import batch, build
from torch import Tensor

from fairseq_residuals.plugin.scoring.validation import ScoredSpeechToTextTask


def test_the_tag_is_given_and_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Dictionary()
    tag = words.add_symbol("<lang:de>")
    for i in range(30):
        words.add_symbol(f"w{i}")
    task: Any = ScoredSpeechToTextTask.__new__(ScoredSpeechToTextTask)
    task.tgt_dict, task.steps = words, []
    task.data_cfg = Namespace(prepend_tgt_lang_tag=True, prepend_bos_and_append_tgt_lang_tag=False, config={})
    task.args = Namespace(eval_scoring="wer", eval_scoring_args='{"beam": 2, "max_len_b": 5}')
    monkeypatch.setattr(
        "fairseq.tasks.FairseqTask.build_model", lambda self, cfg, from_checkpoint: build("speech", "b2t")
    )
    monkeypatch.setattr(task, "build_bpe", lambda args: None, raising=False)
    monkeypatch.setattr(task, "build_tokenizer", lambda args: None, raising=False)
    monkeypatch.setattr(
        "fairseq.tasks.speech_to_text.SpeechToTextTask.build_model", lambda self, cfg, again: build("speech", "b2t")
    )
    model = task.build_model(None)
    monkeypatch.setattr("fairseq.tasks.FairseqTask.valid_step", lambda *args: (0.0, 1, {}))
    target = torch.full((3, 4), 10)
    target[:, 0], target[:, -1] = tag, words.eos()
    given: list[Tensor] = []
    search = task.scoring_generator.generate
    monkeypatch.setattr(
        task.scoring_generator,
        "generate",
        lambda *args, **kwargs: given.append(kwargs["prefix_tokens"]) or search(*args, **kwargs),
    )
    inputs = {name: value for name, value in batch("speech").items() if name != "prev_output_tokens"}
    _, _, log = task.valid_step({"net_input": inputs, "target": target}, model, None)
    assert given[0].tolist() == [[tag]] * 3
    assert task.decode(torch.tensor([tag, 10, 11, words.eos()]), "<unk>") == "w5 w6"
    assert sum(value for name, value in log.items() if name.startswith("_wer")) > 0
