"""Checks that run on several ranks (`tests/support/horovod_ranks.py`).

A module with `CHECKS`, and `RANKS` where two are too few, has them run on ranks; its `test_on_ranks(outcome)` hears how
each of them went.
"""

from collections.abc import Iterator

import pytest
from horovod_ranks import Check, outcomes

import lambert.horovod as hvd


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One `test_on_ranks` for each of the module's checks."""
    if "outcome" in metafunc.fixturenames:
        checks: list[Check] = metafunc.module.CHECKS
        metafunc.parametrize("outcome", [c.__name__ for c in checks], ids=lambda name: name, indirect=True)


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    module = request.module
    return outcomes(module.CHECKS, tmp_path_factory.mktemp("ranks"), getattr(module, "RANKS", 2))


@pytest.fixture
def outcome(request: pytest.FixtureRequest, told: dict[str, str]) -> str:
    """What went wrong in a check; nothing where it holds."""
    return told[request.param]


@pytest.fixture
def alone() -> Iterator[None]:
    """One rank, this process."""
    hvd.init()
    yield
    hvd.shutdown()
