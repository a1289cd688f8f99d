"""`import horovod.torch as hvd` in a script that stays as it is: all of it is `lambert.horovod`."""

import sys
from pathlib import Path

# Out of the way, so that install_alias sees whether Horovod itself is installed, which it never shadows.
sys.modules.pop("horovod")
sys.path.remove(str(Path(__file__).parents[1]))

from lambert.horovod.alias import install_alias  # noqa: E402

install_alias()
