"""The tests of recipes train on the data of the tests of commands."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "commands"))
