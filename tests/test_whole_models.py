"""LanguageModel and EncoderDecoder: loss, generation with the cache, saving and loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from perturbation import perturb
from test_library_build import OfLinear
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairseq_residuals import EncoderDecoder, LanguageModel, UserError, parameter_groups
from fairseq_residuals.wirings.blocks.search import _draw

SIZES: dict[str, Any] = {"vocab": 20, "depth": 2, "dim": 16, "heads": 4, "ffn_dim": 32}
TODAY: dict[str, Any] = {"rotary": True, "kv_heads": 2, "ffn": "swiglu", "qk_norm": True, "norm_type": "rms"}
PROMPTS = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [11, 12, 13, 2, 1]])


def language_model(variant: str = "mhc", **settings: Any) -> LanguageModel:
    torch.manual_seed(1)
    return perturb(LanguageModel(variant, **SIZES | {"padding": 0, "end": 3} | settings)).eval()


def pair(variant: str = "b2t", **settings: Any) -> EncoderDecoder:
    torch.manual_seed(1)
    return perturb(EncoderDecoder(variant, **SIZES | settings)).eval()


def continued(logits_of: Any, start: list[int], length: int, padding: int, end: int) -> list[int]:
    """The most probable tokens, all computed anew for each."""
    tokens = list(start)
    while len(tokens) < len(start) + length and (len(tokens) == len(start) or tokens[-1] != end):
        logits = logits_of(torch.tensor([tokens]))[0, -1]
        logits[padding] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens[len(start) :]


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("mhc", {}),
        ("mhc", TODAY),
        ("realformer", {"positions": "learned", "max_positions": 12}),
        ("b2t", {"tied": False}),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_language_model_continues_prompts(variant: str, settings: dict[str, Any]) -> None:
    model = language_model(variant, **settings)
    expected = [continued(model, row[row.ne(0)].tolist(), 6, 0, 3) for row in PROMPTS]
    assert model.generate(PROMPTS, max_new_tokens=6) == expected
    beams = model.generate(PROMPTS, max_new_tokens=6, num_beams=4)
    assert beams == [model.generate(row[row.ne(0)][None], max_new_tokens=6, num_beams=4)[0] for row in PROMPTS]
    assert all(tokens[-1] == 3 for tokens in beams)


@pytest.mark.parametrize("longest", [1, 2, 100])
@torch.no_grad()
def test_sentences_end_where_learned_positions_do(longest: int) -> None:
    """The last token is generated and not read, so there is one more than positions."""
    model = language_model("pre_ln", positions="learned", max_positions=5)
    for length in (3, 4, 5):
        prompt = PROMPTS[:1, -1:].expand(1, length)
        room = min(longest, 6 - length)
        (beam,) = model.generate(prompt, max_new_tokens=longest, num_beams=2)
        assert model.generate(prompt, max_new_tokens=longest) == [continued(model, prompt[0].tolist(), room, 0, 3)]
        assert beam[-1] == 3 and len(beam) <= room


@torch.no_grad()
def test_a_beam_that_holds_everything_finds_the_best() -> None:
    """Of all sentences of at most two tokens and an end."""
    model = language_model(vocab=6)
    prompt = [4, 5]

    def score(tokens: list[int]) -> float:
        lprobs = model(torch.tensor([prompt + tokens]))[0].log_softmax(-1)
        return sum(float(lprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)) / len(tokens)

    words = [1, 2, 4, 5]
    every = [[a, 3] for a in words] + [[a, b, 3] for a in words for b in words]
    assert model.generate(torch.tensor([prompt]), max_new_tokens=3, num_beams=30) == [max(every, key=score)]


@torch.no_grad()
def test_an_encoder_decoder_translates() -> None:
    for settings in ({}, TODAY, {"vocab": (20, 18), "depth": (3, 1), "input_dim": 8, "norm_embedding": True}):
        model = pair(**settings)
        expected = []
        for row in SOURCE:
            source = row[row.ne(1)][None]
            expected.append(continued(lambda tokens, s=source, m=model: m(s, tokens), [2], 5, 1, 2))
        assert model.generate(SOURCE, max_new_tokens=5) == expected
        beams = model.generate(SOURCE, max_new_tokens=5, num_beams=3)
        assert beams == [model.generate(row[row.ne(1)][None], max_new_tokens=5, num_beams=3)[0] for row in SOURCE]


def test_losses() -> None:
    model = language_model(dropout=0.1)
    tokens = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]])
    logits = model(tokens)
    expected = cross_entropy(torch.cat([logits[0, :3], logits[1, :2]]), torch.tensor([6, 7, 3, 9, 3]))
    torch.testing.assert_close(model.loss(tokens), expected)
    model.eval()
    left = torch.tensor([[0, 0, 5, 6, 7]])
    torch.testing.assert_close(model.loss(left), model.loss(left[:, 2:]))
    translator = pair()
    logits = translator(SOURCE[1:2, :3], torch.tensor([[2, 5, 6]]))
    torch.testing.assert_close(
        translator.loss(SOURCE[1:2, :3], torch.tensor([[5, 6, 2]])), cross_entropy(logits[0], torch.tensor([5, 6, 2]))
    )
    for half in (torch.bfloat16, torch.float16):  # in which the sum of so many would be rounded, or infinite
        model, tokens = language_model(dtype=half), torch.randint(4, 20, (8000, 4))
        expected = cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        torch.testing.assert_close(model.loss(tokens), expected)


@pytest.mark.parametrize("variant", ["mhc", "admin", "complete_p", "value"])
def test_training_lowers_the_loss(variant: str) -> None:
    torch.manual_seed(1)
    settings = (
        {"variant": "b2t", "options": {"value_residual": "learnable"}} if variant == "value" else {"variant": variant}
    )
    model = LanguageModel(**SIZES | TODAY | settings).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-3))
    tokens = torch.arange(20).repeat(4, 1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.loss(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_drawing() -> None:
    model = language_model()
    torch.manual_seed(5)
    first = model.train().generate(PROMPTS, max_new_tokens=8, temperature=1.0)
    assert model.training and all(module.training for module in model.modules())
    torch.manual_seed(5)
    assert model.generate(PROMPTS, max_new_tokens=8, temperature=1.0) == first
    greedy = model.generate(PROMPTS, max_new_tokens=8)
    assert model.generate(PROMPTS, max_new_tokens=8, temperature=2.0, top_k=1) == greedy
    assert model.generate(PROMPTS, max_new_tokens=8, temperature=2.0, top_p=1e-6) == greedy
    drawn = {tuple(model.generate(PROMPTS[1:], max_new_tokens=1, temperature=50.0)[0]) for _ in range(60)}
    assert len(drawn) > 8 and (0,) not in drawn
    two = {tuple(model.generate(PROMPTS[1:], max_new_tokens=1, temperature=50.0, top_k=2)[0]) for _ in range(40)}
    assert len(two) == 2


def test_two_filters_leave_what_those_of_transformers_leave() -> None:
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    left = transformers.TopPLogitsWarper(0.75)(None, transformers.TopKLogitsWarper(3)(None, logits)).isfinite()
    torch.manual_seed(5)
    assert _draw(logits.expand(200, 4), 3, 0.75).unique().tolist() == left[0].nonzero()[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "model",
    [language_model(**TODAY), language_model("depthwise_lstm"), pair(), pair(vocab=(20, 18), tied=False)],
    ids=["alone", "layers share", "tied", "free"],
)
def test_what_is_saved_is_loaded(model: Any, tmp_path: Path) -> None:
    model.save(tmp_path)
    loaded: Any = type(model).load(tmp_path)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert loaded.settings == model.settings
    assert len(list(loaded.parameters())) == len(list(model.parameters()))
    inputs: tuple[Tensor, ...] = (PROMPTS,) if isinstance(model, LanguageModel) else (SOURCE, SOURCE)
    assert torch.equal(loaded(*inputs), model(*inputs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    half = model.to(torch.bfloat16)
    half.save(tmp_path)
    assert {p.dtype for p in type(model).load(tmp_path).parameters()} == {torch.bfloat16}


def test_what_is_not_loaded_or_saved(tmp_path: Path) -> None:
    def refused(message: str, kind: Any = LanguageModel) -> None:
        with pytest.raises(UserError, match=message) as error:
            kind.load(tmp_path)
        assert "\n" not in str(error.value)

    refused("holds no exported model")
    language_model().save(tmp_path)
    refused("holds another kind of model than EncoderDecoder", EncoderDecoder)
    settings = json.loads((tmp_path / "model.json").read_text())
    for name, value, message in (
        ("kv_heads", 3, "kv_heads=3 does not divide"),
        ("rotary", "far", "rotary of decoder must be a number"),
        ("bias", 1, "bias of decoder must be of type bool"),
        ("layers", 3, "model.safetensors is missing, damaged, or of another model"),
        ("colour", 3, "decoder must be an object with"),
    ):
        changed = settings | {"model": settings["model"] | {"decoder": settings["model"]["decoder"] | {name: value}}}
        (tmp_path / "model.json").write_text(json.dumps(changed))
        refused(message)
    (tmp_path / "model.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    refused("model.safetensors is missing, damaged, or of another model")
    (tmp_path / "model.safetensors").unlink()
    refused("model.safetensors is missing, damaged, or of another model")
    quantized = language_model()
    quantized.decoder.output_projection.weight = nn.Parameter(torch.ones(20, 16).as_subclass(OfLinear))
    quantized.load_state_dict(language_model().state_dict())
    with pytest.raises(UserError, match=r"output_projection\.weight is a OfLinear, quantized or sharded"):
        quantized.save(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": PROMPTS.flip(1)}, "prompts must be padded on the left"),
        ({"prompts": PROMPTS[0]}, r"prompts must be \(sentences, tokens\), whole numbers, not \(4,\)"),
        ({"prompts": PROMPTS + 15}, "prompts has tokens 15 to 25, and the model 20 words"),
        ({"num_beams": 0}, "num_beams must be a whole number of at least 1, not 0"),
        ({"num_beams": 2, "temperature": 1.0}, "a beam is searched and not drawn"),
        ({"top_k": 2}, "give a temperature"),
        ({"length_penalty": 2.0}, "give num_beams, such as 4, too"),
        ({"temperature": 1.0, "top_p": 0}, "top_p above 0"),
    ],
)
def test_what_is_not_generated(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        language_model().generate(**{"prompts": PROMPTS} | arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab": 0}, "vocab must be a whole number of at least 1, not 0"),
        ({"padding": 20}, "padding=20 is no token of a vocabulary of 20"),
        ({"padding": 2, "end": 2}, "padding and end are both token 2"),
        ({"heads": 3}, "dim=16 is not divisible by heads=3"),
        ({"max_positions": 5}, "with positions='sinusoidal' does nothing"),
        ({"positions": "relative"}, "positions='relative' is unknown; valid are sinusoidal, learned, none"),
        ({"variant": "transparent_attention"}, "cannot be used there"),
        ({"variant": "complete_p", "options": {"mup": True}}, "option mup has embeddings that do not grow with dim"),
        ({"tied": 1}, "share_input_output of the model's settings must be true or false"),
        ({"vocabulary": 3}, "there is no argument 'vocabulary'"),
        ({"dropout": True}, "dropout=True is no probability"),
    ],
    ids=str,
)
def test_models_that_are_not_built(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LanguageModel(**SIZES | {"variant": "b2t"} | settings)


@pytest.mark.parametrize("tokens", [torch.tensor([[5], [6]]), torch.tensor([5, 6, 7])])
def test_a_loss_needs_a_token_after_the_first(tokens: Tensor) -> None:
    with pytest.raises(UserError, match=r"tokens must be \(sentences, tokens\), of two tokens at least, not \("):
        language_model().loss(tokens)
    with pytest.raises(UserError, match=r"source and target must be \(sentences, tokens\), not \("):
        pair().loss(tokens[0], tokens[0])


def test_a_beam_needs_an_end_and_a_keyword_its_name() -> None:
    with pytest.raises(UserError, match="beam search needs a token that ends sentences"):
        language_model(end=None).generate(PROMPTS, num_beams=2)
    with pytest.raises(TypeError, match=r"\.generate\(\) got an unexpected keyword argument 'do_sample'"):
        language_model().generate(PROMPTS, do_sample=True)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", [LanguageModel, EncoderDecoder])
def test_tied_matrices_stay_one_from_meta(kind: Any, assign: bool) -> None:
    trained = kind("pre_ln", **SIZES)
    with torch.device("meta"):
        model = kind("pre_ln", **SIZES)
    # PyTorch makes or assigns a parameter for each name
    model = model if assign else model.to_empty(device="cpu")
    model.load_state_dict({name: value.clone() for name, value in trained.state_dict().items()}, assign=assign)
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    inputs = (SOURCE, SOURCE) if kind is EncoderDecoder else (SOURCE,)
    for each in (trained, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each.loss(*inputs).backward()
        optimizer.step()
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    trained.decoder.output_projection, model.decoder.output_projection = nn.Linear(16, 3), nn.Linear(16, 3)
    model.load_state_dict(trained.state_dict(), assign=assign)
    torch.testing.assert_close(model(*inputs), trained(*inputs))
