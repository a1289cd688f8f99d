"""Pytest imports each test by its path alone: the tensors they share are found here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
