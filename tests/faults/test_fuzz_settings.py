"""Command lines and recipes that nobody meant: each ends with an exit code that says so, and never as a bug of ours.

LAMBERT_FUZZ_EXAMPLES is the number of examples, few in the suite.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, setting_names, stage
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from patience import limited

from lambert.commands import parse as commands
from lambert.core.errors import UsageError
from lambert.verb import all_verbs
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]

EXAMPLES = int(os.environ.get("LAMBERT_FUZZ_EXAMPLES", "60"))
fuzz = examples(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
VERBS = sorted(name for name, verb in all_verbs().items() if verb.settings and setting_names(stage(name)[1]))
RECIPES = sorted(name for name, verb in all_verbs().items() if verb.takes == "recipe")

hostile = st.one_of(
    st.sampled_from(["", " ", "nan", "inf", "-inf", "-1", "0", "1", "1e300", "1e-300", str(2**63), "9" * 5000, "true"]),
    st.sampled_from(["null", "None", "[]", "{}", "[1, 2", '{"a": 1}', "/dev/null", "..", "a:b", ":", "-", "--", "%s"]),
    st.sampled_from(["auto", "float32", "bert", "base", "pairs", "lamb", "stop", "x" * 5000, "\x7f", "\u2028", "🦙"]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6),
    st.integers().map(str),
    st.floats().map(str),
)


SETTINGS = {name: setting_names(stage(name)[1]) for name in VERBS}


def misspelt(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from([name[1:], name + "s", name.upper(), f"{name}.{name}", f".{name}", name.replace(".", "..")])


def some_names(verb: str) -> st.SearchStrategy[str]:
    known = st.sampled_from(SETTINGS[verb])
    return st.one_of(known, known, known, known.flatmap(misspelt))


def flags(verb: str) -> st.SearchStrategy[list[str]]:
    def flag(name: str, value: str, form: int) -> list[str]:
        option = f"--{name.replace('_', '-')}"
        return [[f"{option}={value}"], [option, value], [option, value, value], [option]][form]

    one = st.builds(flag, some_names(verb), hostile, st.sampled_from([0, 0, 0, 1, 2, 3])) | hostile.map(lambda v: [v])
    return st.lists(one, max_size=4).map(lambda parts: [token for part in parts for token in part])


@pytest.fixture
def parse(lambert: Lambert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lambert:
    """The command line without what it would run."""
    call = commands.call
    monkeypatch.setattr(commands, "call", lambda tokens: call(tokens, run=lambda *settings, say: None))
    monkeypatch.chdir(tmp_path)
    return limited(10)(lambert)


def answered(called: Any) -> None:
    assert called.code in (0, 2, 3, 4), called.err
    if called.code:
        one_line(called, called.code)
    assert not Path("crash.txt").exists()


def test_command_lines(parse: Lambert) -> None:
    @fuzz
    @given(st.sampled_from(VERBS).flatmap(lambda verb: st.tuples(st.just(verb), flags(verb))))
    def check(line: tuple[str, list[str]]) -> None:
        verb, tokens = line
        needed = {"prepare": ["--input=t", "--out=o"], "pretrain": ["--corpus=c", "--out=o"], "launch": []}
        answered(parse(verb, *needed.get(verb, []), *tokens, *(["pretrain"] if verb == "launch" else [])))

    check()


@pytest.mark.parametrize("word", ["", ".", "a//b", "a/./b", "./", "a/"])
def test_words_that_are_another_path(word: str, parse: Lambert) -> None:
    answered(parse("prepare", "--input=t", "--out=o", word))


plain = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6),
    st.sampled_from(["auto", "nan", "float32"]),
)  # fmt: skip
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "lr", "steps"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def written(value: Any) -> str:
    """A value as TOML; tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def recipes(verb: str) -> st.SearchStrategy[str]:
    line = st.tuples(some_names(verb), values).map(lambda pair: f"{pair[0]} = {written(pair[1])}\n")
    return st.lists(line, max_size=4).map("".join)


