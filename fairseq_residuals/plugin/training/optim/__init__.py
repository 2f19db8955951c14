"""What the papers' recipes need to train and fairseq lacks; importing this registers it with fairseq.

===============================================  ===================================================================
recipe                                           flags
===============================================  ===================================================================
T-Fixup: inverse square root without warm-up     ``--lr-scheduler inverse_sqrt_nowarmup --decay-period 4000``
Admin: RAdam                                     ``--optimizer radam --adam-betas '(0.9, 0.98)'``
ResiDual, Table 8: linear decay without warm-up  ``--lr-scheduler polynomial_decay --total-num-update T``
===============================================  ===================================================================

``--optimizer fused_adam`` is fairseq's Adam, but faster.

The last line of the table is fairseq's own: with its defaults (power 1, no warm-up, final learning rate 0) the learning
rate after n of T updates is lr * (1 - n / T), exactly.
"""

from fairseq_residuals.plugin.training.optim import fused_adam, inverse_sqrt_nowarmup, radam

__all__ = ["fused_adam", "inverse_sqrt_nowarmup", "radam"]
