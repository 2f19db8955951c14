"""Parameters that models are given: by another model's encoder, by a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import build, dimensions, perturb, settings
from torch import nn

from fairseq_residuals.wirings.core.errors import UserError


def write(path: Path, model: nn.Module, arch: str) -> None:
    args = settings(arch, *dimensions("speech"))
    state = {"model": model.state_dict(), "cfg": {"model": args, "common": {}}, "extra_state": {"train_iterator": None}}
    history = {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}
    torch.save(state | {"optimizer_history": [history]}, path)


@pytest.mark.parametrize("arch", ("s2t_transformer_pre_ln", "s2t_transformer"))  # the second is fairseq's own
def test_pretrained_speech_encoder_is_loaded_into_the_wired_stack(arch: str, tmp_path: Path) -> None:
    donor, path = perturb(build("speech", "pre_ln")), tmp_path / "encoder.pt"
    write(path, donor, arch)
    model = build("speech", "pre_ln", "--load-pretrained-encoder-from", str(path), seed=9)
    for name, value in donor.encoder.state_dict().items():
        # fairseq fills this placeholder with whatever the memory held
        assert name.endswith("_float_tensor") or torch.equal(model.encoder.state_dict()[name], value), name
    with pytest.raises(UserError, match=r"the encoder of .* was trained with the wiring pre_ln"):
        build("speech", "layernorm_scaling", "--load-pretrained-encoder-from", str(path))


@pytest.mark.parametrize("other", ("--activation-fn=gelu", "--encoder-attention-heads=1", "--no-scale-embedding"))
def test_a_pretrained_encoder_that_would_compute_otherwise_is_refused(tmp_path: Path, other: str) -> None:
    """Names and shapes of its parameters do not tell; what is the decoder's alone may differ."""
    path = tmp_path / "encoder.pt"
    write(path, build("speech", "pre_ln"), "s2t_transformer_pre_ln")
    pretrained = ("--load-pretrained-encoder-from", str(path))
    build("speech", "pre_ln", *pretrained, "--decoder-attention-heads=1", "--share-decoder-input-output-embed")
    setting = other.strip("-").partition("=")[0].replace("-", "_")
    with pytest.raises(UserError, match=rf"the encoder of .* was trained with {setting} "):
        build("speech", "pre_ln", *pretrained, other)


def test_a_checkpoint_of_shared_embeddings_and_adaptive_softmax_can_be_loaded() -> None:
    """fairseq adds a projection to it that such a model does not have."""
    flags = ("--share-all-embeddings", "--adaptive-softmax-cutoff", "10,20")
    model, again = (build("translation", "b2t", *flags) for _ in range(2))
    state = model.state_dict()
    again.load_state_dict(state, strict=True)
    for name, value in model.state_dict().items():
        assert name.endswith("_float_tensor") or torch.equal(again.state_dict()[name], value)