def test_recipes(parse: Lambert, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"

    @fuzz
    @given(st.sampled_from(RECIPES).flatmap(lambda verb: st.tuples(st.just(verb), recipes(verb))))
    def check(recipe: tuple[str, str]) -> None:
        verb, text = recipe
        path.write_text(text, encoding="utf-8")
        answered(parse(verb, path))

    check()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbfseed = 1", b"a = " + b"[" * 100_000, b"a." * 500 + b"b = 1",
        b"seed = " + b"9" * 5000, b"[" * 1000, b"seed = 1\nseed = 2", b"[train]\n[train]", b"train = 1",
        b"seed = [train]",
        b"[[train]]\nsteps = 1", b"seed = 1979-05-27", b"x = '" + b"x" * 1_000_000 + b"'", bytes(range(256)) * 1000,
        b"a = " + b"{b = " * 2000 + b"1" + b"}" * 2000, b"a = " + b"[" * 300 + b"]" * 300,
        b"a." * 50_000 + b"b = 1", b"seed = 1\n[" + b"'a b' . " * 50_000 + b"b]", b"# " + b"x" * 2**20,
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", RECIPES)
def test_files_that_are_no_recipe(verb: str, content: bytes, parse: Lambert, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    answered(parse(verb, path))


ends = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.dates(), st.datetimes(), st.text(max_size=3),
    st.sampled_from([10**400, -(10**400), 2**53, 5e-324, 1e308, -1e308, 1e-5, 0, 1]),
)  # fmt: skip
spaces = st.dictionaries(
    st.sampled_from(["optim.lr", "train.steps", "train.batch_size", "task.max_length", "seed", "optim", "x"]),
    st.dictionaries(st.sampled_from(["low", "high", "step"]), ends, max_size=3)
    | st.fixed_dictionaries({"low": ends, "high": ends}, optional={"step": ends, "log": st.booleans() | ends})
    | st.fixed_dictionaries({"choices": st.lists(ends | st.lists(ends, max_size=2), max_size=3) | ends})
    | ends,
    min_size=1, max_size=3,
)  # fmt: skip


def test_spaces_of_sweeps() -> None:
    @fuzz
    @given(spaces)
    def check(space: dict[str, Any]) -> None:
        with limited(5), suppress(UsageError):
            for dimension in dimensions(space, FinetuneConfig):
                assert dimension.distribution is not None
                assert str(dimension)
                assert 0 < len(dimension.points()) <= 1_000_001

    check()


REAL = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(-2, 2**63),
        "model__layers": st.integers(-1, 2) | st.just(10**9),
        "model__hidden": st.sampled_from([0, 1, 2, 7, 16, 10**9]),
        "model__heads": st.sampled_from([1, 2, 3]),
        "model__intermediate": st.sampled_from([1, 5, 10**9]),
        "model__segment_types": st.integers(0, 3),
        "model__init_range": st.sampled_from(["nan", "1e-30", "1e18", "0.1"]),
        "model__norm_eps": st.sampled_from(["0", "1e18", "nan"]),
        "packing__mode": st.sampled_from(["pairs", "balanced", "full", "google"]),
        "packing__sequence_length": st.sampled_from([8, 9, 48, 64, 65, 32768]),
        "packing__shortest": st.sampled_from([1, 40, 100, 2**31 - 1]),
        "masking__rate": st.sampled_from(["1e-9", "1", "0.5", "inf"]),
        "masking__max_predictions": st.sampled_from([1, 2**31 - 1]),
        "optim__name": st.sampled_from(["lamb", "adamw", "radam"]),
        "optim__lr": st.sampled_from(["1e-300", "1e18", "1"]),
        "optim__max_grad_norm": st.sampled_from(["0", "1e-300", "1e18"]),
        "optim__warmup_ratio": st.sampled_from(["0.999", "0.5"]),
        "train__batch_size": st.sampled_from([1, 2, 3, 9]),
        "train__micro_tokens": st.sampled_from([0, 1, 2**31 - 1]),
        "train__epochs": st.sampled_from(["1e-300", "0.1", "1e9", "nan"]),
        "train__deterministic": st.booleans(),
        "train__deterministic_parts": st.sampled_from([1, 3, 2**30]),
        "train__compare_every": st.sampled_from([1, 2**31 - 1]),
        "guard__skips": st.sampled_from([1, 2]),
        "log__every": st.sampled_from([1, 2**31 - 1]),
    },
)


def test_tiny_runs(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = iter(range(10**9))

    @examples(fuzz, max_examples=max(8, EXAMPLES // 50))
    @given(REAL)
    def check(chosen: dict[str, object]) -> None:
        out = tmp_path / f"run{next(runs)}"
        flags = small | {"train__steps": 2, "train__device": "cpu"} | chosen
        with limited():
            called = lambert("pretrain", corpus=corpus, out=out, **flags)
        assert called.code in (0, 2, 3, 4, 5), called.err
        assert not Path("crash.txt").exists()

    check()
