"""The options that all wirings have: what they are, and what they add to the equations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fairseq_residuals.wirings.core.config import LARGEST, MOST_LAYERS, option, show_value
from fairseq_residuals.wirings.core.gpas import GateScope
from fairseq_residuals.wirings.core.norms import norm_types
from fairseq_residuals.wirings.core.value_residual import Mixing

Init = Literal["fairseq", "fairseq_0.8", "fairseq_0.9", "lipschitz", "ds_init", "ds_init_code", "xavier", "small"]

STARTS_BY_DEPTH = "option depth_mup, for it draws or scales its weights by depth already"
"""Why a wiring whose initialisation counts layers refuses an option."""
INIT_HELP = "as for every wiring; see wirings/core/initialization.py"
"""The help of ``init`` in wirings whose authors' models were drawn by another rule than fairseq's newest."""


@dataclass(frozen=True)
class CommonOptions:
    """The options: typed, documented; the defaults are the wiring by itself, without what else its authors' models had.

    That is initialisation, and norms of another kind or of queries and keys. Those here are common to all; a
    wiring with options of its own derives its ``Config`` from this one.
    """

    former: ClassVar[tuple[str, ...]] = ()
    """Options that the wiring had once, each with the value by which it is as it is now: old checkpoints name them."""
    init: Init = option(
        "fairseq",
        "how weights are drawn before the wiring scales them; see fairseq_residuals/wirings/core/initialization.py",
        for_training=True,
    )
    init_scale: float | Literal["depth"] = option(
        1.0,
        "factor on every weight matrix of the layers at initialisation; depth: L^-0.5",
        minimum=1e-6,
        maximum=LARGEST,
        for_training=True,
    )
    norm_type: str = option(
        "layer", "kind of every norm (short: norm, unless the wiring has an option of that name)", choices=norm_types
    )
    norm_eps: float = option(
        0.0,
        "eps of every norm, those of routers and keys too; 0: 1e-6 of RMSNorm and 1e-5 of the others, unless the wiring"
        " has another (DyT and Derf have none)",
        minimum=0.0,
        maximum=1.0,
    )
    fixnorm: bool = option(
        False,
        "use each word's vector divided by its length, as input and as row of the output matrix; see"
        " fairseq_residuals/plugin/models/fixnorm.py",
    )
    value_residual: Mixing = option(
        "none",
        "mix the first layer's values into those of the layers above, in self-attention (our choice: each stack by"
        " itself, nothing in cross-attention); see fairseq_residuals/wirings/core/value_residual.py",
    )
    gpas: GateScope = option(
        "none", "scale the stream by a learned gate, and not its gradient; see fairseq_residuals/wirings/core/gpas.py"
    )
    depth_mup: bool | float = option(
        False,
        "divide branches, and scale Adam's rates and eps, so that rates transfer over depth: true (CompleteP), or the"
        " exponent (0.5: depth-muP); see fairseq_residuals/wirings/core/depth_mup.py",
        minimum=0.01,
        maximum=1.0,
    )
    base_depth: int = option(
        2, "layers at which depth_mup changes nothing", minimum=1, maximum=MOST_LAYERS, only_with="depth_mup"
    )

    @property
    def gated(self) -> str:
        """The stream as :mod:`.gpas` scales it, in the equations."""
        return "x - silu(gate) stop_gradient(x)"

    @property
    def residual(self) -> str:
        """The stream in a sum that a norm is over, in the equations."""
        return "x" if self.gpas == "none" else f"({self.gated})"

    def adds(self, branch: str, *, to: str = "x", edits: str = "", gated: bool = True) -> str:
        """Return the equation of a branch that is added to the stream.

        Args:
            branch: the sub-layer's output, with what the wiring makes of it.
            to: the stream, with what the wiring makes of it.
            edits: ``with`` and what changes inside of the sub-layer.
            gated: whether :mod:`.gpas` scales this sum.
        """
        added = f"x = {to} + {f'm_L ({branch})' if self.depth_mup else branch}{edits}"
        return f"{added}; x = {self.gated}" if gated and self.gpas != "none" else added

    def where(self, name: str, rule: str) -> str:
        """Return the definition of a constant by its rule, or by the number that the option of its name has."""
        value = getattr(self, name)
        return f"where {name} = {show_value(value) if isinstance(value, (int, float)) else rule}"
