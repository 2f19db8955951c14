"""Who takes part: how a model is made, with which flags, and in which environment its process runs.

A contestant is asked for as NAME, NAME/k=v,... (a variant with options) or either with +FLAVOUR behind it. NAME is one
of :data:`CONTESTANTS`, a variant, or a maker MODULE:FUNCTION, which is imported in the contestant's process: so
further ones need no change here.
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq_residuals.lab.look.models import sources
from fairseq_residuals.wirings.core.errors import UserError

HERE = "fairseq_residuals.lab.bench"
_MAKER = re.compile(r"\w+(\.\w+)+:[A-Za-z_]\w*")
"""With a dot, which a list of variants has not."""


@dataclass(frozen=True)
class Contestant:
    """One line of a table. ``network`` and ``search`` are MODULE:FUNCTION, called with the contestant and a case."""

    name: str
    network: str = ""
    """Returns :class:`fairseq_residuals.lab.bench.fairseq_models.Network`; empty where there is nothing to train."""
    search: str = ""
    """Returns a function that generates once, and gives how many tokens; empty where it has no beam search."""
    arch: str = "transformer"
    flags: tuple[str, ...] = ()
    """Of fairseq-train, after those that a case makes: the last one wins."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its process has beside this one's."""
    about: str = ""
    """For readers of a table, what its name does not say."""

    @property
    def own(self) -> str:
        """Its variables and flags, as a command line."""
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.flags])


@dataclass(frozen=True)
class Flavour:
    """What may be added to any contestant."""

    about: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    library: str = ""
    """What is loaded before the C library, as the linker knows it."""

    def variables(self) -> Mapping[str, str]:
        """Return what is added to the environment of the contestant's process.

        Raises:
            UserError: ``library`` is not installed.
        """
        if not self.library:
            return self.environment
        file = find_library(self.library)
        if file is None:
            raise UserError(f"the library {self.library} is not installed (Debian, Ubuntu: libtcmalloc-minimal4)")
        return {**self.environment, "LD_PRELOAD": file}


SEARCH = f"{HERE}.fairseq_models:search"
STOCK = Contestant(
    "stock",
    f"{HERE}.fairseq_models:stock",
    f"{HERE}.fairseq_models:search_stock",
    about="fairseq 0.12.2's Post-LN as it ships, with a second, dead copy of its encoder layers' weights, and in"
    " evaluation their fused kernel",
)
CONTESTANTS = {
    c.name: c
    for c in (
        STOCK,
        Contestant(
            "stock-lean", f"{HERE}.fairseq_models:network", SEARCH, about="stock without the copy and the kernel"
        ),
        Contestant("torchscale", f"{HERE}.others:torchscale", about="its own default, Sub-LN with GELU"),
        Contestant(
            "x-transformers", f"{HERE}.others:x_transformers", about="its own default, Pre-LN with GELU; attn_flash"
        ),
        Contestant("ctranslate2", search=f"{HERE}.ctranslate:search", about="the plugin's Post-LN, exported"),
    )
}
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc, mallopt(3): no block is mapped by itself, so a freed one returns to the heap, of which nothing is given back.
By default every tensor above 32 MiB is mapped anew, and the kernel zeroes its pages each time."""
FAST = ("--optimizer=fused_adam", "--criterion=chunked_label_smoothed_cross_entropy")
FLAVOURS = {
    "kept": Flavour("its process keeps the memory that it frees (glibc)", environment=KEPT),
    "tcmalloc": Flavour("its process allocates by tcmalloc", library="tcmalloc_minimal"),
    "fast": Flavour("the plugin's options for speed", flags=(*FAST, "--fast-on-cpu")),
    "graphs": Flavour("those for a GPU: steps as CUDA graphs", flags=(*FAST, "--cuda-graphs")),
}


def chosen(args: Any) -> list[Contestant]:
    """Return what ``--beside``, ``--variants`` and ``--also`` ask for, each name once.

    Raises:
        UserError: one of them is unknown, or two have one name.
    """
    found = [parse(text) for text in (*args.beside, *args.variants)] + [parse_also(text) for text in args.also]
    names = [contestant.name for contestant in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{twice!r} is asked for twice; `--also 'LABEL={twice} ...'` gives it another name")
    if not found:
        raise UserError("there is nothing to measure: name something in --variants, --beside or --also")
    return [replace(contestant, flags=(*contestant.flags, *args.further)) for contestant in found]


def parse(text: str) -> Contestant:
    """Return the contestant that ``text`` names.

    Raises:
        UserError: it is none; the message says what is valid.
    """
    base, *flavours = text.split("+")
    found = replace(_base(base), name=text)
    for name in flavours:
        if name not in FLAVOURS:
            raise UserError(f"{text!r}: there is no flavour {name!r}; valid: {', '.join(FLAVOURS)}")
        flavour = FLAVOURS[name]
        environment = {**found.environment, **flavour.variables()}
        found = replace(found, flags=(*found.flags, *flavour.flags), environment=environment)
    return found


def parse_also(text: str) -> Contestant:
    """Parse ``LABEL=NAME [VARIABLE=VALUE ...] [--flag=value ...]``.

    Raises:
        UserError: it is not of this form, or NAME is unknown.
    """
    label, equals, rest = text.partition("=")
    words = shlex.split(rest)
    variables = {w.partition("=")[0]: w.partition("=")[2] for w in words[1:] if re.match(r"[A-Za-z_]\w*=", w)}
    flags = tuple(w for w in words[1:] if w.startswith("--"))
    if not (label.strip() and equals and words) or len(variables) + len(flags) < len(words) - 1:
        raise UserError(
            f"--also {text!r} is not understood; valid is such as 'LABEL=pre_ln+kept OMP_NUM_THREADS=1 --dropout=0.3'"
        )
    found = parse(words[0])
    return replace(
        found, name=label.strip(), flags=(*found.flags, *flags), environment={**found.environment, **variables}
    )


def _base(text: str) -> Contestant:
    if text in CONTESTANTS:
        return CONTESTANTS[text]
    if _MAKER.fullmatch(text):
        return Contestant(text, text, SEARCH)
    sizes = dict.fromkeys(("dim", "ffn_dim", "heads"), None) | {"sentences": 1, "tokens": 1, "vocabulary": 5}
    try:
        (source,) = sources(Namespace(variants=[text], arch=None, checkpoint=None, task="translation", **sizes))
    except UserError as error:
        raise UserError(f"{error}; beside variants there are {', '.join(CONTESTANTS)}") from error
    except ValueError:
        raise UserError(f"{text!r} must be one contestant; blanks, not commas, stand between several") from None
    return Contestant(text, f"{HERE}.fairseq_models:network", SEARCH, source.arch, source.flags)
