"""Threads that wait sleep soon, unless the user has chosen how they wait."""

import os
import sys

import pytest

from lambert.engine import process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU OpenMP")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("OMP_", "GOMP_", "KMP_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("chosen", "value", "set_here"),
    [
        ("", "", True),
        ("OMP_NUM_THREADS", "4", True),
        ("OMP_NUM_THREADS", "1", False),
        ("OMP_WAIT_POLICY", "active", False),
        ("GOMP_SPINCOUNT", "300000", False),
        ("KMP_BLOCKTIME", "0", False),
    ],
)
def test_what_the_user_chose_stays(chosen: str, value: str, set_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if chosen:
        monkeypatch.setenv(chosen, value)
    assert process.thread_variables() == ({"GOMP_SPINCOUNT": process.SPINS} if set_here else {})


def test_a_process_is_replaced_once_for_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "allocator_variables", lambda: {} if "TUNED" in os.environ else {"TUNED": "1"})
    monkeypatch.setenv("TUNED", "")  # so that the test restores both
    monkeypatch.delenv("TUNED")
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    replaced: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: replaced.append(dict(os.environ)))
    process.replace()
    process.replace()
    (environment,) = replaced
    assert environment["TUNED"] == "1"
    assert environment["GOMP_SPINCOUNT"] == process.SPINS
