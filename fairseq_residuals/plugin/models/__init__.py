"""The models that fairseq sees, one per task: fairseq's own, rewired.

fairseq is imported first: its import registers the plugin, which imports the modules of this package.
"""

import fairseq  # noqa: F401
