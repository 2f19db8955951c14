"""Python: dataclass defaults are hashable since 3.11, optional types print otherwise since 3.14; 3.15 lacks a name."""

import contextlib
import dataclasses
import functools
import importlib
import types
from collections.abc import Iterator
from typing import Any

_dataclass = dataclasses.dataclass


def _hash_by_identity(cls: Any) -> None:
    """Give ``cls`` and every later subclass an explicit ``__hash__``, which ``@dataclass`` leaves alone."""
    cls.__hash__ = object.__hash__

    def __init_subclass__(sub: Any, **kwargs: Any) -> None:
        super(cls, sub).__init_subclass__(**kwargs)
        if "__hash__" not in sub.__dict__:
            sub.__hash__ = object.__hash__

    cls.__init_subclass__ = classmethod(__init_subclass__)


@contextlib.contextmanager
def hashable_defaults() -> Iterator[None]:
    """Let ``common: CommonConfig = CommonConfig()`` be a default again (dataclass/configs.py:1106-1124).

    Python 3.11 takes a default without a hash for a mutable one and refuses it: ``import fairseq`` dies with
    "mutable default <class CommonConfig> for field common is not allowed".  FairseqDataclass, the base of
    every such default (models/transformer/transformer_config.py:114-192 and user modules included), is made
    hashable by identity as it was under Python 3.10.  ``default_factory`` is no way out: fairseq reads
    ``field.default``.  The decorator is wrapped only while configs.py is executed, and whatever configs.py
    imports is imported before. ``dataclasses._MISSING_TYPE``, which it imports from Python 3.15 on too (configs.py:8,
    utils.py:12), is the type of ``MISSING``. Can go when fairseq uses ``default_factory`` (fairseq > 0.12.2) or with
    Python < 3.11.
    """
    vars(dataclasses).setdefault("_MISSING_TYPE", type(dataclasses.MISSING))
    for name in ("torch", "omegaconf", "fairseq.dataclass.constants"):
        importlib.import_module(name)

    def dataclass(cls: type | None = None, /, **kwargs: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, **kwargs)
        if cls.__name__ == "FairseqDataclass":
            _hash_by_identity(cls)
        return _dataclass(cls, **kwargs)

    dataclasses.dataclass = dataclass  # type: ignore[assignment]
    try:
        yield
    finally:
        dataclasses.dataclass = _dataclass


def optional_types(module: types.ModuleType) -> None:
    """Take ``X | None`` for an optional X.

    dataclass/utils.py:46 looks for "typing.Optional[X]" in what a type prints as; Python 3.14 prints "X | None", which
    argparse cannot call: ``import fairseq`` ends in a TypeError.

    Can go when fairseq looks at the type itself (fairseq > 0.12.2).
    """
    interpret = module.interpret_dc_type

    def interpret_dc_type(field_type: Any) -> Any:
        if isinstance(field_type, types.UnionType) and types.NoneType in field_type.__args__:
            return next(part for part in field_type.__args__ if part is not types.NoneType)
        return interpret(field_type)

    module.interpret_dc_type = interpret_dc_type  # type: ignore[attr-defined]
