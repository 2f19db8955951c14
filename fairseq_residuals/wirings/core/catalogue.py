"""What a registered variant says of itself: title, paper, equations, provenance, the models that ship it."""

from __future__ import annotations

from collections.abc import Collection

from fairseq_residuals.wirings.core.base import Variant

REQUIRED = ("title", "paper", "year", "equations", "verified")
"""What each class that is registered declares in its own body."""
OPTIONAL = ("code", "extension", "export_as", "normalize_before", "symbols", "starts_as")
"""What it declares where it differs from :class:`Variant`."""


def check_declaration(name: str, cls: type[Variant], registered: Collection[type[Variant]]) -> None:
    """Refuse a class that would be listed under what another variant says of itself.

    A base class that is not registered itself, such as that of two variants of one paper, may declare for both.

    Raises:
        TypeError: ``cls`` inherits a declaration from a registered variant, or lacks one, or names no connection.
    """
    lineage = cls.__mro__
    own = lineage[: next(i for i, base in enumerate(lineage) if base is Variant or base in registered)]
    parent = lineage[len(own)]
    for attribute in REQUIRED:
        if not any(attribute in vars(base) for base in own):
            raise TypeError(
                f"variant {name!r} does not say its {attribute!r}: declare it in the body of {cls.__name__}"
                + (f", which does not inherit that of {parent.__name__}" if hasattr(parent, attribute) else "")
            )
    if not callable(cls.equations):
        raise TypeError(
            f"the equations of variant {name!r} are a method of its options, which returns a tuple of lines"
        )
    if cls.connect is Variant.connect and not hasattr(cls, "connection"):
        raise TypeError(
            f"variant {name!r} names no connection: set `connection`, or define `connect`, in {cls.__name__}"
        )
    for attribute in OPTIONAL:
        inherited = getattr(cls, attribute)
        if inherited != getattr(Variant, attribute) and not any(attribute in vars(base) for base in own):
            raise TypeError(
                f"variant {name!r} inherits {attribute}={inherited!r} from {parent.__name__}, which says it of itself:"
                f" declare {attribute!r} in the body of {cls.__name__}"
            )
