"""transformers copies modelling files to a folder before it runs them: here, one that goes when the tests end."""

from __future__ import annotations

import os
import tempfile

_HOME = tempfile.TemporaryDirectory()
# read when transformers is imported
os.environ["HF_HOME"] = _HOME.name
os.environ["HF_HUB_OFFLINE"] = "1"
