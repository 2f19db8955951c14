"""Layers: without the fused inference path of encoder layers, with buffers that are filled, and with SiLU."""

import types
from typing import Any

import torch
from torch.nn.functional import silu

from modern_fairseq.proxies import override, replaces

DEAD_PARAMETERS = tuple(
    f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
)
"""The second copy of a layer's weights that stock fairseq 0.12.2 keeps in every encoder layer and its
checkpoints."""


def no_fused_path(module: types.ModuleType) -> None:
    """Tell the encoder and its layers that torch is older than the fused encoder layer (1.12).

    modules/transformer_layer.py:115-135,308-340 and models/transformer/transformer_encoder.py:222-285 choose
    by ``torch.__version__``, once weights have been loaded, a kernel that (a) ignores an overridden
    ``residual_connection``, so that generation differs from training without a word, and (b) since torch 2
    refuses padded batches with "Mask Type should be defined".  The same lines fail to parse the version of a
    torch nightly ("2.14.0a0").  Can go when fairseq > 0.12.2 drops the path.
    """
    override(module, "torch", __version__="1.11.0")


def no_dead_parameters(module: types.ModuleType) -> None:
    """Remove the parameters that only the fused path read (modules/transformer_layer.py:75-93, :141-184).

    They double the parameter count of an encoder layer, its optimiser state and its all-reduce, and break
    the default DistributedDataParallel ("Expected to have finished reduction") as they never get a gradient.
    A checkpoint that has them still loads: they are left out.  Can go when fairseq > 0.12.2 drops them.
    """
    cls = module.TransformerEncoderLayerBase

    @replaces(cls, "__init__")
    def __init__(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for name in DEAD_PARAMETERS:
            del self._parameters[name]

    def _load_from_state_dict(self: Any, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in DEAD_PARAMETERS:
            state_dict.pop(prefix + name, None)
        torch.nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    cls._load_from_state_dict = _load_from_state_dict


def fill_buffers(module: types.ModuleType) -> None:
    """Let ``_float_tensor`` be 0, a buffer that tells a type.

    It is never filled (modules/sinusoidal_positional_embedding.py:29, adaptive_input.py:65, adaptive_softmax.py:48; on
    loading, models/transformer/transformer_encoder.py:410, transformer_decoder.py:408), so that memory of the process
    went into checkpoints, which differed from run to run. Can go when fairseq > 0.12.2 fills it.
    """
    override(module, "torch", FloatTensor=torch.zeros)


def with_silu(module: types.ModuleType) -> None:
    """Offer ``--activation-fn silu`` (utils.py:542 and :575).

    fairseq's "swish" is a class, which its Conformer instantiates; the FFN of a Transformer needs a function. Can go
    when fairseq has one.
    """

    @replaces(module, "get_activation_fn")
    def get_activation_fn(original: Any, activation: str) -> Any:
        return silu if activation == "silu" else original(activation)

    @replaces(module, "get_available_activation_fns")
    def get_available_activation_fns(original: Any) -> list[str]:
        return [*original(), "silu"]
