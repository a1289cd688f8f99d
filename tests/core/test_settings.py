"""Settings to TOML and back, and what is said about wrong names, types, numbers and files."""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from lambert.core import settings
from lambert.core.errors import UsageError
from lambert.core.settings import check


@dataclasses.dataclass(frozen=True)
class Optim:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Config:
    out: Path
    inputs: tuple[Path, ...] = ()
    steps: int | None = None
    mode: Literal["a", "b"] = "a"
    optim: Optim = dataclasses.field(default_factory=Optim)


@dataclasses.dataclass(frozen=True)
class Named:
    name: str


PLAIN = {"out": "o", "inputs": ["x", "y"], "mode": "a", "optim": {"lr": 0.1, "betas": [0.9, 0.99]}}


def test_toml_holds_all_that_is_set() -> None:
    config = Config(Path("o"), (Path("x"), Path("y")))
    assert settings.as_dict(config) == PLAIN
    assert settings.as_dict(dataclasses.replace(config, steps=3)) == PLAIN | {"steps": 3}
    assert tomllib.loads(settings.text(config)) == PLAIN


def test_dotted_names() -> None:
    nested = {"a": 1, "t": {"b": 2, "u": {"c": [3]}}, "empty": {}}
    assert settings.flatten(nested) == {"a": 1, "t.b": 2, "t.u.c": [3]}


def test_what_is_none_elsewhere_is_left_out() -> None:
    values = {"a": 1, "b": 2, "t": {"c": 3, "d": 4}, "u": {"e": 5}}
    unset = {"a": None, "b": 7, "t": {"c": None}, "u": None, "other": None}
    assert settings.drop_unset(values, unset) == {"b": 2, "t": {"d": 4}}
    assert settings.drop_unset(values, {}) == values


# --- types ---


@pytest.mark.parametrize(
    ("kind", "values", "taken"),
    [
        (Optim, {"lr": 1, "betas": [0.5, 1]}, {"lr": 1, "betas": (0.5, 1)}),
        (Config, {"steps": None, "mode": "b"}, {"steps": None, "mode": "b"}),
        (Config, {"steps": 2**31 - 1}, {"steps": 2**31 - 1}),
    ],
)
def test_values_of_a_file_become_arguments(kind: type, values: dict[str, Any], taken: dict[str, Any]) -> None:
    assert settings.check_types(kind, values) == taken


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Optim, "lr", "0.1"),
        (Optim, "lr", True),
        (Optim, "lr", None),
        (Optim, "betas", [0.5, "1"]),
        (Optim, "betas", 0.5),
        (Config, "steps", 2.0),
        (Config, "steps", 2**31),
        (Config, "mode", "c"),
        (Config, "optim", {"lr": 0.1}),
    ],
)
def test_values_of_another_type_are_refused(kind: type, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} is of the wrong type or too large$"):
        settings.check_types(kind, {name: value})


def test_an_unknown_name_in_a_file_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^momentum is unknown$"):
        settings.check_types(Optim, {"lr": 0.1, "momentum": 0.9})


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    settings.check_numbers(Config, {"steps": 2.0, "optim": {"lr": 1, "betas": [0, 1]}})
    with pytest.raises(UsageError, match=r"^optim\.betas must be a number, not \"x\"\.$"):
        settings.check_numbers(Config, {"optim": {"betas": [0.9, "x"]}})


# --- names ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optim.lrr", "r: unknown setting optim.lrr. Did you mean optim.lr?"),
        ("optm.lr", "r: unknown table [optm]. Did you mean [optim]?"),
        ("sed", "r: unknown setting sed. Did you mean seed?"),
        ("zzz", "r: unknown setting zzz."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, message: str) -> None:
    assert str(settings.unknown_name("r", name, ["seed", "optim.lr", "train.steps"])) == message


# --- ranges ---


@dataclasses.dataclass
class Given:
    share: float = 0.5
    count: int | None = 1
    pair: tuple[float, float] = (0.0, 0.0)
    on: bool = True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Given(share=1.0), "t.share = 1.0 must be at least 0 and below 1"),
        (Given(share=math.nan), "t.share = nan must be a number from 0 to below 1"),
        (Given(count=0), "t.count = 0 must be above 0"),
        (Given(count=2**31), "t.count = 2147483648 must be at most 2147483647"),
        (Given(pair=(0.0, -1.0)), r"t.pair = \(0.0, -1.0\) must be at least 0"),
        (Given(pair=(0.0, 1e19)), r"t.pair = \(0.0, 1e\+19\) must be at most 1e\+18"),
        (Given(pair=(math.inf, 0.0)), "t.pair = .* must be a finite number"),
    ],
)
def test_the_message_names_the_range(given: Given, message: str) -> None:
    check(Given(count=None), "t.", share="[0, 1)", count="(0, inf)")
    check(Given(pair=(0.0, math.inf)), pair="[0, inf]")
    with pytest.raises(UsageError, match=f"^{message}"):
        check(given, "t.", share="[0, 1)", count="(0, inf)")


@pytest.mark.parametrize("config", [Given(share="1"), Given(count=1.5), Given(pair=[0.0]), Given(on=1), Named(5)])  # type: ignore[arg-type]
def test_a_value_of_another_type_is_refused(config: Any) -> None:
    check(Given(share=np.float64(1), count=np.int64(1)))
    with pytest.raises(UsageError, match=r"^t\.(share|count|pair|on|name) must be .*, not "):
        check(config, "t.")


@pytest.mark.parametrize("config", [Config(Path("o\0")), Config(Path("o"), (Path("x"), Path("\0"))), Named("n\0")])
def test_a_nul_character_is_refused(config: Any) -> None:
    with pytest.raises(UsageError, match=r"^t\.(out|inputs|name) = '.*\\x00' has a NUL character: remove it\.$"):
        check(config, "t.")


# --- files ---


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbfseed = 1\r\n")
    assert settings.read(tmp_path / "r.toml") == {"seed": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'seed = "\xff"\n', r"r\.toml is not a TOML recipe: 'utf-8' codec can't decode byte 0xff"),
        (b"seed = 1\nseed =\n", r"r\.toml is not a TOML recipe: .*line 2"),
        (b"seed = " + b"9" * 5000, r"r\.toml is not a TOML recipe: "),
        (b"a = " + b"[" * 100_000, r"r\.toml is not a TOML recipe: its arrays or tables are nested too deeply\."),
        (b"# " + b"x" * 2**20, r"r\.toml is not a TOML recipe: it is larger than 1,048,576 bytes\."),
        (b"seed = 1\n" + b"a." * 100 + b"b = 1", r"r\.toml:2 is not TOML of a recipe: a key has more than 100 parts\."),
    ],
)
def test_files_that_cannot_be_read(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        settings.read(tmp_path / "r.toml")


def test_files_at_the_limits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    content = b"a." * 99 + b"b = 1\r\nx = 2 #"
    path.write_bytes(content + b"x" * (2**20 - len(content)))
    assert settings.flatten(settings.read(path)) == {"a." * 99 + "b": 1, "x": 2}
    with pytest.raises(UsageError, match=r"^No such recipe: .*other\.toml\.$"):
        settings.read(tmp_path / "other.toml")
