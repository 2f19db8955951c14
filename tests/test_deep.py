"""100 encoder and 100 decoder layers of every variant built for depth: one step forward and backward is finite."""

from __future__ import annotations

import pytest
from tiny import batch, build, logits

from fairseq_residuals.wirings.core.registry import VARIANTS

# what keeps each in the range of half precision, where it needs something; b2t_no_ln has the beta of 512 channels,
# since by its rule layers of 16 channels multiply their input by 1.07 or more; each sub-layer of two lanes multiplies
# the stream by sqrt(1.1), which 300 sub-layers take beyond 65504; one of deep_delta moves it by two, of four in length
ARGS = {
    "resi_dual": "scale=0.05",
    "b2t": "init_scale=depth",
    "b2t_no_ln": f"init_scale=depth,beta={512**-0.2}",
    "deep_delta": "start=0.01",
    "realformer": "mean=true",
    "two_lane": "start=pre_ln",
}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_100_layers(variant: str) -> None:
    """In half precision, whose range is the smallest."""
    model = build("translation", variant, "--residual-args", ARGS.get(variant, ""), layers=100).half().train()
    out = logits(model, "translation", batch("translation"))
    out.float().log_softmax(-1).square().mean().backward()
    assert out.isfinite().all()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not [name for name, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]
