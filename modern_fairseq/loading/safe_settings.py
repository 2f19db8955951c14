"""What a file has made is data: as large as it looks, without cycles, and with settings that compute nothing."""

import argparse
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from modern_fairseq.loading.safe_objects import MOST_BITS, ConfigDict, ConfigList
from modern_fairseq.loading.untrusted import Refused

_DEPTH = 100
_VALUES = 1_000_000
_COPIES = 64
_INTERPOLATION = re.compile(r"\$\{([a-zA-Z_]\w*(?:\.\w+)*)\}")
_LEAVES = (str, bytes, bytearray, float, complex, np.ndarray, np.generic, np.dtype, torch.dtype, torch.device)


class Weight(typing.NamedTuple):
    values: int
    bytes: int
    """Of tensors."""
    height: int


def check_weight(value: Any, bytes_of_file: int) -> None:
    """Refuse what would be far larger than its file, were it written out or copied.

    Raises:
        Refused: it is; it is nested too deeply, or in itself; it has an object that is not data.
    """
    weight = _weigh(value, {}, 0)
    if weight.values > _VALUES + bytes_of_file // 16:
        raise Refused(f"repeats parts of itself so often that it has {weight.values} values")
    if weight.bytes > _COPIES * bytes_of_file:
        raise Refused(f"has tensors of {weight.bytes} bytes in a file of {bytes_of_file}")


def _weigh(value: Any, known: dict[int, Weight], depth: int) -> Weight:
    weight = known.get(id(value), Weight(1, 0, 1))
    if depth + weight.height > _DEPTH:
        raise Refused(f"has values nested in more than {_DEPTH} others, or in themselves")
    if id(value) in known:
        return weight
    if isinstance(value, torch.Tensor):
        return Weight(1, value.nbytes, 1)
    parts = _parts(value)
    if parts is None:
        return weight
    weights = [_weigh(part, known, depth + 1) for part in parts]
    weight = Weight(
        1 + sum(w.values for w in weights),
        sum(w.bytes for w in weights),
        1 + max((w.height for w in weights), default=0),
    )
    known[id(value)] = weight
    return weight


def _parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise Refused(f"has an integer of more than {MOST_BITS} bits")
        return None
    if value is None or isinstance(value, _LEAVES) or (isinstance(value, type) and value.__module__ == "builtins"):
        return None
    if isinstance(value, dict):
        return [*value.values(), *vars(value).values()] if hasattr(value, "__dict__") else value.values()
    if isinstance(value, list | tuple | set):
        return value
    if isinstance(value, argparse.Namespace) or type(value).__module__ == "fairseq.logging.meters":
        return vars(value).values()
    raise Refused(f"has an object of type {type(value).__name__} among its data, or one without its contents")


def with_configs(value: Any, known: dict[int, Any]) -> Any:
    """Replace each ConfigDict and ConfigList in ``value`` by OmegaConf's object, in place where that can be.

    Args:
        known: what has been replaced already, by identity; empty in the first call.
    """
    if id(value) in known:
        return known[id(value)]
    if type(value) in (ConfigDict, ConfigList):
        known[id(value)] = _config(value)
        return known[id(value)]
    known[id(value)] = value
    fields = vars(value) if isinstance(value, argparse.Namespace) else value
    if isinstance(fields, dict):
        for key, part in fields.items():
            fields[key] = with_configs(part, known)
    elif isinstance(fields, list):
        fields[:] = [with_configs(part, known) for part in fields]
    elif isinstance(fields, tuple) and type(fields) is tuple:
        known[id(value)] = value = tuple(with_configs(part, known) for part in fields)
    return value


def _config(value: Any) -> Any:
    check_settings(value)
    try:
        return OmegaConf.create(_plain(value), flags={"allow_objects": True})
    except OmegaConfBaseException as error:
        raise Refused(f"has settings that OmegaConf refuses ({type(error).__name__})") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def check_settings(settings: Any) -> None:
    """Refuse settings that OmegaConf would compute: of ``${...}``, only the name of another setting is data.

    ``${oc.env:NAME}`` reads the environment, and ``${a}${a}`` grows with every step.

    Raises:
        Refused: there is such a setting.
    """
    for text in _texts(settings):
        for _ in range(8):
            if not isinstance(text, str) or "${" not in text:
                break
            name = _INTERPOLATION.fullmatch(text)
            if name is None:
                raise Refused(f"has the setting {text[:80]!r}, which OmegaConf would compute")
            text = _look_up(settings, name[1].split("."))
            if isinstance(text, Mapping | list):
                raise Refused(f"has the setting {name[0]!r}, which stands for several others")
        else:
            raise Refused("has settings that refer to each other without end")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, argparse.Namespace):
        yield from _texts(vars(value))
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _look_up(settings: Any, path: list[str]) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings
