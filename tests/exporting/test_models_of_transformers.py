"""``import --from hf`` of models that transformers built: what fairseq computes of them then, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.plugin.checkpoints.importing.from_hf import import_hf
from fairseq_residuals.plugin.checkpoints.safetensors_file import read_tensors, write_tensors
from fairseq_residuals.wirings.core.errors import UserError

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

WORDS, DIM, LONGEST = 40, 16, 20
LAYERS = {f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")}
SIZES = LAYERS | {"d_model": DIM, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "max_position_embeddings": 32}


def fsmt() -> Any:
    words = {"src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["de", "en"]}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**SIZES, **words))


def m2m_100() -> Any:
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(vocab_size=WORDS, **SIZES))


def xglm() -> Any:
    sizes = {"d_model": DIM, "num_layers": 2, "attention_heads": 2, "ffn_dim": 32, "max_position_embeddings": 32}
    return transformers.XGLMForCausalLM(transformers.XGLMConfig(vocab_size=WORDS, **sizes))


def marian() -> Any:
    """A model whose words are </s>, <unk>, 37 others and <pad>, as Marian numbers them."""
    tokens = {
        "pad_token_id": WORDS - 2,
        "decoder_start_token_id": WORDS - 2,
        "eos_token_id": 0,
        "vocab_size": WORDS - 1,
    }
    config = transformers.MarianConfig(**SIZES, **tokens, scale_embedding=True, activation_function="swish")
    return transformers.MarianMTModel(config)


def save(build: Callable[[], Any], folder: Path) -> Any:
    """Save a model away from its initial values, as its users do."""
    torch.manual_seed(1)
    model = build().eval()
    # tables of positions are no parameters to train, though they are called so
    tiny.perturb(nn.ParameterList(p for name, p in model.named_parameters() if "embed_positions" not in name))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.3)
    model.save_pretrained(folder)
    return model


def imported(folder: Path, target: Path) -> nn.Module:
    """The model that fairseq builds of a folder."""
    assert main(["import", "--from", "hf", str(folder), str(target)]) == 0
    checkpoint = read_checkpoint(target)
    model = tiny.build_model(checkpoint["args"], tiny.make_task()).eval()
    model.load_state_dict(checkpoint["model"])
    return model


def logits_of(model: Any, source: Tensor, previous: Tensor, pad: int) -> Tensor:
    """(B, T, words) as transformers has them."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=previous, attention_mask=previous.ne(pad).long()).logits  # type: ignore[no-any-return]
    inputs = {"input_ids": source, "attention_mask": source.ne(pad).long(), "decoder_input_ids": previous}
    return model(**inputs, use_cache=False).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [fsmt, m2m_100, xglm])
@torch.no_grad()
def test_what_transformers_built_computes_the_same(build: Callable[[], Any], tmp_path: Path) -> None:
    theirs = save(build, tmp_path / "hf")
    ours: Any = imported(tmp_path / "hf", tmp_path / "ours.pt")
    inputs = tiny.batch("translation" if theirs.config.is_encoder_decoder else "language_modeling")
    previous = inputs.get("prev_output_tokens", inputs["src_tokens"])
    expected = logits_of(theirs, inputs["src_tokens"], previous, pad=1)
    real = previous.ne(1)
    torch.testing.assert_close(ours(**inputs)[0][real], expected[real], rtol=0, atol=1e-5)


