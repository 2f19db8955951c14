"""Entries of a comparison: wirings of the package by name, and wirings of a user's own Python file.

``pre_ln``, ``b2t/scale=2``, ``post_ln:0-5,pre_ln:6-17`` and ``mine.py`` are entries; ``@warmup=N`` behind one gives it
a warm-up of its own. A file is loaded because the user names it. It registers classes by ``register_variant``, or
defines one subclass of ``Variant``, or else one of ``Connection``, which then is called as the file is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_residuals.lab.utils.checkout import is_committed
from fairseq_residuals.wirings.core.base import Connection, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import OWN
from fairseq_residuals.wirings.core.registry import VARIANTS, register_variant
from fairseq_residuals.wirings.core.wiring import Wiring
from modern_fairseq.atomic_write import atomic_write

WITHOUT_WARMUP = ("t_fixup", "re_zero")
"""Wirings whose papers train without warm-up: each is also compared so."""
_WARMUP = re.compile(r"(?P<wiring>.*)@warmup=(?P<updates>\d{1,9})")
_LOADED = "compared_"
"""Beginning of the names of modules that files of users become."""
_TWO_OF_ONE_NAME = "two files are called {}: rename one, since a wiring is called as its file is"
_FILLED_IN = {
    "paper": "Unpublished, from a file of the user",
    "year": 2026,
    "equations": classmethod(lambda cls, options: ("as the file has them",)),
    "verified": "nothing",
}
"""Values of the attributes that a class in a user's file need not have."""


@dataclass(frozen=True)
class Entry:
    """One wiring to compare."""

    name: str
    """Text by which the user names it, and by which tables list it."""
    residual: str
    """Value of ``--residual``."""
    args: str
    """Value of ``--residual-args``; may be empty."""
    warmup: int | None = None
    """Updates of warm-up; None: those that all entries have."""

    @property
    def wiring(self) -> Wiring:
        return Wiring.parse(self.residual, self.args)

    @property
    def label(self) -> str:
        """Name of its folders."""
        return re.sub(r"[^\w.=]+", "-", self.name)

    @property
    def overrides(self) -> list[str]:
        """Settings of a training, as hydra takes them."""
        own = [f"model.residual='{self.residual}'"]
        own += [f"model.residual_args='{self.args}'"] if self.args else []
        return own + ([f"lr_scheduler.warmup_updates={self.warmup}"] if self.warmup is not None else [])


def read_entries(
    texts: Sequence[str], folder: Path, of_today: bool = False, imported: Sequence[Path] = ()
) -> tuple[list[Entry], Path | None]:
    """Return the entries, and the ``--user-dir`` of their trainings where the plugin alone does not do.

    Args:
        texts: as the command line has them.
        folder: where copies of files are kept, so that a run goes on with what it began with.
        of_today: whether models have blocks of today, which fairseq learns of by the same package.
        imported: files that are loaded already, with norms or wirings that entries name.

    Raises:
        UserError: an entry is not valid, or comes twice; two files have one name.
    """
    split = [(wiring, at + warmup) for wiring, at, warmup in (text.partition("@warmup=") for text in texts)]
    files = [*imported, *(Path(text) for text, _ in split if text.endswith(".py"))]
    user_dir = _user_dir(files, folder) if files or of_today else None
    entries: list[Entry] = []
    for text, warmup in split:
        named = load(user_dir / _kept(Path(text))) if user_dir and text.endswith(".py") else [text]
        entries += [_entry(name + warmup, user_dir) for name in named]
    so_trained = [e for e in entries if e.warmup is None and e.residual in WITHOUT_WARMUP]
    without = [replace(e, name=f"{e.name}@warmup=0", warmup=0) for e in so_trained]
    entries += [e for e in without if e.name not in texts]
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{', '.join(twice)} is named twice: give each wiring once")
    return entries, user_dir


