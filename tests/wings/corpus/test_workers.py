from pathlib import Path

import psutil
import pytest

from lambert.core.errors import DataError
from lambert.wings.corpus import workers


@pytest.mark.parametrize("count", [1, 2])
def test_shares_are_told_from_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    code = """class Halves:
    tell = None

    def __call__(self, item):
        self.tell(0.5)
        return 2 * item
"""
    (tmp_path / "halves_for_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target = __import__("halves_for_a_test").Halves
    told: list[tuple[int, float]] = []
    found = workers.run([1, 2, 3], count, target, (), told=lambda item, share: told.append((item, share)))
    assert list(found) == [(1, 2), (2, 4), (3, 6)]
    assert sorted(told) == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_steps_share_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """import os
import time


class Sum:
    def __init__(self, start):
        self.sum = start

    def __call__(self, item):
        if item < 0:
            from lambert.core.errors import DataError

            raise DataError("negative")
        self.sum += item
        time.sleep(0.01)
        return os.getpid(), self.sum
"""
    (tmp_path / "sum_for_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target = __import__("sum_for_a_test").Sum

    def processes(items: list[int], start: int) -> set[int]:
        found = [answer for _, answer in workers.run(items, 2, target, (start,))]
        assert sum(total for _, total in found) >= len(items) * start  # each call begins with new objects
        assert all(total < start + sum(items) + 1 for _, total in found)
        return {process for process, _ in found}

    with workers.share_processes():
        first = processes([1] * 20, 0)
        assert processes([1] * 20, 1000) == first
        with pytest.raises(DataError, match="negative"):
            list(workers.run([1, -1, 1], 2, target, (0,)))
        assert len(processes([1] * 20, 0) & first) < 2  # a failure may leave an answer in a pipe
    assert not processes([1] * 20, 0) & first
    with workers.share_processes():
        last = processes([1] * 20, 0)
    assert not any(psutil.pid_exists(process) for process in last)
