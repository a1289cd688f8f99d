import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))  # for `flat`: pytest imports each test by its path alone
torch.set_num_threads(1)
