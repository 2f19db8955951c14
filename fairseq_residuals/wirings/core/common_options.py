"""The options that all variants have: what they are, where they contradict, and what they add to the equations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fairseq_residuals.wirings.core.config import LARGEST, MOST_LAYERS, option, show_value
from fairseq_residuals.wirings.core.gpas import GateScope
from fairseq_residuals.wirings.core.norms import NormType
from fairseq_residuals.wirings.core.value_residual import Mixing, value_equations

if TYPE_CHECKING:
    from fairseq_residuals.wirings.core.base import Variant

Init = Literal["fairseq", "fairseq_0.8", "fairseq_0.9", "lipschitz", "ds_init", "ds_init_code", "xavier", "small"]

STARTS_SMALLER = "option depth_mup, for its weights start smaller in deeper stacks already"
"""Why a wiring whose initialisation counts layers refuses an option."""


@dataclass(frozen=True)
class CommonOptions:
    """The options: typed, documented; the defaults are the design by itself, without what else its authors' models had.

    That is initialisation, and norms of another kind or of queries and keys. Those here are common to all variants; a
    variant with options of its own derives its ``Config`` from this one.
    """

    init: Init = option(
        "fairseq",
        "how weights are drawn before the variant scales them; see fairseq_residuals/wirings/core/initialization.py",
        for_training=True,
    )
    init_scale: float | Literal["depth"] = option(
        1.0,
        "factor on every weight matrix of the layers at initialisation; depth: L^-0.5",
        minimum=1e-6,
        maximum=LARGEST,
        for_training=True,
    )
    norm_type: NormType = option(
        "layer", "kind of every norm (short: norm, unless the variant has an option of that name)"
    )
    norm_eps: float = option(
        0.0,
        "eps of every norm, those of routers and keys too; 0: 1e-6 of RMSNorm and 1e-5 of the others, unless the design"
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
    base_depth: int = option(2, "layers at which depth_mup changes nothing", minimum=1, maximum=MOST_LAYERS)


def contradiction(variant: type[Variant], config: Any) -> str:
    """Return which option cannot be with the others or with ``variant``, and why; empty where all can."""
    if variant.draws_weights and config.init != "fairseq":
        return f"option init={config.init}, for it draws its weights by its own rule"
    if config.gpas != "none" and variant.summation == "none":
        return "option gpas, for its stream is not one sum to which each sub-layer adds once"
    if not config.depth_mup:
        return ""
    if variant.summation != "pre":
        return "option depth_mup, for the theory is that of branches which are added to a stream and nothing else"
    if variant.draws_weights or config.init in ("ds_init", "ds_init_code") or config.init_scale == "depth":
        return STARTS_SMALLER
    return ""


_SUM = re.compile(r"(?P<stream>\bx = (?:(?!LN\()[^;:])*?\bx \+ )(?P<branch>[^;]*?)(?P<edits> with .*)?$")
"""A statement at the end of a line: x = x + branch."""
_BRANCH = re.compile(r"\bF'?\(|\bdrop\(|\by\b")
_RESIDUAL = re.compile(r"\bx(?= \+ F\()")


def equations_with(variant: type[Variant], config: Any) -> tuple[str, ...]:
    """Return the equations of ``variant``, line by line, with what the options make of them."""
    text = "\n".join(variant.equations)
    for name, value, old, new in (("final_norm", False, "output LN(x)", ""), *variant.rewrites):
        chosen = getattr(config, name, None)
        if value(chosen) if callable(value) else chosen == value:
            text = text.replace(old, new)
    lines = [_with_number(line, config) for line in text.split("\n") if line]
    if config.gpas != "none":
        gate = "gate" if config.gpas == "layer" else "gate[(k - 1) mod floor(K / L)]"
        lines = [_gated(line, f"x - silu({gate}) stop_gradient(x)") for line in lines]
    if config.depth_mup:
        lines = [_divided(line) for line in lines]
        lines.append(f"where m_L = (L / {config.base_depth})^(-{float(config.depth_mup):g})")
    if config.norm_type != "layer" and "LN" in text:
        lines.append(f"LN is norm_type={config.norm_type}")
    if config.norm_eps:
        lines.insert(0, f"where norm_eps = {show_value(config.norm_eps)}")
    return (*lines, *value_equations(config.value_residual))


def _adds_branch(line: str) -> re.Match[str] | None:
    found = _SUM.search(line)
    return found if found and _BRANCH.search(found["branch"]) else None


def _gated(line: str, scaled: str) -> str:
    """Scale the stream after a sum, or in a sum within a norm the residual."""
    if _adds_branch(line):
        return f"{line}; x = {scaled}"
    return _RESIDUAL.sub(f"({scaled})", line)


def _divided(line: str) -> str:
    """Multiply the branch that a line adds to the stream by m_L, which is less than 1 in deep stacks."""
    first, *others = line.split("; x = x - silu(")
    found = _adds_branch(first)
    if found is None:
        return line
    divided = f"{first[: found.start()]}{found['stream']}m_L ({found['branch']}){found['edits'] or ''}"
    return "; x = x - silu(".join((divided, *others))


def _with_number(line: str, config: Any) -> str:
    """``where alpha = ...`` with the number that the option ``alpha`` has instead, if it has one."""
    definition, equals, _ = line.partition(" = ")
    value = getattr(config, definition.removeprefix("where "), None) if definition.startswith("where ") else None
    return f"{definition}{equals}{show_value(value)}" if isinstance(value, (int, float)) else line
