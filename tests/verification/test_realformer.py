"""RealFormer against Google's own code: a BERT encoder of two layers, run under TensorFlow."""

from __future__ import annotations

import re
from argparse import Namespace
from functools import partial

import pytest
import torch
from golden_files import golden_path, tensors_of
from tiny import make_task, settings
from torch import Tensor, nn

from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.wiring import Wiring
from tests.golden_check.fairseq_recipes import EncoderAlone
from tests.golden_check.recompute import recorded

NAMES = {
    "attention/self/query": "self_attn.q_proj",
    "attention/self/key": "self_attn.k_proj",
    "attention/self/value": "self_attn.v_proj",
    "attention/output/dense": "self_attn.out_proj",
    "attention/output/LayerNorm": "self_attn_layer_norm",
    "intermediate/dense": "fc1",
    "output/dense": "fc2",
    "output/LayerNorm": "final_layer_norm",
}
PARTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}


def ours(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """By our names; TensorFlow's matrices are (in, out)."""
    found = {}
    for name, value in values.items():
        layer, place, part = re.fullmatch(r"layer_(\d)/(.*)/(\w+)", name).groups()  # type: ignore[union-attr]
        found[f"encoder.layers.{layer}.{NAMES[place]}.{PARTS[part]}"] = value.T if part == "kernel" else value
    return found


def encoder(mean: bool) -> EncoderAlone:
    """Of BERT's norms and activation, which are no options of the stack."""
    flags = ["--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32"]
    args = settings("transformer_realformer", *flags, "--encoder-attention-heads", "2", "--dropout", "0")
    task = make_task()
    model = EncoderAlone(
        args,
        Namespace(source_dictionary=task.source_dictionary),
        Wiring.parse("realformer", f"mean={str(mean).lower()}"),
    )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-12
    for i in range(2):
        model.encoder.layers[i].activation_fn = partial(nn.functional.gelu, approximate="tanh")
    return model.eval()


@pytest.mark.parametrize("mean", [False, True], ids=("sum", "mean"))
def test_scores_activations_and_gradients(mean: bool) -> None:
    path = golden_path(f"realformer_google_{'mean' if mean else 'sum'}")
    arrays = tensors_of(path)
    model = encoder(mean)
    weights = ours(tensors_of(path, "param/"))
    named = {fairseq_name(name): p for name, p in model.named_parameters() if ".layers." in name}
    assert named.keys() == weights.keys()
    model.load_state_dict(weights, strict=False)

    x = arrays["in/src_vectors"].requires_grad_()
    with recorded(model) as seen:
        out = model.encoder.layers(x.transpose(0, 1), arrays["in/src_mask"].eq(0)).transpose(0, 1)
    loss = (out * arrays["in/loss_weight"]).sum()
    loss.backward()

    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for i in (0, 1):
        close(seen[f"enc_layer{i}"], arrays[f"out/enc_layer{i}"])
        # what is passed on is the sum, whether or not attention divides it
        close(seen[f"enc_layer{i}_self_scores"], arrays[f"out/enc_layer{i}_self_scores"])
    close(out, arrays["out/enc_layer1"])
    close(loss, arrays["loss/train"])
    close(x.grad, arrays["grad_in/src_vectors"])
    gradients = ours(tensors_of(path, "grad/"))
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(named[name].grad, gradient, rtol=0, atol=3e-5, msg=name)
