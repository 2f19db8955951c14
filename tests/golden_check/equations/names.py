"""What the names of equations stand for that the text does not define: parameters, norms and options of a stack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Variant
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.stack import Stack
from tests.golden_check.equations.syntax import EquationError

LN = re.compile(r"LN(?:_(\w+))?")


def is_norm_name(name: str) -> bool:
    return LN.fullmatch(name) is not None


class Owners:
    """Hold the modules whose parameters may be meant at one place.

    The nearest is first: the connection, the others of its layer, what mixes the layer's values, the variant, and the
    sub-layer's attention.
    """

    def __init__(self, stack: Stack, layer: int | None = None, kind: str = "") -> None:
        """Collect the modules.

        Args:
            stack: the stack.
            layer: from 0; None between layers, where only the variant is meant.
            kind: of the sub-layer: self, cross or ffn.
        """
        self.variant: Variant = stack.wiring
        modules: list[nn.Module | None] = []
        attention: nn.Module | None = None
        if layer is not None:
            own = stack[layer]
            near: dict[str, Connection] = {k: getattr(own, CONNECTIONS[k]) for k in own.kinds}
            modules = [near.pop(kind), *near.values(), own.value_residual, own.gpas]
            attention = {"self": own.self_attn, "cross": own.encoder_attn}.get(kind)
        self.modules = [*filter(None, modules), self.variant, *filter(None, [attention])]

    def norm(self, name: str, index: tuple[int, ...]) -> nn.Module:
        """Return the norm LN ("norm"), LN_post ("post_norm") or LN[i] ("norms", its i-th), of the nearest that has it.

        Raises:
            EquationError: none has it.
        """
        match = LN.fullmatch(name)
        assert match is not None
        attribute = f"{match[1]}_norm" if match[1] else "norm"
        if index:
            attribute = f"{attribute}s.{index[0]}"
        attribute = self.variant.symbols.get(name, attribute)
        for owner in self.modules:
            for path, module in owner.named_modules():
                if f".{path}".endswith(f".{attribute}"):
                    return module
        raise EquationError(f"there is no norm {attribute!r} for {name}{list(index) or ''} at {self.modules[0]}")

    def parameter(self, name: str) -> Tensor | nn.Module | Mapping[str, Tensor] | None:
        """Return the parameter, linear map or container whose full name ends in ``name``; None if there is none.

        The variant's ``symbols`` may say that it is called otherwise.

        Raises:
            EquationError: the nearest module that has such a name has it more than once.
        """
        attribute = self.variant.symbols.get(name, name)
        for owner in self.modules:
            candidates = {id(x): x for path, x in _parts(owner) if f".{path}".endswith(f".{attribute}")}
            if len(candidates) > 1:
                raise EquationError(f"{name} may be any of {len(candidates)} parameters of {owner}")
            if candidates:
                return next(iter(candidates.values()))
        return None

    def option(self, name: str) -> Any:
        """Return the value of an option if it is a number, else None."""
        value = getattr(self.variant.config, name, None)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _parts(owner: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield parameters but those of norms, linear maps and containers, each with its full name."""
    for path, module in owner.named_modules():
        if not is_norm(module):
            for name, parameter in module.named_parameters(recurse=False):
                yield f"{path}.{name}", parameter
        if isinstance(module, (nn.Linear, nn.ParameterDict, nn.ParameterList)):
            yield path, module