def write_vocabulary(folder: Path) -> list[int]:
    """Write ``vocab.json``; return Marian's number of each of fairseq's words, but for <s>."""
    last = WORDS - 2
    words = ["</s>", "<unk>", *(f"w{i}" for i in range(2, last)), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    return [last, 0, 1, *range(2, last)]


@torch.no_grad()
def test_marian_with_its_own_numbers_of_words(tmp_path: Path) -> None:
    theirs = save(marian, tmp_path / "hf")
    number_in_marian = torch.tensor(write_vocabulary(tmp_path / "hf"))
    ours: Any = imported(tmp_path / "hf", tmp_path / "ours.pt")
    inputs = tiny.batch("translation")
    source, previous, pad = inputs["src_tokens"], inputs["prev_output_tokens"], WORDS - 2
    previous[:, 1:].masked_fill_(previous[:, 1:].eq(2), 5)  # a decoder is not given the end of a sentence
    first = previous.clone()
    first[:, 0] = 1  # in Marian's decoder, <pad> begins a sentence
    expected = logits_of(theirs, number_in_marian[source - 1], number_in_marian[first - 1], pad).log_softmax(-1)
    real = previous.ne(1)
    found = ours(**inputs)[0].log_softmax(-1)
    torch.testing.assert_close(found[..., 1:][real], expected[..., number_in_marian][real], rtol=0, atol=2e-5)
    assert found[..., 0].max() < -50

    generator = SequenceGenerator([ours], tiny.make_dictionary(), beam_size=4, max_len_b=LONGEST)
    for sentence in (row[row.ne(1)] for row in source):
        net_input = {"src_tokens": sentence[None], "src_lengths": torch.tensor([len(sentence)])}
        best = generator.generate([ours], {"net_input": net_input})[0][0]["tokens"]
        words = theirs.generate(
            number_in_marian[sentence - 1][None],
            num_beams=4,
            max_new_tokens=LONGEST + 1,
            early_stopping=True,
            bad_words_ids=[[pad]],
            forced_eos_token_id=0,
        )
        assert words[0, 1:].tolist() == number_in_marian[best - 1].tolist()


def test_marian_of_which_something_is_missing(tmp_path: Path) -> None:
    model = save(marian, tmp_path)
    with pytest.raises(UserError, match=r"there is no vocab\.json"):
        import_hf(tmp_path)
    write_vocabulary(tmp_path)
    model.model.decoder.layers[-1].final_layer_norm.bias.data.zero_()
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"biases of its logits cannot be folded: .* sum to 0.0e"):
        import_hf(tmp_path)
    (tmp_path / "vocab.json").write_text('{"<unk>": 0}')
    with pytest.raises(UserError, match="must be three words, not 0, 38 and 0"):
        import_hf(tmp_path)


def test_marian_of_other_shapes(tmp_path: Path) -> None:
    save(marian, tmp_path)
    write_vocabulary(tmp_path)
    weights, config = read_tensors(tmp_path / "model.safetensors"), tmp_path / "config.json"
    norm = "model.decoder.layers.1.final_layer_norm.weight"
    for name, shape in (("final_logits_bias", (1, WORDS)), (norm, (DIM + 1,)), ("lm_head.weight", (WORDS, DIM))):
        write_tensors(weights | {name: torch.ones(shape)}, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match=f"{name.removeprefix('model.')} has the shape"):
            import_hf(tmp_path)
    write_tensors(weights, tmp_path / "model.safetensors")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2**31}))
    with pytest.raises(UserError, match="must be from 1 to 65,536"):
        import_hf(tmp_path)


def granite() -> Any:
    sizes = {"hidden_size": DIM, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(vocab_size=WORDS, **sizes))


def olmo2() -> Any:
    sizes = {"hidden_size": DIM, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(vocab_size=WORDS, pad_token_id=1, **sizes))


def t5gemma() -> Any:
    sizes = {"hidden_size": DIM, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    half = {"vocab_size": WORDS, "num_key_value_heads": 2, "head_dim": 8, "layer_types": ["full_attention"], **sizes}
    config = transformers.T5GemmaConfig(encoder=dict(half), decoder=dict(half), vocab_size=WORDS)
    return transformers.T5GemmaForConditionalGeneration(config)


@pytest.mark.parametrize("build", [granite, olmo2, t5gemma])
def test_layers_that_fairseq_has_not(build: Callable[[], Any], tmp_path: Path) -> None:
    """The reason is true of the model: it has rotary positions, gates in the FFN, and no biases."""
    model = save(build, tmp_path)
    names = [name for name, _ in model.named_parameters()]
    assert any(".gate_proj." in name for name in names)
    assert not any(name.endswith(".bias") or "position" in name for name in names)
    assert any("rotary" in name for name, _ in model.named_modules())
    with pytest.raises(UserError, match="rotary positions, gated FFNs and no biases"):
        import_hf(tmp_path)
