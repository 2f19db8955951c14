"""What makes the same computation faster, attached from outside; the folder can be removed.

fairseq is imported first: its import registers the plugin, which imports the modules of this package.
"""

import fairseq  # noqa: F401
