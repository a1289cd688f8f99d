"""The faults strike the same tiny run that the tests of the engine use."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
