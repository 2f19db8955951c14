"""Features of training that attach to a model, each with its flags; docs/EXTEND.md adds one.

An extension adds flags, checks what they are set to, and attaches to a model that was just built. What it does while
training runs, it asks of the trainer by :mod:`fairseq_residuals.plugin.training.trainer_hooks`.
"""

from __future__ import annotations

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn


class Extension:
    """A feature of training. Every method has a default, which does nothing."""

    name = ""
    """Name, set by :func:`register_extension`."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the feature's flags to every model of the plugin; in a YAML file they are keys under ``model``."""

    def check(self, args: Namespace) -> None:
        """Refuse settings, before data is read.

        Args:
            args: settings of the model, complete: a flag that was not given has its default.

        Raises:
            UserError: a setting is out of range, or contradicts another.
        """

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Change a model that was just built, or ask for calls while it is trained.

        Args:
            model: fairseq's, its layers wired and initialised.
            args: as in :meth:`check`.
        """


EXTENSIONS: dict[str, Extension] = {}
"""The extensions by name, in the order in which they were registered, which is that in which they attach."""


def register_extension(name: str) -> Callable[[type[Extension]], type[Extension]]:
    """Make an extension known as ``name``: a class decorator.

    Raises:
        ValueError: another extension has the name, or one of the flags.
        TypeError: the class does not derive from :class:`Extension`.
    """

    def register(cls: type[Extension]) -> type[Extension]:
        if name in EXTENSIONS:
            raise ValueError(f"an extension named {name!r} is registered already: {type(EXTENSIONS[name])}")
        if not issubclass(cls, Extension):
            raise TypeError(f"extension {name!r} must derive from Extension")
        extension = cls()
        for other in EXTENSIONS.values():
            if both := flags_of(extension).keys() & flags_of(other).keys():
                raise ValueError(f"extension {name!r} has flags of extension {other.name!r}: {', '.join(sorted(both))}")
        cls.name = name
        EXTENSIONS[name] = extension
        return cls

    return register


@functools.cache
def flags_of(extension: Extension) -> Mapping[str, Any]:
    """Return argparse's actions for the flags of an extension, by the names of their settings."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    extension.add_flags(parser)
    return MappingProxyType({action.dest: action for action in parser._actions})


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags of every extension."""
    for extension in EXTENSIONS.values():
        extension.add_flags(parser)


def check_all(args: Namespace) -> None:
    """Check the settings of every extension.

    Raises:
        UserError: an extension refuses one.
    """
    args = _complete(args)
    for extension in EXTENSIONS.values():
        extension.check(args)


def attach_all(model: nn.Module, args: Namespace) -> None:
    """Attach every extension to a model that was just built."""
    args = _complete(args)
    for extension in EXTENSIONS.values():
        extension.attach(model, args)


def _complete(args: Namespace) -> Namespace:
    """Return a copy that has every flag: a YAML file and a checkpoint may lack some."""
    defaults = {dest: a.default for extension in EXTENSIONS.values() for dest, a in flags_of(extension).items()}
    return Namespace(**defaults | vars(args))
