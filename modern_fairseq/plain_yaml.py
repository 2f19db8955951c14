"""YAML files: read into plain values, or refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairseq_residuals_errors import UserError

_DEPTH = 50
"""Levels of a YAML file; PyYAML takes seconds for the thousand that Python could read."""


class _Loader(yaml.SafeLoader):
    """Refuses aliases, of which a few lines stand for more than any memory, and deep nesting."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read", self.peek_event().start_mark)
        self._depth += 1
        if self._depth > _DEPTH:
            raise yaml.composer.ComposerError(None, None, "it is nested too deeply", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: the file is no YAML, or has tags or aliases.
        OSError: it cannot be read.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no YAML file: {error}") from None
