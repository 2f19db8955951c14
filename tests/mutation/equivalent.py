"""Mutants that no test can kill, with the reason."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "variants/_augmented_skip:AugmentedConnection.write",
        "range(1, self.past)",
        "range(1, self.past + 1)",
    ): "the stream has no output that is older: the next line keeps past - 1 of them",
    (
        "variants/mix_ln:MixLN.connect",
        "1e-06",
        "1.5e-06",
    ): "whatever is larger than rounding, and smaller than the next value that an option can have",
    (
        "variants/normformer:NormFormerConnection.scale_heads",
        "-2",
        "2",
    ): "of four dimensions, the third and the last but one are the same",
    (
        "variants/transparent_attention:TransparentAttention.after_layer",
        "s | {f'h{i + 1}': s['x']} if self.mixes else s",
        "s | {f'h{i + 1}': s['x']}",
    ): "a decoder's stream then has entries that nothing reads",
}
"""By module:function, what stood there and what stands there now."""
