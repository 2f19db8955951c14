"""What the tests of this folder share with others."""

import sys
from pathlib import Path

# processes that are forked from one with fairseq loaded
sys.path.append(str(Path(__file__).parents[1] / "commands"))
