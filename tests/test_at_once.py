"""What is done to all parameters at once has the numbers of what fairseq does to one after the other."""

import types

import pytest
import torch
from fairseq.optim import FP16Optimizer
from tiny_trainer import make_trainer, sample, update

from modern_fairseq.fixes import at_once

HALF = ("--optimizer", "adam", "--lr", "0.01", "--lr-scheduler", "fixed", "--clip-norm", "0.5")
REPLACED = {"_sync_fp16_grads_to_fp32", "_sync_fp32_params_to_fp16"}
PRECISIONS = (
    ("--fp16", "--fp16-init-scale", "4"),
    ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4"),
    ("--bf16",),
)


@pytest.mark.parametrize("precision", PRECISIONS, ids=" ".join)
@pytest.mark.parametrize("flags", ((), ("--no-cross-attention", "--encoder-layerdrop", "0.5")), ids=" ".join)
def test_updates(precision: tuple[str, ...], flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several batches each; with layer dropout, some parameters have no gradient."""
    ends = []
    for own in (False, True):
        for name in REPLACED if own else ():
            monkeypatch.setattr(FP16Optimizer, name, getattr(FP16Optimizer, name).__wrapped__)
        trainer = make_trainer(*HALF, "--criterion", "label_smoothed_cross_entropy", *precision, *flags)
        for seed in range(4):
            update(trainer, sample(seed), sample(seed + 10, 5))
        ends.append([p.detach().clone() for p in trainer.model.parameters()])
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_the_norm_of_all_gradients() -> None:
    """As fairseq calls it for those on a GPU."""
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(n, generator=draw) for n in (3, 50, 7)]
    module = types.SimpleNamespace(multi_tensor_l2norm_available=False)
    at_once.norms(module)
    assert module.multi_tensor_l2norm_available
    (norm,) = module.multi_tensor_l2norm(2048, torch.zeros(1, 1), [tensors], False)
    torch.testing.assert_close(norm, torch.cat(tensors).norm())
