"""Half precision where there is no CUDA device."""

import importlib.util
import types
from typing import Any

import torch

from modern_fairseq.proxies import ModuleProxy, override, replaces


def bf16_without_tpu(module: types.ModuleType) -> None:
    """Let ``--bf16`` be a precision and no request for a TPU (options.py:201 sets ``args.tpu = True``).

    Without torch_xla every run, on CPU and GPU alike, ended in "'NoneType' object has no attribute
    'xla_device'". Can go when fairseq > 0.12.2 no longer derives ``tpu`` from ``bf16``.
    """

    @replaces(module, "parse_args_and_arch")
    def parse_args_and_arch(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        namespace = result[0] if isinstance(result, tuple) else result
        if importlib.util.find_spec("torch_xla") is None:
            namespace.tpu = False
        return result


def fp16_on_cpu(module: types.ModuleType) -> None:
    """Key the flat fp32 copy by the device where the parameters are (optim/fp16_optimizer.py:38).

    fairseq asks for CUDA's current device, which raises without CUDA; and any index but the parameters' own
    ``device.index`` (None on CPU) makes :117 and :152 find no parameters, so that nothing is trained,
    silently. Can go when fairseq > 0.12.2 takes the device from the parameters.
    """
    cuda = ModuleProxy(torch.cuda)
    override(module, "torch", cuda=cuda)
    mixin = module._FP16OptimizerMixin
    original = mixin.build_fp32_params.__func__

    def build_fp32_params(cls: type, args: Any, params: Any, flatten: bool = True) -> Any:
        params = list(params)
        cuda.current_device = lambda: params[0].device.index  # type: ignore[attr-defined]
        return original(cls, args, params, flatten)

    mixin.build_fp32_params = classmethod(build_fp32_params)


def overflow_on_cpu(module: types.ModuleType) -> None:
    """Report an overflow of ``--fp16`` without a CUDA device (trainer.py:992 makes its zero norm on one, and dies).

    Can go when fairseq > 0.12.2 makes it where the parameters are.
    """

    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = torch.tensor(*args, **kwargs)
        if not torch.cuda.is_available():
            made.cuda = lambda: made  # type: ignore[assignment, method-assign, misc]
        return made

    override(module, "torch", tensor=tensor)
