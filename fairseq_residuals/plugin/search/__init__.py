"""Beam search that finds the hypotheses of fairseq's, sooner.

fairseq is imported first: its import registers the plugin, which imports the modules of this package.
"""

import fairseq  # noqa: F401
