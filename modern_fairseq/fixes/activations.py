"""An activation that fairseq lacks, and models of other programs have."""

import types
from collections.abc import Callable
from typing import Any

from torch.nn.functional import silu


def with_silu(module: types.ModuleType) -> None:
    """Offer ``--activation-fn silu`` (utils.py:542 and :575).

    fairseq's "swish" is a class, which its Conformer instantiates; the FFN of a Transformer needs a function. Can go
    when fairseq has one.
    """
    function_of: Callable[[str], Any] = module.get_activation_fn
    names: Callable[[], list[str]] = module.get_available_activation_fns

    def get_activation_fn(activation: str) -> Any:
        return silu if activation == "silu" else function_of(activation)

    def get_available_activation_fns() -> list[str]:
        return [*names(), "silu"]

    module.get_activation_fn = get_activation_fn  # type: ignore[attr-defined]
    module.get_available_activation_fns = get_available_activation_fns  # type: ignore[attr-defined]
