"""Predictions beside published runs: the errors, and the table of the documentation."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_plan", ROOT / "benchmarks" / "plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_median_error_of_the_rows_that_were_not_fitted_is_small(plan: ModuleType) -> None:
    tested = [row for row in plan.rows() if not row["fitted"]]
    assert len(tested) >= 40
    assert plan.median_error(tested) < 0.12
    assert sum(abs(plan.error(row)) <= 0.2 for row in tested) >= 0.7 * len(tested)


def test_every_publication_and_device_has_rows(plan: ModuleType) -> None:
    rows = plan.rows()
    publications = {row["publication"].split()[0] for row in rows}
    assert {"BERT", "SQuAD", "Perseus-BERT", "MLPerf", "Lambert,"} <= publications
    devices = {row["device"] for row in rows if isinstance(row["device"], str)}
    assert {"V100-32GB", "A100-80GB", "H100", "H200", "TPU-v3", "P100", "K80"} <= devices
    assert {1, 3472} <= {row["devices"] for row in rows}
    assert sum(row["fitted"] for row in rows) <= 7


def test_every_row_stands_in_the_documentation(plan: ModuleType) -> None:
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    for row in plan.rows():
        assert plan.line(row) in page, row["id"]


def test_the_bound_of_mrpc_on_a_k80_is_kept(plan: ModuleType) -> None:
    (row,) = (row for row in plan.rows() if row["id"] == "hf-mrpc-v100")
    assert plan.predicted({**row, "device": "K80", "precision": "float32"}) < 10 / 60
