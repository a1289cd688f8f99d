"""The launcher as a module: `python -m lambert.wings.horovod.run -np 2 python train.py`."""

import sys

from lambert.core.errors import LambertError
from lambert.wings.horovod.run import main

try:
    sys.exit(main(sys.argv[1:]))
except LambertError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
