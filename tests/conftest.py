"""The command line in this process, and a corpus and an encoder as small as they can be, for all tests of verbs."""

import contextlib
import gc
import io
import os
import random
import re
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from commands import Called
from labelled import labelled, tuned

__all__ = ["labelled", "tuned"]  # fixtures

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: results to the bit depend on it
if not os.environ.get("LAMBERT_TEST_GPU"):  # what runs on "auto" is the same everywhere; `make test-gpu` asks for it
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's job in the background; what tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = lambda handle: None  # no test cuts the power, and a run would wait some twenty times for the disk
gc.disable()  # until the tests are collected: searches for garbage would take a quarter of that time
# An example may wait long on a machine with other work; the examples are those of the run before, so that no run fails
# by luck. Other seeds: make test-fuzz.
hypothesis.settings.register_profile("lambert", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("lambert")


WORDS = re.findall(
    r"\w+",
    "the a river stone boat morning light house garden king window bird walked slowly under bright saw found lost "
    "near old green quiet never always from with toward letter road",
)


Lambert = Callable[..., Called]


def _part(text: str) -> tuple[int, int]:
    """`3/8` as (3, 8)."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=_part, default=(1, 1), metavar="K/N", help="Part K of N parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one part of the tests. The hash of its name says in which part a test is, whatever others there are."""
    part, parts = config.getoption("--part")
    others = {item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part - 1}
    if others:
        config.hook.pytest_deselected(items=[*others])
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """From now on, garbage is searched for, but not among the tests and the modules that they import."""
    gc.freeze()
    gc.enable()


def _lambert(*arguments: object, stdin: str = "", **settings: object) -> Called:
    """`lambert ARGUMENTS --setting value ...`; in the names of settings "__" is the dot."""
    from lambert import cli

    tokens = [str(argument) for argument in arguments]
    for name, value in settings.items():
        tokens += [f"--{name.replace('__', '.').replace('_', '-')}={value}"]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        cli.main(tokens)
    code: Any = left.value.code
    return Called(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def lambert() -> Lambert:
    return _lambert


def story(number: int, sentences: int = 8) -> str:
    """A document of its own words, the same in every run."""
    draw = random.Random(number)
    return " ".join(" ".join(draw.choices(WORDS, k=8)).capitalize() + "." for _ in range(sentences))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents, one a line."""
    path = tmp_path_factory.mktemp("texts") / "stories.txt"
    path.write_text("".join(f"{story(number)}\n" for number in range(40)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(texts: Path) -> Path:
    """The documents prepared, with at most 160 pieces."""
    out = texts.parent / "corpus"
    done = _lambert("prepare", input=texts, out=out, documents="line", vocabulary=160, heldout=0.2, workers=1)
    assert done.code == 0, done.err
    return out


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of pre-training, without a model."""
    path = tmp_path / "run.toml"
    path.write_text('corpus = "c"\nout = "r"\n[train]\nsteps = 7\nbatch_size = 4\n[optim]\nbetas = [0.8, 0.9]\n')
    return path


SMALL = {
    "model__layers": 1,
    "model__hidden": 32,
    "model__heads": 2,
    "model__intermediate": 64,
    "model__positions": 64,
    "packing__sequence_length": 48,
    "train__batch_size": 8,
    "log__every": 2,
}


@pytest.fixture
def small() -> dict[str, object]:
    """Settings of a pre-training of one layer, width 32."""
    return dict(SMALL)


@pytest.fixture
def same(corpus: Path, small: dict[str, object]) -> dict[str, object]:
    """The settings of the fixture `pretrained`, but for its folder."""
    return {"corpus": corpus, **small, "train__steps": 8, "train__save_every": 2, "train__evaluate_every": 4}


@pytest.fixture(scope="session")
def pretrained(corpus: Path) -> Path:
    """The run folder of eight updates, with a checkpoint every other update."""
    out = corpus.parent / "pretrained"
    done = _lambert(
        "pretrain", corpus=corpus, out=out, **SMALL, train__steps=8, train__save_every=2, train__evaluate_every=4
    )
    assert done.code == 0, done.err
    return out
