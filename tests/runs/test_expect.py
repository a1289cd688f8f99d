"""The table [expect] of a recipe: what it accepts, and that a run does not depend on it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

from lambert.commands import parse
from lambert.core import settings
from lambert.core.errors import UsageError
from lambert.runs.expect import expectation

Lambert = Callable[..., Any]

GOOD: dict[str, Any] = {
    "source": "lambert pretrain run.toml, seeds 1 to 3",
    "seeds": 3,
    "every": 2,
    "losses": [{"update": 2, "low": 4.5, "high": 5.5}, {"update": 8, "low": 4.0, "high": 5.0}],
    "scores": [{"name": "mlm", "mean": 4.4, "deviation": 0.1, "seeds": 3}],
    "utilisation": [0.1, 0.2],
    "data": {"the corpus": "aa"},
    "environment": {"precision": ["float32"]},
}


def band(update: int = 2, low: float = 1.0, high: float = 2.0) -> dict[str, Any]:
    return {"update": update, "low": low, "high": high}


def score(**other: Any) -> list[dict[str, Any]]:
    return [{"name": "mlm", "mean": 1.0, "deviation": 0.1, "seeds": 2, **other}]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"source": " "}, "expect.source is empty: name the command and the log"),
        ({"source": None}, "source is missing"),
        ({"seeds": None}, "seeds is missing"),
        ({"seeds": 0}, "expect.seeds = 0 must be at least 1"),
        ({"seeds": 2.5}, "seeds is of the wrong type"),
        ({"every": 0}, "expect.every = 0 must be at least 1"),
        ({"losses": None, "scores": None}, "[expect] has neither losses nor scores"),
        ({"losses": [band(low=3.0)]}, "the band of update 2 is from 3.0 to 2.0; low must be at most high"),
        ({"losses": [band(high=float("inf"))]}, "a row of losses: high is of the wrong type or too large"),
        ({"losses": [band(low=float("nan"))]}, "a row of losses: low is of the wrong type or too large"),
        ({"losses": [band(3)]}, "update 3 must be a multiple of expect.every = 2, from 2 on"),
        ({"losses": [band(0)]}, "update 0 must be a multiple"),
        ({"losses": [band(4), band(2)]}, "update 2 follows update 4; the updates must increase"),
        ({"losses": [band(4), band(4)]}, "update 4 follows update 4; the updates must increase"),
        ({"losses": [{"update": 2, "low": 1.0}]}, "a row of losses: high is missing"),
        ({"losses": [{**band(), "mean": 1.0}]}, "a row of losses: mean is unknown"),
        ({"losses": 3}, "losses is not a list"),
        ({"losses": [3]}, "a row of losses is not a table"),
        ({"scores": score(deviation=-1.0)}, "'mlm' has the mean 1.0, the deviation -1.0 and 2 seeds"),
        ({"scores": score(mean=float("nan"))}, "a row of scores: mean is of the wrong type or too large"),
        ({"scores": score() * 2}, "expect.scores has 'mlm' twice"),
        ({"utilisation": [0.3, 0.2]}, "expect.utilisation = [0.3, 0.2] must be two shares"),
        ({"utilisation": [0.3]}, "expect.utilisation = [0.3] must be two shares"),
        ({"data": {"the corpus": 3}}, "data is not a table of texts"),
        ({"environment": {"precision": "float32"}}, "environment is not a table of lists of texts"),
        ({"loses": []}, "run.toml: unknown setting expect.loses. Did you mean expect.losses?"),
    ],
)
def test_a_wrong_table_is_one_line(table: dict[str, Any], said: str) -> None:
    given = {name: value for name, value in {**GOOD, **table}.items() if value is not None}
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        expectation(given, "run.toml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("table", [3, [], "losses"])
def test_what_is_no_table_is_one_line(table: object) -> None:
    with pytest.raises(UsageError, match="it is not a table"):
        expectation(table, "run.toml")


def test_it_reads_back_equal() -> None:
    found = expectation(GOOD, "run.toml")
    assert expectation(settings.as_dict(found), "again") == found
    assert settings.plain(found) == GOOD


TABLE = """
[expect]
source = "a log"
seeds = 2
losses = [{ update = 10, low = 1.0, high = 9.0 }]
"""


def test_runs_accept_it_and_are_the_same(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(f'corpus = "{corpus}"\nout = "{tmp_path / "run"}"\n[train]\nsteps = 4\nsave_every = 2\n')
    described = tmp_path / "described.toml"
    described.write_text(plain.read_text() + TABLE)
    expected = parse.settings(["pretrain", str(described), "--model.layers", "1"])
    assert expected.expect.source == "a log"
    assert lambert("pretrain", described, **small).code == 0
    assert parse.settings(["pretrain", str(tmp_path / "run/config.toml")]).expect == expected.expect
    # Neither adding, changing nor removing it makes another run.
    for recipe in (plain, described):
        done = lambert("pretrain", recipe, **small)
        assert (done.code, "has all its 4 updates already" in done.out) == (0, True), done.err
    described.write_text(described.read_text().replace("low = 1.0", "low = 10.0"))
    one_line(lambert("pretrain", described, **small), 2, "low must be at most high")


def test_fine_tuning_accepts_it(tmp_path: Path) -> None:
    recipe = tmp_path / "tune.toml"
    recipe.write_text(f'data = "d"\nout = "o"\ninit = "m"\n{TABLE}')
    assert parse.settings(["finetune", str(recipe)]).expect.seeds == 2
    assert parse.settings(["finetune", str(recipe)], {"expect": None}).expect is None
