"""What the processor of this machine can do."""

import pytest

from lambert.core.errors import MachineError
from lambert.inference.cpu import check


def needs_fast(precision: str) -> None:
    """Skips a test of inference in `precision` where Lambert refuses that on this processor, with Lambert's reason."""
    if precision in ("bfloat16", "int8"):
        try:
            check("int8" if precision == "int8" else "bfloat16")
        except MachineError as error:
            pytest.skip(str(error))
