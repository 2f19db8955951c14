"""An activation that fairseq lacks, and models of other programs have."""

import types
from typing import Any

from torch.nn.functional import silu

from modern_fairseq.proxies import replaces


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
