"""Settings that a user gives in place of a checkpoint's, as ``--model-overrides`` does."""

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override

Check = Callable[[dict[str, Any], dict[str, Any], str], None]
"""Gets a checkpoint's settings (``cfg`` and ``args``) as the file has them and as they are to be used, and the file's
name; may raise UserError."""
checks: list[Check] = []
"""Called whenever a checkpoint is loaded with other settings than its own, before a model is built from them."""


def check_overrides(module: types.ModuleType) -> None:
    """Call :data:`checks`, for which fairseq has no place: checkpoint_utils.py:317-342 sets whatever it is given.

    Can stay as long as it has none.
    """
    original = module.load_checkpoint_to_cpu

    @functools.wraps(original)
    def load_checkpoint_to_cpu(
        path: str, arg_overrides: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        if path is None:
            raise UserError(
                "the model is to begin with another checkpoint, which its own does not choose: name it by the setting"
                " (such as w2v_path) in --model-overrides"
            )
        if not arg_overrides:
            return original(path, arg_overrides, *args, **kwargs)  # type: ignore[no-any-return]
        load = module.torch.load
        settings: dict[str, Any] = {}

        def load_and_remember(*args: Any, **kwargs: Any) -> dict[str, Any]:
            state = load(*args, **kwargs)
            settings.update(copy.deepcopy({key: state.get(key) for key in ("cfg", "args")}))
            return state  # type: ignore[no-any-return]

        override(module, "torch", load=load_and_remember)
        try:
            state = original(path, arg_overrides, *args, **kwargs)
        finally:
            override(module, "torch", load=load)
        for check in checks:
            check(settings, {key: state.get(key) for key in ("cfg", "args")}, path)
        return state  # type: ignore[no-any-return]

    module.load_checkpoint_to_cpu = load_checkpoint_to_cpu  # type: ignore[attr-defined]
