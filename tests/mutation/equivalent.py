"""Mutants that no test can kill, with the reason."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "variants/_augmented_skip:AugmentedConnection.write",
        "range(1, self.past)",
        "range(1, self.past + 1)",
    ): "the stream has no output that is older: the next line keeps past - 1 of them",
}
"""By module:function, what stood there and what stands there now."""
