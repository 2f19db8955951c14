"""YAML files: read into plain values, or refused with a sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, TextIO

import yaml

from fairseq_residuals_errors import UserError

_DEPTH = 50
"""Levels of a YAML file; PyYAML takes seconds for the thousand that Python could read."""


_VALUES = 100_000
"""Of a configuration, each as often as aliases repeat it."""


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


def check_aliases(file: TextIO) -> None:
    """Refuse a YAML file whose aliases stand for more than it could say itself; read it to its end.

    Raises:
        UserError: written out, it has more than :data:`_VALUES` values, or an alias stands for what it is part of.
        yaml.YAMLError: it is no YAML.
    """
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # until it is known
            parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
            flat = itertools.chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts
            sizes[id(node)] = 1 + sum(map(size, flat))
        elif not sizes[id(node)]:
            raise UserError(f"{file.name}: an alias stands for what it is part of")
        return sizes[id(node)]

    if size(yaml.compose(file, yaml.SafeLoader)) > _VALUES:
        raise UserError(f"{file.name}: its aliases stand for more than {_VALUES:,} values")
