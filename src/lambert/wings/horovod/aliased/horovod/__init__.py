"""Makes `import horovod.torch as hvd` in an unchanged script import `lambert.horovod`."""

import sys
from pathlib import Path

# Remove this package and its folder, so that install_alias can detect an installed Horovod, which it never shadows.
sys.modules.pop("horovod")
sys.path.remove(str(Path(__file__).parents[1]))

from lambert.wings.horovod.alias import install_alias  # noqa: E402

install_alias()
