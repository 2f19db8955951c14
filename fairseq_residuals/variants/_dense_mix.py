"""Mix all outputs so far by weights that each position computes from the newest."""

import torch
from torch import Tensor
from torch.nn.functional import gelu

from fairseq_residuals.ops.depth_sum import weighted_sum
from fairseq_residuals.ops.rms_linear import rms_linear
from fairseq_residuals.utils.precision import at_least_fp32

MIX_EPS = 1e-6


def dense_mixes(outputs: list[Tensor], w1: Tensor, w2: Tensor, bias: Tensor) -> list[Tensor]:
    """Return a mix (T, B, C) for each of several ways; weights are computed in single precision at least.

    Args:
        outputs: n tensors (T, B, C), the newest last.
        w1: (H, C).
        w2: (ways n, H), those of one way side by side.
        bias: (ways, n).
    """
    hidden = gelu(rms_linear(outputs[-1], w1, centred=False, eps=MIX_EPS))
    dynamic = torch.tensordot(at_least_fp32(w2), hidden, 1).unflatten(0, bias.shape)
    weights = (dynamic + at_least_fp32(bias)[:, :, None, None]).to(outputs[0].dtype).unsqueeze(-1)
    return [weighted_sum(way, outputs) for way in weights.unbind()]
