"""--bf16 asks for no TPU, and --fp16 trains on CPU."""

import pytest
import torch
from fairseq import options
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf

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
