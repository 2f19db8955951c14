"""Dynamic linear combination of layers: every layer is fed a learned weighted sum of all layers below it.

::

    y_0 ──┐
    y_1 ──┼─► Σ_k W[l,k] LN_k(y_k) ─► layer l+1 ─► y_{l+1}        (dlcl_pre, around Pre-LN layers)
    y_l ──┘

    y_0..y_l ─► LN_l(Σ_k W[l,k] y_k) ─► layer l+1 ─► y_{l+1}       (dlcl_post, around Post-LN layers)

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation", Eq. 8 (pre) and 9 (post). y_0 is the
embedding, y_l the output of layer l; encoder and decoder have histories of their own; a row above the last layer
makes the output, in ``dlcl_pre`` under Pre-LN's last norm. W starts as the average of each row. Checked against
wangqiangneu/dlcl@c632ee2 (``modules/dlcl.py``, ``models/dlcl_transformer.py``).

Paper and code: by Eq. 8 and 9 y_0 is normalised too; in the code it is not (its switch for that is dead), and the
first layer is fed W[0,0] y_0. ``window`` limits which entries start above 0; without ``softmax`` the others are
trained as well, as in the code. The dense residual network of the paper's Figure 2 is
``weights=fixed_one,norm=false``. ``init`` is that of the authors' fairseq by default.
"""

from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import StackShape, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants._layer_history import LayerHistory
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

SOFTMAX = (
    ("softmax", True, "weight[l,j]", "softmax_j(weight[l,j])"),
    ("window", bool, "0..l} softmax", "max(0, l + 1 - window)..l} softmax"),
)
"""What two options make of the equations; without a softmax, a window only limits where weights start above 0."""


class DLCL(LayerHistory):
    """Declare the paper of both wirings. The history, "y0", "y1", ... (T, B, C), is in ``dlcl_pre`` after its norms."""

    paper = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    year = 2019
    code = "wangqiangneu/dlcl@c632ee2"
    verified = "authors' code: activations, gradients, generation, initialisation"


@register_variant("dlcl_pre")
class DLCLPre(DLCL):
    title = "DLCL, Pre-LN"
    equations = (
        "start: y[0] = x",
        "start: x = sum_{j=0..l} weight[l,j] y[j]",
        "x = x + F(LN(x))",
        "after each layer: y[l] = LN[l](x)",
        "after each layer: x = sum_{j=0..l} weight[l,j] y[j]",
        "output LN(x)",
    )
    rewrites = (("norm", False, "LN[l](x)", "x"), *SOFTMAX)
    connection = PreLNConnection
    summation = "mixed"

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm()

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = s | {f"y{i + 1}": self.normalize(i + 1, s["x"])}
        return s | {"x": self.combine(i + 1, s)}

    def close(self, s: Stream) -> Tensor:
        return self.norm(s["x"])


@register_variant("dlcl_post")
class DLCLPost(DLCL):
    title = "DLCL, Post-LN"
    equations = (
        "start: y[0] = x",
        "start: x = sum_{j=0..l} weight[l,j] y[j]",
        "x = LN(x + F(x))",
        "after each layer: y[l] = x",
        "after each layer: x = LN[l](sum_{j=0..l} weight[l,j] y[j])",
    )
    rewrites = (("norm", False, "LN[l](sum_{j=0..l} weight[l,j] y[j])", "sum_{j=0..l} weight[l,j] y[j]"), *SOFTMAX)
    connection = PostLNConnection
    summation = "mixed"

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = s | {f"y{i + 1}": s["x"]}
        return s | {"x": self.normalize(i + 1, self.combine(i + 1, s))}
