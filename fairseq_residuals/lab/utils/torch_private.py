"""Every function of PyTorch that it does not declare public and the lab alone calls; versions from 2.9 on have them."""

import torch
from torch.utils.flop_counter import sdpa_flop_count

FLOPS_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, q, k, v, *__, **___: (
        2 * sdpa_flop_count(q, k, v)
    ),
}
"""FLOPs of PyTorch's attention, which its counter does not know on a CPU; as many as of products that are written out.

An argument of ``FlopCounterMode``.
"""
