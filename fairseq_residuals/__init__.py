"""Places of the norms and the residual connections in a deep Transformer, as papers define them.

Importing this package needs PyTorch alone. It is also a fairseq plugin (``--user-dir``): everything is registered with
fairseq where that is imported already, or as soon as it is, or by :func:`register`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_residuals.lab.look.contributions import Contributions, contributions
    from fairseq_residuals.lab.look.plots import plot
    from fairseq_residuals.wirings.blocks.attention import MultiheadAttention
    from fairseq_residuals.wirings.blocks.cache import DecoderCache
    from fairseq_residuals.wirings.blocks.embedding import TokenEmbedding
    from fairseq_residuals.wirings.blocks.feed_forward import FeedForward
    from fairseq_residuals.wirings.blocks.models import EncoderDecoder, LanguageModel
    from fairseq_residuals.wirings.build import build_stack
    from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Variant
    from fairseq_residuals.wirings.core.errors import UserError
    from fairseq_residuals.wirings.core.norms import register_norm
    from fairseq_residuals.wirings.core.registry import list_variants, register_variant
    from fairseq_residuals.wirings.core.stack import Stack
    from fairseq_residuals.wirings.parameter_groups import parameter_groups
    from fairseq_residuals.wirings.rewire.blocks import Blocks, SubLayerNames
    from fairseq_residuals.wirings.rewire.rewire import load, rewire
    from fairseq_residuals.wirings.speed.matmul_backend import onednn_is_exact, products_by_onednn
    from fairseq_residuals.wirings.wrap import wrap

__version__ = "0.2.0"

__all__ = [
    "Blocks",
    "Connection",
    "Contributions",
    "DecoderCache",
    "EncoderDecoder",
    "FeedForward",
    "LanguageModel",
    "MultiheadAttention",
    "Site",
    "Stack",
    "StackShape",
    "SubLayerNames",
    "TokenEmbedding",
    "UserError",
    "Variant",
    "build_stack",
    "contributions",
    "list_variants",
    "load",
    "onednn_is_exact",
    "parameter_groups",
    "plot",
    "products_by_onednn",
    "register",
    "register_norm",
    "register_variant",
    "rewire",
    "wrap",
]

_NAMES = {
    "lab.look.contributions": ("Contributions", "contributions"),
    "lab.look.plots": ("plot",),
    "wirings.blocks.attention": ("MultiheadAttention",),
    "wirings.blocks.cache": ("DecoderCache",),
    "wirings.blocks.embedding": ("TokenEmbedding",),
    "wirings.blocks.feed_forward": ("FeedForward",),
    "wirings.blocks.models": ("EncoderDecoder", "LanguageModel"),
    "wirings.build": ("build_stack",),
    "wirings.core.base": ("Connection", "Site", "StackShape", "Variant"),
    "wirings.core.errors": ("UserError",),
    "wirings.core.norms": ("register_norm",),
    "wirings.core.registry": ("list_variants", "register_variant"),
    "wirings.core.stack": ("Stack",),
    "wirings.parameter_groups": ("parameter_groups",),
    "wirings.rewire.blocks": ("Blocks", "SubLayerNames"),
    "wirings.rewire.rewire": ("load", "rewire"),
    "wirings.speed.matmul_backend": ("onednn_is_exact", "products_by_onednn"),
    "wirings.wrap": ("wrap",),
}
"""Public names by the module that is imported once one of them is asked for."""


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register() -> None:
    """Register every variant in every task with fairseq, and what else the plugin adds; a second call does nothing.

    Raises:
        ModuleNotFoundError: fairseq is not installed.
    """
    importlib.import_module("modern_fairseq").install()  # a no-op where the installed .pth file has done it
    importlib.import_module("fairseq")
    importlib.import_module(f"{__name__}.plugin.register").register()


def _register_with_fairseq() -> None:
    """Register now if fairseq is there, and whole; otherwise let modern_fairseq do it once it is."""
    spec = getattr(sys.modules.get("fairseq"), "__spec__", None)
    if spec is not None and not getattr(spec, "_initializing", False):
        register()
        return
    with contextlib.suppress(ModuleNotFoundError):  # the library needs PyTorch alone
        importlib.import_module("modern_fairseq").AFTER_FAIRSEQ.append(lambda fairseq: register())


_register_with_fairseq()
