"""Mutants that no test can kill, with the reason."""

EQUIVALENT: dict[tuple[str, str, str], str] = {}
"""By module:function, what stood there and what stands there now."""
