"""Pytest imports each test by its path alone: the ranks that tests start (`horovod_ranks.py`) are found here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
