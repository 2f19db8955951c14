"""Numerics with gradients written out, each beside its reference."""
