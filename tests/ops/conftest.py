"""The tests of ops share helpers with those of whole models."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
