"""Word dropout: which words are missing, when, and that nothing else is touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fairseq.models import build_model
from omegaconf import OmegaConf
from tiny import EOS, PAD, batch, build, make_task, settings
from tiny_jobs import STACK
from torch import nn

from fairseq_residuals.plugin.models.fairseq_stack import PackedSides
from fairseq_residuals.plugin.training.word_dropout import WordDropoutEmbedding
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.packing import Packing

BOTH = ("--encoder-word-dropout", "0.3", "--decoder-word-dropout", "0.3")


def dropping(p: float) -> tuple[nn.Embedding, WordDropoutEmbedding]:
    plain = nn.Embedding(40, 16, PAD)
    return plain, WordDropoutEmbedding(plain, p)


def test_each_word_is_missing_with_the_probability_and_the_others_are_unchanged() -> None:
    torch.manual_seed(1)
    plain, embedding = dropping(0.3)
    tokens = torch.full((200, 50), 5)
    tokens[:, -1] = EOS
    words, out = plain(tokens), embedding(tokens)
    missing = out.eq(0).all(-1)
    assert torch.equal(out, torch.where(missing.unsqueeze(-1), 0.0, words))
    # four standard deviations of a mean of 10,000, of 200, and of 200 independent draws
    assert missing.double().mean() == pytest.approx(0.3, abs=4 * (0.21 / 10_000) ** 0.5)
    assert missing[:, 0].double().mean() == pytest.approx(0.3, abs=4 * (0.21 / 200) ** 0.5)
    assert missing[:, -1].double().mean() == pytest.approx(0.3, abs=4 * (0.21 / 200) ** 0.5)


@pytest.mark.parametrize("layout", ["right", "left", "packed"])
def test_the_first_word_of_a_sentence_stays_in_a_decoder(layout: str) -> None:
    torch.manual_seed(1)
    sides, tokens = PackedSides(), torch.full((200, 50), 5)
    embedding = WordDropoutEmbedding(nn.Embedding(40, 16, PAD), 0.9, keep_first=True, sides=sides)
    padding = {"right": (0, 3), "left": (3, 0), "packed": (0, 0)}[layout]
    packing = Packing(torch.arange(0, 10_001, 50), (10_000, 50)) if layout == "packed" else None
    with sides.running(None, packing):
        tokens = nn.functional.pad(tokens, padding, value=PAD)
        out = embedding(tokens if packing is None else tokens.view(1, -1)).view(*tokens.shape, 16)
    missing = out[:, padding[0] : padding[0] + 50].eq(0).all(-1)
    assert not missing[:, 0].any()
    assert missing[:, 1:].double().mean() == pytest.approx(0.9, abs=4 * (0.09 / 9_800) ** 0.5)
    assert torch.equal(embedding(torch.tensor([[5]])), embedding.eval()(torch.tensor([[5]])))


def test_a_missing_word_gets_no_gradient() -> None:
    torch.manual_seed(1)
    plain, embedding = dropping(0.5)
    tokens = torch.arange(4, 40).unsqueeze(0)
    out = embedding(tokens)
    out.sum().backward()
    assert plain.weight.grad is not None
    assert torch.equal(plain.weight.grad[4:], out.detach().ne(0).float().squeeze(0))


def test_a_missing_word_keeps_its_position() -> None:
    """Which is all that is left of it; a word that is there is scaled by sqrt(d), and by nothing else."""
    plain, model = build("translation", "post_ln"), build("translation", "post_ln", *BOTH).train()
    tokens = batch("translation")["src_tokens"]
    torch.manual_seed(1)
    out, words = model.encoder.forward_embedding(tokens)
    positions = plain.encoder.embed_positions(tokens)
    missing = words.eq(0).all(-1) & tokens.ne(PAD)
    assert 0 < missing.sum() < missing.numel() / 2
    assert torch.equal(out[missing], positions[missing])
    assert torch.equal(out[~missing], (4.0 * plain.encoder.embed_tokens(tokens) + positions)[~missing])


def drops(model: Any) -> tuple[bool, ...]:
    owners = [getattr(model, "encoder", None), model.decoder]
    return tuple(isinstance(getattr(owner, "embed_tokens", None), WordDropoutEmbedding) for owner in owners)


@pytest.mark.parametrize(
    ("task", "flags", "expected"),
    [
        ("translation", BOTH[:2], (True, False)),
        ("translation", BOTH[2:], (False, True)),
        ("translation", BOTH, (True, True)),
        ("translation", (*BOTH, "--share-all-embeddings"), (True, True)),
        ("translation", (*BOTH[:2], "--share-all-embeddings"), (True, False)),
        ("language_modeling", (*BOTH[2:], "--share-decoder-input-output-embed"), (False, True)),
        ("speech", BOTH[2:], (False, True)),
    ],
)
def test_only_the_input_of_the_stack_that_was_named_changes(
    task: str, flags: tuple[str, ...], expected: tuple[bool, ...]
) -> None:
    plain = build(task, "b2t", *(flag for flag in flags if flag.startswith("--share")))
    model = build(task, "b2t", *flags)
    assert drops(model) == expected and drops(plain) == (False, False)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in model.named_parameters()]
    a, b = plain.state_dict(), model.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[name], b[name]) for name in a if not name.endswith("_float_tensor"))
    model.load_state_dict(a)

    tied = "--share-all-embeddings" in flags or "--share-decoder-input-output-embed" in flags
    for changed in (model, copy.deepcopy(model), copy.deepcopy(model).half()):
        assert (changed.decoder.output_projection.weight is changed.decoder.embed_tokens.weight) == tied
        if task == "translation":
            shared = "--share-all-embeddings" in flags
            assert (changed.encoder.embed_tokens.weight is changed.decoder.embed_tokens.weight) == shared

    inputs = batch(task)
    assert torch.equal(model(**inputs)[0], plain(**inputs)[0])
    plain.train(), model.train()
    outputs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outputs.append(model(**inputs)[0])
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], plain(**inputs)[0])


def test_building_it_draws_no_random_numbers() -> None:
    states = []
    for flags in ((), BOTH):
        build("translation", "b2t", *flags)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_zero_adds_nothing() -> None:
    model = build("translation", "b2t", "--encoder-word-dropout", "0", "--decoder-word-dropout", "0")
    assert [type(stack.embed_tokens) for stack in (model.encoder, model.decoder)] == [nn.Embedding] * 2


def test_it_is_stored_with_the_settings() -> None:
    assert settings("transformer_b2t_6l", *BOTH[:2]).encoder_word_dropout == 0.3
    stacks = {"encoder": {**STACK, "word_dropout": 0.3}, "decoder": STACK}
    cfg = OmegaConf.create({"_name": "transformer_b2t_6l", **stacks, "decoder_word_dropout": 0.2})
    model = build_model(cfg, make_task())
    assert (model.encoder.embed_tokens.p, model.decoder.embed_tokens.p) == (0.3, 0.2)
    assert (model.encoder.embed_tokens.keep_first, model.decoder.embed_tokens.keep_first) == (False, True)
    assert (cfg.encoder_word_dropout, cfg.decoder_word_dropout) == (0.3, 0.2)


@pytest.mark.parametrize(
    ("arch", "flags", "said"),
    [
        (
            "transformer_b2t_6l",
            ("--encoder-word-dropout", "1"),
            "--encoder-word-dropout must be .* less than 1, not 1.0",
        ),
        ("transformer_b2t_6l", ("--decoder-word-dropout", "-0.1"), "--decoder-word-dropout must be .* at least 0"),
        ("transformer_b2t_6l", ("--decoder-word-dropout", "nan"), "--decoder-word-dropout must be a number"),
        ("transformer_lm_b2t_6l", BOTH[:2], "--encoder-word-dropout.*a language model has none"),
        ("s2t_transformer_b2t_6l", BOTH[:2], "--encoder-word-dropout.*whose input is sound"),
        ("transformer_lm_b2t_6l", (*BOTH[2:], "--adaptive-input"), "--decoder-word-dropout.*--adaptive-input"),
        ("transformer_lm_b2t_6l", (*BOTH[2:], "--character-embeddings"), "--decoder-word-dropout.*--character-embed"),
        ("transformer_lm_b2t_wiki103", BOTH[2:], "--decoder-word-dropout.*--adaptive-input"),
    ],
)
def test_what_cannot_be_is_refused(arch: str, flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings(arch, *flags)
