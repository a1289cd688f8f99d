"""Runs on equal machines are compared with one ceiling."""

from pathlib import Path
from typing import Any

import pytest
from run_folders import Outline, folder, page, row

from lambert.verbs.report.folders import read, with_one_ceiling

BUSY = [row(10, utilisation=0.4, ceiling_gflops=50.0), row(20, utilisation=0.4, ceiling_gflops=50.0)]
QUIET = [row(10, utilisation=0.4, ceiling_gflops=50.0), row(20, utilisation=0.2, ceiling_gflops=100.0)]
HERE = {"device_name": "AMD EPYC", "threads": 2, "processes": 1}


@pytest.mark.parametrize(
    ("other", "shares"),
    [(HERE, [0.2, 0.2]), (HERE | {"threads": 1}, [0.4, 0.4]), (HERE | {"device_name": "i7"}, [0.4, 0.4])],
)
def test_the_same_speed_is_the_same_share(other: dict[str, Any], shares: list[float], tmp_path: Path) -> None:
    folders = folder(tmp_path / "busy", BUSY, environment=other), folder(tmp_path / "quiet", QUIET, environment=HERE)
    busy, quiet = with_one_ceiling([read(path, path.name) for path in folders])
    assert [share for _, share in busy.series("utilisation")] == shares
    assert [share for _, share in quiet.series("utilisation")] == [0.2, 0.2]
    assert quiet.last("ceiling_gflops") == 100
    text = " ".join(Outline(page(*folders)).text.split())
    assert f"Share of the device's ceiling, mean {shares[0]:.1%} 20.0%" in text
    assert "The ceiling, GFLOP/s" in text


def test_rows_without_a_ceiling_stay(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [row(10, utilisation=0.4), row(20, utilisation=None, ceiling_gflops=50.0)]
    path = folder(tmp_path / "old", [*rows, row(30, utilisation=0.3, ceiling_gflops=-1)], environment=HERE)
    (old,) = with_one_ceiling([read(path, "old")])
    assert old.series("utilisation") == [(10, 0.4), (30, 0.3)]
