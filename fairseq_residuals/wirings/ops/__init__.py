"""Numerics with gradients written out, each beside a reference of a few lines.

Every module has a function ``reference``, or ``<op>_reference`` for each of its ops: the equation in plain PyTorch. The
fast form computes the same with less memory or time, and a test of the same name in ``tests/ops`` compares the two.
Modules import PyTorch, :mod:`fairseq_residuals.wirings.utils` and each other.
"""
