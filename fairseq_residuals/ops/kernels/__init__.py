"""Ops as kernels in Triton, forward and backward; each module has the name of the op whose reference it is tested by.

Modules import Triton, which PyTorch's builds for a CPU lack: an op imports its module where
:func:`~fairseq_residuals.utils.triton_kernels.kernels_run_on` says that kernels run. Sums are in single precision, and
results are rounded once.
"""
