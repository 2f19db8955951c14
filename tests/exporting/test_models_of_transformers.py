"""``import --from hf`` of models that transformers built: what fairseq computes of them then, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint

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


def save(build: Callable[[], Any], folder: Path) -> Any:
    """Save a model away from its initial values, as its users do."""
    torch.manual_seed(1)
    model = build().eval()
    # tables of positions are no parameters to train, though they are called so
    tiny.perturb(nn.ParameterList(p for name, p in model.named_parameters() if "embed_positions" not in name))
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
