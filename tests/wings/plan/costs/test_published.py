"""Predictions beside published and own runs: the errors, and what the documentation says of them."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan import run as plan

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True, scope="module")
def _each_row_is_predicted_once() -> Iterator[None]:
    predict, known = plan.predict_row, dict[str, float]()

    def once(row: Mapping[str, Any]) -> float:
        key = json.dumps(row, sort_keys=True) + os.environ.get("LAMBERT_NATIVE", "")
        return known[key] if key in known else known.setdefault(key, predict(row))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "predict_row", once)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "many", "median", "close"),
    [("Published runs", 55, 0.10, 0.7), ("Own runs, one device", 20, 0.2, 0.6), ("Own runs, two ranks", 30, 0.3, 0.4)],
)
def test_the_errors_of_the_rows_that_were_not_fitted_are_small(
    group: str, many: int, median: float, close: float
) -> None:
    tested = [row for row in plan.groups(plan.rows())[group] if not row["fitted"]]
    assert len(tested) >= many
    assert plan.median_error(tested) < median
    assert sum(abs(plan.error(row)) <= plan.CLOSE for row in tested) >= close * len(tested)


def test_every_publication_and_device_has_rows() -> None:
    rows = plan.rows()
    assert len({row["id"] for row in rows}) == len(rows)
    publications = {row["publication"] for row in rows}
    assert publications >= {
        "BERT Meets GPUs (NVIDIA DeepLearningExamples)", "BERT in 76 minutes (LAMB)", "DeepSpeed",
        "MLPerf Training 3.1", "MosaicBERT", "Perseus-BERT (Alibaba Cloud)", "SQuAD in 30 minutes (Determined)",
        "transformers", "Lambert, one H200", "Lambert, 2 cores (AMX)", "Lambert, two ranks (Zen 5)",
        "Lambert, two nodes (EPYC)",
    }  # fmt: skip
    devices = {row["device"] for row in rows if isinstance(row["device"], str)}
    assert {"V100-32GB", "A100-80GB", "H100", "H200", "TPU-v3", "P100", "K80"} <= devices
    assert {1, 3472} <= {row["devices"] for row in rows}
    assert sum(row["fitted"] for row in rows) <= 7


def test_the_documentation_has_the_tables_of_these_rows() -> None:
    assert plan.tables() in (ROOT / "benchmarks" / "plan" / "README.md").read_text(encoding="utf-8")


def test_predictions_do_not_depend_on_the_kernels_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [plan.predict_row(row) for row in plan.rows()]
    monkeypatch.setenv("LAMBERT_NATIVE", "0")
    assert [plan.predict_row(row) for row in plan.rows()] == before


def test_the_errors_are_stated_as_they_are() -> None:
    tested = [row for row in plan.rows() if not row["fitted"]]
    published = [row for row in plan.groups(tested)["Published runs"] if not row["fitted"]]
    (all_, median, close), (many, other, near) = (
        (len(some), f"{plan.median_error(some):.0%}", sum(abs(plan.error(row)) <= plan.CLOSE for row in some))
        for some in (tested, published)
    )
    for page, words in (
        (
            "docs/plan.md",
            f"with {many} published runs to which its constants were not fitted: the median error of the time is "
            f"{other}, and {near} are within 20%. Over all {all_} runs with our own, the median error is {median}, and "
            f"{close} are within 20%",
        ),
        ("docs/numbers.md", f"median error {other} over {many} published runs, {median} over {all_} with our own"),
        (
            "docs/numbers.md",
            f"within 20% of {near} of {many} published runs that its constants were not fitted to, "
            f"and of {close} of {all_} with our own",
        ),
        (
            "CHANGELOG.md",
            f"Over {many} published runs that were not fitted, the median error of the time is {other}, "
            f"over all {all_} with our own",
        ),
    ):
        assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split()), page


def test_the_bound_of_mrpc_on_a_k80_is_kept() -> None:
    (row,) = (row for row in plan.rows() if row["id"] == "hf-mrpc-v100")
    assert plan.predict_row({**row, "device": "K80", "precision": "float32"}) < 10 / 60