def _entry(text: str, user_dir: Path | None) -> Entry:
    found = _WARMUP.fullmatch(text)
    wiring, warmup = (found["wiring"], int(found["updates"])) if found else (text, None)
    name, _, options = wiring.partition("/")
    wired = Wiring.parse(name, options)
    files = set()
    for part in wired.parts:
        source = Path(inspect.getfile(part.variant))
        if part.variant.__module__.startswith(_LOADED) or not is_committed(source):
            files.add(source)
        if part.config.norm_type not in OWN:
            files |= set(own_files(user_dir))
    if files:  # a file that was changed is another wiring
        text += f"#{_digest({path.name: path.read_text(encoding='utf-8') for path in files})[6:10]}"
    return Entry(text, name, options, warmup)


def own_files(user_dir: Path | None) -> list[Path]:
    """Return the user's files in a package that :func:`read_entries` made, if it made one."""
    return sorted(path for path in user_dir.glob("*.py") if path.name != "__init__.py") if user_dir else []


def _kept(path: Path) -> str:
    """Return the name of a file's copy: a package of the user's is called as its folder is."""
    return f"{path.resolve().parent.name}.py" if path.name == "__init__.py" else path.name


def _digest(texts: Mapping[str, str]) -> str:
    """Return the digest of files, ten digits."""
    return hashlib.sha256("".join(f"{name}\n{texts[name]}" for name in sorted(texts)).encode()).hexdigest()[:10]


def _user_dir(files: Sequence[Path], folder: Path) -> Path:
    """Copy files into a package that fairseq imports as ``--user-dir``; its name says what is in it."""
    texts: dict[str, str] = {}
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as a file of Python: {error}") from error
        if texts.setdefault(_kept(path), text) != text:
            raise UserError(_TWO_OF_ONE_NAME.format(_kept(path)))
    package = folder / f"wirings_{_digest(texts)}"
    package.mkdir(parents=True, exist_ok=True)
    texts["__init__.py"] = (
        "from pathlib import Path\n\nimport fairseq_residuals\n"
        "from fairseq_residuals.lab.compare import today\n"
        "from fairseq_residuals.lab.compare.entries import load\n\nfairseq_residuals.register()\n"
        f"for name in {sorted(texts)!r}:\n    load(Path(__file__).with_name(name), wirings=False)\n"
    )
    for name, text in texts.items():
        with atomic_write(package / name) as new:
            new.write_text(text, encoding="utf-8")
    return package


def load(path: Path, *, wirings: bool = True) -> list[str]:
    """Execute a user's file, and return the names of the wirings that it adds; a second call executes nothing.

    Args:
        wirings: whether the file has to define one; without, it may have something else, such as norms.

    Raises:
        UserError: it fails, defines no wiring, or another file of its name was loaded.
    """
    name = f"{_LOADED}{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UserError(f"{path} is no file of Python: give one whose name ends in .py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            own = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == name]
            variants = [v for v in own if issubclass(v, Variant)]
            variants = variants or [_variant_of(v) for v in own if issubclass(v, Connection)]
            if not set(variants) & set(VARIANTS.values()) and (wirings or variants):
                _register(path, variants)
        except Exception as error:  # whatever a user's file raises
            del sys.modules[name]
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path.name} fails: {type(error).__name__}: {error}") from error
    elif Path(str(sys.modules[name].__file__)).read_bytes() != path.read_bytes():
        raise UserError(_TWO_OF_ONE_NAME.format(path.name))
    return [wiring for wiring, variant in VARIANTS.items() if variant.__module__ == name]


def _variant_of(own: type[Connection]) -> type[Variant]:
    body = {"connection": own, "summation": own.summation, "__module__": own.__module__}
    return type(own.__name__, (Variant,), body)


def _register(path: Path, classes: Sequence[type[Variant]]) -> None:
    if len(classes) != 1:
        raise UserError(
            f"{path.name} defines {len(classes) or 'no'} wirings: one subclass of Variant or Connection takes the"
            " file's name, and several need @register_variant(name)"
        )
    (variant,) = classes
    says = {"normalize_before": variant.normalize_before, "title": path.stem}
    for attribute, words in (says | _FILLED_IN).items():
        if attribute not in vars(variant):
            setattr(variant, attribute, words)
    register_variant(path.stem)(variant)
