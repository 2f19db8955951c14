"""Models that fairseq does not know."""

import functools
import types
from typing import Any

from fairseq_residuals_errors import UserError, did_you_mean


def name_unknown_architectures(module: types.ModuleType) -> None:
    """Say that an architecture is unknown (models/__init__.py:100-104 trips over the braces in its own message).

    The commonest cause is a checkpoint of a plugin's model without ``--user-dir``.
    Can go when fairseq > 0.12.2 names the architecture and the way out.
    """
    original = module.build_model

    @functools.wraps(original)
    def build_model(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        known = {*module.ARCH_MODEL_REGISTRY, *module.MODEL_DATACLASS_REGISTRY}
        if name and name not in known:
            close = did_you_mean(name, known)
            raise UserError(
                f"unknown architecture {name!r}{close}; if a plugin defines it, name the plugin's folder by --user-dir,"
                " or common.user_dir in YAML, or in Python import it first, as by `import fairseq_residuals`"
            )
        return original(cfg, *args, **kwargs)

    module.build_model = build_model  # type: ignore[attr-defined]
