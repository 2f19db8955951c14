"""Numerics with gradients written out.

A function ``<op>_reference`` is an op's equation in plain PyTorch, for what looks into it. The fast form computes the
same with less memory or time, and a test of the module's name in ``tests/ops`` compares it with plain PyTorch.
Modules import PyTorch, :mod:`fairseq_residuals.wirings.utils` and each other.
"""
