"""--bf16 asks for no TPU, --fp16 trains on CPU, and what is done to all parameters at once has fairseq's numbers."""

import types

import pytest
import torch
from fairseq import options
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf
from tiny_trainer import make_trainer, sample, update

from modern_fairseq.fixes import at_once

HALF = ("--optimizer", "adam", "--lr", "0.01", "--lr-scheduler", "fixed", "--clip-norm", "0.5")
REPLACED = {"_sync_fp16_grads_to_fp32", "_sync_fp32_params_to_fp16"}
PRECISIONS = (
    ("--fp16", "--fp16-init-scale", "4"),
    ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4"),
    ("--bf16",),
)
ARGUMENTS = ["data", "--arch", "transformer", "--optimizer", "sgd", "--max-tokens", "10"]


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_is_no_tpu(flag):
    asked = [*ARGUMENTS, flag]
    args = options.parse_args_and_arch(options.get_training_parser(), asked)
    kept, unknown = options.parse_args_and_arch(options.get_training_parser(), [*asked, "--my-flag"], parse_known=True)
    assert (args.bf16, args.tpu, kept.bf16, kept.tpu, unknown) == (True, False, True, False, ["--my-flag"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("flat", [True, False])
def test_an_update_in_half_precision_on_cpu_moves_the_parameters_by_the_gradient(dtype, flat):
    weights = [torch.tensor([0.5, -1.0, 2.0]), torch.tensor([[0.25, 4.0]])]
    parameters = [torch.nn.Parameter(w.to(dtype)) for w in weights]
    common = {
        "fp16": dtype is torch.float16,
        "bf16": dtype is torch.bfloat16,
        "fp16_no_flatten_grads": not flat,
        "fp16_init_scale": 4,
        "fp16_scale_window": 1,
        "fp16_scale_tolerance": 0.0,
        "threshold_loss_scale": None,
        "min_loss_scale": 1e-4,
    }
    cfg = OmegaConf.create(
        {
            "common": common,
            "optimizer": {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]},
            "optimization": {"update_freq": [1]},
            "distributed_training": {"pipeline_model_parallel": False, "distributed_no_spawn": False},
        }
    )
    optimizer = FP16Optimizer.build_optimizer(cfg, parameters)
    optimizer.zero_grad()
    loss = sum((p.float() ** 2).sum() for p in parameters)  # d/dp = 2 p
    optimizer.backward(loss)
    norm = optimizer.clip_grad_norm(0)
    optimizer.step()
    expected = torch.cat([2 * w.flatten() for w in weights]).norm()
    torch.testing.assert_close(norm, expected)
    for parameter, weight in zip(parameters, weights, strict=True):
        torch.testing.assert_close(parameter.detach().float(), weight - 0.5 * 2 * weight)


@pytest.mark.parametrize("precision", PRECISIONS, ids=" ".join)
@pytest.mark.parametrize("flags", ((), ("--no-cross-attention", "--encoder-layerdrop", "0.5")), ids=" ".join)
def test_updates_at_once(precision: tuple[str, ...], flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several batches each, as one after the other; with layer dropout, some parameters have no gradient."""
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
