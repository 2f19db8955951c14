"""YAML files: read into plain values, or refused with a sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from fairseq_residuals_errors import UserError

_DEPTH = 50
"""Levels of a YAML file; PyYAML takes seconds for the thousand that Python could read."""


class _Loader(yaml.SafeLoader):
    """Refuses aliases, of which a few lines stand for more than any memory, deep nesting, and keys that come twice."""

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

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        made = super().construct_mapping(node, deep)
        if len(made) < len(node.value):
            key = Counter(key.value for key, _ in node.value).most_common(1)[0][0]
            raise yaml.constructor.ConstructorError(None, None, f"the key {key} comes twice", node.start_mark)
        return made


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: the file is no YAML, or has tags, aliases or a key twice.
        OSError: it cannot be read.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no YAML file: {error}") from None
