"""fairseq plugin (``--user-dir``): where the norms and the residual connections of a deep Transformer go.

Importing it makes fairseq 0.12.2 run on current Python, then registers every variant in every task with fairseq.
"""

import modern_fairseq

modern_fairseq.install()  # a no-op where the installed .pth file has done it

from fairseq_residuals import plugin  # noqa: E402

__version__ = "0.1.0"

plugin.register()
