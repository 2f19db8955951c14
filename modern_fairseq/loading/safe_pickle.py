"""The restricted unpickler, in the place of the module ``pickle`` for ``torch.load``."""

import _compat_pickle
import pickle
import pickletools
import re
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import IO, Any

from modern_fairseq.loading import safe_objects
from modern_fairseq.loading.safe_objects import Call, Unbuilt
from modern_fairseq.loading.safe_tensors import Storages
from modern_fairseq.loading.untrusted import Foreign, Refused

_AS_PYTHON_DOES = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING LONG1 BINGET LONG_BINGET GLOBAL"
)
"""Instructions that make plain values, and GLOBAL, which asks :meth:`Unpickler.find_class`."""
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_FREE_READS = 200_000
_BYTES_PER_READ = 128
"""A tensor takes about forty reads, and brings its numbers along."""
_LONGEST_NAME = 1000


class _Instructions(dict):
    def __missing__(self, code: int) -> Any:
        opcode = _OPCODES.get(chr(code))
        raise Refused(f"has the pickle instruction {opcode.name if opcode else code}, which torch.save does not write")


class Unpickler(pickle._Unpickler):
    """Reads what ``torch.save`` writes, and calls nothing but functions of :mod:`modern_fairseq.loading.safe_objects`.

    Subclassed for each file, as :func:`module_for` does.
    """

    storages: Storages
    stack: list[Any]
    memo: dict[int, Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    dispatch = _Instructions()

    def __init__(self, file: Any, *, encoding: str = "utf-8") -> None:
        super().__init__(_Bounded(file, self.storages.bytes_of_file), encoding=encoding)  # type: ignore[arg-type]

    def find_class(self, module: str, name: str) -> Any:
        """Look up what a file means by a name, which is no more than :func:`safe_objects.names` has.

        Raises:
            Foreign: it has none.
        """
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        full = f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"
        if full in safe_objects.names():
            return safe_objects.names()[full]
        if not re.fullmatch(r"[\w.]{1,200}\.\w{1,100}", full):
            raise Refused("holds an object of a class whose name is none")
        raise Foreign(full)

    def _call(self, callee: Any, arguments: Any) -> Any:
        if not isinstance(callee, Call):
            raise Refused(f"calls {getattr(callee, 'name', type(callee).__name__)}, which is not to be called")
        if type(arguments) is not tuple:
            raise Refused("calls something with arguments that are no tuple")
        return callee.function(*arguments)

    def _reduce(self) -> None:
        arguments, callee = self.stack.pop(), self.stack.pop()
        self.append(self._call(callee, arguments))

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict:
            safe_objects.restore_ordered(target, state)
        elif isinstance(target, Unbuilt):
            self.stack[-1] = target.build(state)
            for place in target.places:
                self.memo[place] = self.stack[-1]
        else:
            raise Refused(f"gives state to an object of type {type(target).__name__}, which takes none")

    def _remember(self, place: int) -> None:
        self.memo[place] = value = self.stack[-1]
        if isinstance(value, Unbuilt):
            value.places.append(place)

    def _append_to(self, target: Any, items: list[Any]) -> None:
        if type(target) is not list:
            raise Refused(f"appends to an object of type {type(target).__name__}")
        target.extend(items)

    def _set_in(self, target: Any, items: list[Any]) -> None:
        if type(target) not in (dict, OrderedDict, Counter, defaultdict):
            raise Refused(f"sets items of an object of type {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[safe_objects.check_key(key)] = value

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_in(self.stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._set_in(self.stack[-1], items)

    def _append_one(self) -> None:
        item = self.stack.pop()
        self._append_to(self.stack[-1], [item])

    def _append_several(self) -> None:
        items = self.pop_mark()
        self._append_to(self.stack[-1], items)

    def _storage(self) -> None:
        name = self.stack.pop()
        self.storages.check(name)
        self.append(self.persistent_load(name))


def _instruction(name: str) -> int:
    return getattr(pickle, name)[0]


Unpickler.dispatch |= {
    _instruction(name): pickle._Unpickler.dispatch[_instruction(name)] for name in _AS_PYTHON_DOES.split()
}
_OURS: dict[str, Callable[[Any], None]] = {
    "REDUCE": Unpickler._reduce,
    "NEWOBJ": Unpickler._reduce,
    "BUILD": Unpickler._build,
    "APPEND": Unpickler._append_one,
    "APPENDS": Unpickler._append_several,
    "SETITEM": Unpickler._set_item,
    "SETITEMS": Unpickler._set_items,
    "BINPERSID": Unpickler._storage,
    "BINPUT": lambda unpickler: unpickler._remember(unpickler.read(1)[0]),
    "LONG_BINPUT": lambda unpickler: unpickler._remember(int.from_bytes(unpickler.read(4), "little")),
}
Unpickler.dispatch |= {_instruction(name): function for name, function in _OURS.items()}


class _Bounded:
    """A file of which nothing is read that it cannot have, and not for ever."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self._left = _FREE_READS + size // _BYTES_PER_READ

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Refused("has more instructions than a checkpoint of its size")

    def read(self, count: int) -> bytes:
        self._count()
        if count > self._size:
            raise EOFError
        return self._file.read(count)

    def readinto(self, buffer: Any) -> int:
        raise Refused("has bytes apart from the pickle")

    def readline(self) -> bytes:
        self._count()
        line = self._file.readline(_LONGEST_NAME)
        if not line.endswith(b"\n"):
            raise EOFError
        return line


def module_for(storages: Storages) -> types.SimpleNamespace:
    """Make what ``torch.load`` takes as its ``pickle_module``, for one file."""
    unpickler = type("Unpickler", (Unpickler,), {"storages": storages})

    def load(file: IO[bytes], **options: Any) -> Any:
        """Read one of the small pickles around the data, the last of which lists the storages that follow."""
        value = unpickler(file, **options).load()
        if isinstance(value, list):
            storages.check_filled(value)
        return value

    return types.SimpleNamespace(__name__="safe_pickle", Unpickler=unpickler, load=load)
