"""How close is close enough, for models of fairseq and for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerances:
    """The largest errors that are allowed, and what they are measured by."""

    limits: Mapping[str, float]
    """By kind of number: activations, logits, loss, gradients, scores, initial."""
    relative: frozenset[str]
    """The kinds whose errors are a part of the largest magnitude; the others are absolute."""
    explanation: str
    reason: str = ""
    """For other limits than the other files have."""
    single: float = 0.0
    """The largest error of a gradient that is one number, a sum which may cancel; 0: as of other gradients."""


_OF_FAIRSEQ = {"activations": 1e-6, "logits": 1e-5, "loss": 1e-6, "gradients": 3e-5, "scores": 1e-5}
FAIRSEQ = Tolerances(
    _OF_FAIRSEQ,
    frozenset({"activations", "loss"}),
    """\
Activations and loss: as a part of the largest magnitude (tolerance {activations:g}, {loss:g}). Logits and
gradients: absolute (tolerance {logits:g}, {gradients:g}); for the biases of keys, whose gradient is zero but
for rounding, its magnitude. Generation agrees if every hypothesis has the same tokens and, within {scores:g},
the same scores.""".format(**_OF_FAIRSEQ),
)
"""What the authors' own code keeps from one version of PyTorch to another."""

_OF_HOSTS = dict.fromkeys(("activations", "logits", "loss"), 2e-5) | {"gradients": 5e-4, "initial": 0.0}
HOSTS = Tolerances(
    _OF_HOSTS,
    frozenset({"gradients"}),
    """\
Files of the newer designs: activations, logits and loss absolute (tolerance {activations:g}), gradients as a
part of the largest magnitude in the tensor ({gradients:g}), those of the biases of keys, which may be zero but
for rounding, as a part of that in the gradient of their matrix; what parameters of the wiring are before they
are trained, exactly.""".format(**_OF_HOSTS),
)
"""Of models that are not fairseq's."""
_SHIPPED = dict.fromkeys(("activations", "logits", "loss"), 1e-5) | {"gradients": 1e-4, "initial": 0.0}
SHIPPED = Tolerances(
    _SHIPPED,
    frozenset({"activations", "logits", "loss", "gradients"}),
    """\
Files of wirings that ship: activations, logits and loss as a part of the largest magnitude
(tolerance {activations:g}), gradients as a part of the largest magnitude in the tensor ({gradients:g}; where
it is one number, a sum which may cancel, of the largest such gradient in any layer: 0.001); what parameters of
the wiring are before they are trained, exactly.""".format(**_SHIPPED),
    single=1e-3,
)
"""Of models that were released, and of what their wirings are made of."""
