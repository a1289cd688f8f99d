"""Settings from recipes and flags, from TOML and back, and the command as a process."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest import mock

import pytest
from clusters import flags
from commands import stage
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from patience import HANGS

from lambert.commands import parse
from lambert.core import errors
from lambert.core import settings as toml
from lambert.verb import all_verbs

Lambert = Callable[..., Any]


def parsed(*tokens: object, verb: str = "pretrain") -> Any:
    """The settings that a command line comes to."""
    module, _ = stage(verb)
    name = f"run_{verb}" if verb in ("import", "export") else "run"
    with mock.patch.object(module, name) as run:
        parse.call([verb, *map(str, tokens)])
    return run.call_args.args[0]


def test_flags_override_the_recipe(recipe: Path) -> None:
    assert parsed(recipe).train.batch_size == 4
    config = parsed(recipe, "--train.batch-size", 5, "--optim.lr", "1e-4", "--out", "other", "--keep-moments")
    assert (config.train.batch_size, config.train.steps, config.optim.lr) == (5, 7, 1e-4)
    assert (config.corpus, config.out, config.keep_moments) == (Path("c"), Path("other"), True)
    assert config.optim.betas == (0.8, 0.9)
    assert parsed(recipe, "--train.batch_size", 6).train.batch_size == 6


def test_a_recipe_may_be_written_as_a_path_from_here(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    assert parsed(f"./{recipe.name}").train.steps == 7


# --- settings to TOML and back ---


def values(kind: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a field's type, inside of the bounds that most fields have."""
    if dataclasses.is_dataclass(kind):
        return instances(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind == str | Path:
        return values(str, name)
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(st.none() if part is type(None) else values(part, name) for part in get_args(kind))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return st.lists(values(parts[0], name), max_size=3, unique=True).map(tuple)
        return st.tuples(*(values(part, name) for part in parts))
    if get_origin(kind) is Mapping:
        return st.dictionaries(values(str, name), values(get_args(kind)[1], name), max_size=2)
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
    shares = st.floats(0, 0.99) | st.just(math.inf) if name == "trust" else st.floats(0, 0.99)
    return {bool: st.booleans(), int: st.integers(1, 4096), float: shares, str: text, Path: text.map(Path)}[kind]


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Settings that their own checks accept. About half of the fields are at their defaults, also those that do not go
    with the fields before them."""

    def accepted(given: dict[str, Any]) -> Any:
        try:
            return kind(**given)
        except errors.UsageError:
            return None

    def build(given: dict[str, Any]) -> Any:
        kept = {name: given[name] for name in required}
        config = accepted(kept)
        for name in [name for name in optional if name in given]:
            extended = accepted({**kept, name: given[name]})
            if config is None or extended is not None:
                kept[name], config = given[name], extended
        return config

    hints = get_type_hints(kind)
    drawn = {field.name: values(hints[field.name], field.name) for field in dataclasses.fields(kind)}
    needed = {field.name for field in dataclasses.fields(kind) if field.default is field.default_factory}
    required = {name: value for name, value in drawn.items() if name in needed}
    optional = {name: value for name, value in drawn.items() if name not in needed}
    built = st.fixed_dictionaries(required, optional=optional).map(build)
    return built.filter(lambda config: config is not None)


@pytest.mark.parametrize("verb", [name for name, verb in all_verbs().items() if verb.takes == "recipe"])
def test_settings_read_back_equal(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"

    @examples(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(instances(stage(verb)[1]))
    def check(config: Any) -> None:
        path.write_text(toml.text(config), encoding="utf-8")
        assert parsed(path, verb=verb) == config

    check()


def test_a_file_may_be_called_what_looks_like_a_list(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('text = ["["]\n', encoding="utf-8")
    assert parsed(path, verb="bench").text == (Path("["),)


# --- the command as a process ---


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "from lambert import cli\nfrom lambert.commands import parse\n"
        "def call(tokens):\n    for _ in range(10000): print('x' * 1000)\n"
        "parse.call = call\ncli.main(['doctor'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"x" * 1000 + b"\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(HANGS) == 0


def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lambert", "pretrain", "missing.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lambert: No such recipe: missing.toml.")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_streams_that_nobody_reads(closed: str, tmp_path: Path) -> None:
    in_shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable]
    done = subprocess.run([*in_shell, "-m", "lambert", "pretrain", "no.toml"], check=False, cwd=tmp_path)
    assert done.returncode == 2
    code = """
import os, pathlib, subprocess, sys
from lambert.engine import process, progress
process.prepare_streams()
with open("kept", "w") as file:
    subprocess.run(["sh", "-c", "echo lost; echo lost >&2; cat"])  # which inherits the streams
    with progress.progress(1, "task") as bar:
        bar.advance()
    print(sys.stdin.read())
    file.write(str(file.fileno()))
"""
    subprocess.run([*in_shell, "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert int((tmp_path / "kept").read_text()) > 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_of_standard_output_lacks_is_escaped(encoding: str) -> None:
    code = """
from lambert.commands import parse
from lambert.core.files import json_text
from lambert.engine import process
process.prepare_streams()
parse._say(json_text({"ü": "€ 😀"}))
"""
    variables = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=variables)
    assert json.loads(done.stdout.decode(encoding)) == {"ü": "€ 😀"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_behind_both_streams_is_a_problem_of_the_machine() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "lambert", "--help"]
        assert subprocess.run(command, check=False, stdout=full, stderr=full).returncode == 4


SLOW_TO_IMPORT = ("torch._dynamo", "torch._inductor", "sympy", "torch.distributed.elastic", "transformers", "rich")


def test_training_imports_nothing_that_only_others_need(corpus: Path, small: dict[str, object], tmp_path: Path) -> None:
    """A rank that replaces a killed one imports all of it anew: torch's compiler alone would double the time."""
    flags = small | {"corpus": corpus, "out": tmp_path / "run", "train__steps": 1, "train__device": "cpu"}
    tokens = ["pretrain", *(f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in flags.items())]
    call = f"try: lambert.cli.main({tokens!r})\nexcept SystemExit as left: assert not left.code, left.code"
    code = f"import sys, lambert.cli\n{call}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stderr.split()
    assert not set(SLOW_TO_IMPORT) & set(done.stderr.split())


def test_doctor_prints_json(lambert: Lambert) -> None:
    assert any(finding["what"] == "torch" for finding in json.loads(lambert("doctor", "--json").out))


@pytest.mark.parametrize("tokens", [["report", "x"], ["doctor"], ["prepare", "--input=x", "--out=y"]])
def test_settings_can_be_read_where_pydantic_was_imported(tokens: list[str]) -> None:
    pytest.importorskip("pydantic")  # cyclopts then validates with it
    assert parse.settings(tokens)


def test_nobody_reads_standard_output(corpus: Path, small: dict[str, object], tmp_path: Path) -> None:
    """The run goes on, and the command ends as if it had been read."""
    settings = {**small, "corpus": corpus, "out": tmp_path / "run", "train__steps": 4}
    code = "from lambert.cli import main; main()"
    command = [sys.executable, "-c", code, "pretrain", *flags(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), (tmp_path / "run" / "model").is_dir()) == (0, True), said
