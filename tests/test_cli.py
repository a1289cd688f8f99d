"""Recipes, overrides, help, and every failure as one line with an exit code."""

import ast
import dataclasses
import errno
import importlib
import inspect
import json
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from patience import HANGS

from lambert import __version__, cli
from lambert.core import errors
from lambert.core import settings as toml

Lambert = Callable[..., Any]


def stage(verb: str) -> tuple[ModuleType, Any]:
    module = importlib.import_module(f"lambert.verbs.{cli.VERBS[verb].module}")
    return module, getattr(module, cli.VERBS[verb].settings)


def parsed(*tokens: object, verb: str = "pretrain") -> Any:
    """The settings that a command line comes to."""
    module, _ = stage(verb)
    name = f"run_{verb}" if verb in ("import", "export") else "run"
    with mock.patch.object(module, name) as run:
        cli.call([verb, *map(str, tokens)])
    return run.call_args.args[0]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('corpus = "c"\nout = "r"\n[train]\nsteps = 7\nbatch_size = 4\n[optim]\nbetas = [0.8, 0.9]\n')
    return path


def test_flags_override_the_recipe(recipe: Path) -> None:
    assert parsed(recipe).train.batch_size == 4
    config = parsed(recipe, "--train.batch-size", 5, "--optim.lr", "1e-4", "--out", "other", "--keep-moments")
    assert (config.train.batch_size, config.train.steps, config.optim.lr) == (5, 7, 1e-4)
    assert (config.corpus, config.out, config.keep_moments) == (Path("c"), Path("other"), True)
    assert config.optim.betas == (0.8, 0.9)
    assert parsed(recipe, "--train.batch_size", 6).train.batch_size == 6


# --- settings to TOML and back ---


def values(kind: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a field's type, inside of the bounds that most fields have."""
    if dataclasses.is_dataclass(kind):
        return instances(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if isinstance(kind, UnionType):
        inner = next(part for part in get_args(kind) if part is not type(None))
        return st.none() | values(inner, name)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return st.lists(values(parts[0], name), max_size=3, unique=True).map(tuple)
        return st.tuples(*(values(part, name) for part in parts))
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
    shares = st.floats(0, 0.99) | st.just(math.inf) if name == "trust" else st.floats(0, 0.99)
    return {bool: st.booleans(), int: st.integers(1, 4096), float: shares, str: text, Path: text.map(Path)}[kind]


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Settings that their own checks accept, about half of the fields at their defaults."""

    def build(given: dict[str, Any]) -> Any:
        try:
            return kind(**given)
        except errors.UsageError:
            return None

    hints = get_type_hints(kind)
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        needed = field.default is field.default_factory
        (required if needed else optional)[field.name] = values(hints[field.name], field.name)
    built = st.fixed_dictionaries(required, optional=optional).map(build)
    return built.filter(lambda config: config is not None)


@pytest.mark.parametrize("verb", [name for name, verb in cli.VERBS.items() if verb.takes == "recipe"])
def test_settings_read_back_equal(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"

    @examples(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(instances(stage(verb)[1]))
    def check(config: Any) -> None:
        path.write_text(toml.text(config), encoding="utf-8")
        assert parsed(path, verb=verb) == config

    check()


def test_a_file_may_be_called_what_looks_like_a_list(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('text = ["["]\n', encoding="utf-8")
    assert parsed(path, verb="bench").text == (Path("["),)


# --- help ---


def documented(kind: Any, prefix: str = "") -> dict[str, str]:
    """The docstring under each field, by the flag that sets it."""
    under = {}
    for one in kind.__mro__[-2::-1]:  # a field that a class gives another default has a docstring of its own
        tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for node, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                under[ast.unparse(node.target)] = str(text.value.value)
    found: dict[str, str] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        nested = [part for part in (hints[field.name], *get_args(hints[field.name])) if dataclasses.is_dataclass(part)]
        if nested:
            found |= documented(nested[0], f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = under.get(field.name, "")
    return found


def letters(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", text)


@pytest.mark.parametrize("verb", [name for name, verb in cli.VERBS.items() if verb.takes != "script"])
def test_help_explains_every_setting(verb: str, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    shown = lambert(verb, "--help")
    assert shown.code == 0
    assert cli.VERBS[verb].line in shown.out
    lines = [letters(line) for line in shown.out.splitlines()]
    settings = documented(stage(verb)[1])
    assert len(settings) > 0
    for name, text in settings.items():
        if name == "runs":
            continue  # an argument, not a flag
        assert len(text) > 10, f"{name} has no docstring"
        flag = "from" if name == "source" else name
        assert any(letters(flag) in line and letters(text) in line for line in lines), name


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_help_begins_with_the_common_settings(verb: str, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    module, kind = stage(verb)
    assert set(module.COMMON) <= set(documented(kind))
    shown = lambert(verb, "--help").out
    assert shown.startswith(f"Usage: lambert {verb} ")
    _, common, rest, *tables = [panel.partition("\n") for panel in shown.split("╭─ ")[1:]]
    assert common[0].startswith("Common settings")
    flags = re.findall(r"^│ \*?\s+--(\S+)", common[2], re.MULTILINE)
    assert [flag.replace("-", "_") for flag in flags] == list(module.COMMON)
    assert rest[0].startswith("Other settings of the run")
    assert {"[optim]", "[train]", "[guard]", "[log]"} <= {title.split(" ")[0] for title, _, _ in tables}


def test_horovodrun_has_horovods_options(lambert: Lambert) -> None:
    shown = lambert("horovodrun", "--help")
    assert shown.code == 0
    assert all(option in shown.out for option in ("-np", "--min-np", "--timeline-filename", "--fusion-threshold-mb"))
    assert lambert("horovodrun", "-np", "2").code == 2


def test_help_and_version(lambert: Lambert) -> None:
    shown = lambert("--help")
    assert shown.code == 0
    assert all(verb in shown.out and spec.line[:40] in shown.out for verb, spec in cli.VERBS.items())
    assert lambert().out == shown.out
    assert lambert("--version").out.strip() == __version__


# --- failures ---


def one_line(called: Any, code: int, *parts: str) -> None:
    """Exactly one line on standard error, with the exit code, and no traceback anywhere."""
    assert called.code == code, called.err
    assert called.err.startswith("lambert: ")
    assert called.err.count("\n") == 1
    assert "Traceback" not in called.out + called.err
    for part in parts:
        assert part in called.err


def test_what_is_misspelt_is_answered_with_the_nearest(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("pretrian", recipe), 2, "pretrain")
    one_line(lambert("pretrain", recipe, "--train.bach-size=4"), 2, "--train.bach-size", "--train.batch-size")
    one_line(lambert("pretrain", recipe, "--optim.nmae=lamb"), 2, "--optim.name")
    recipe.write_text(recipe.read_text().replace("betas", "beta"))
    one_line(lambert("pretrain", recipe), 2, "beta", "run.toml", "Did you mean optim.betas?")
    recipe.write_text(recipe.read_text().replace("[optim]", "[optimiser]"))
    one_line(lambert("pretrain", recipe), 2, "optimiser", "run.toml")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["--train.steps=many"], ["--train.steps", "many"]),
        (["--train.precision=half"], ["--train.precision", "half", "bfloat16"]),
        (["--optim.name=lam"], ["optim.name", "lamb"]),
        (["--train.steps=0"], ["train.steps = 0"]),
        (["--packing.sequence-length=4"], ["packing.sequence_length = 4"]),
        (["--guard.action=roll back"], ["train.save_every"]),
    ],
)
def test_settings_that_cannot_be(
    settings: list[str], parts: list[str], recipe: Path, corpus: Path, tmp_path: Path, lambert: Lambert
) -> None:
    flags = [f"--corpus={corpus}", f"--out={tmp_path / 'run'}", "--model.layers=1", *settings]
    one_line(lambert("pretrain", recipe, *flags), 2, *parts)


def test_what_is_required_is_named(lambert: Lambert) -> None:
    one_line(lambert("pretrain", "--corpus=c"), 2, "--out", "requires")
    one_line(lambert("finetune", "--data=d", "--out=o"), 2, "--init")
    all_of_them = "requires --corpus, --out, (--init or --model.*) and (--train.steps or --train.epochs)."
    one_line(lambert("pretrain"), 2, all_of_them, "lambert pretrain --help")
    one_line(lambert("pretrain", "--train.epochs=1", "--model.hidden=32"), 2, "requires --corpus and --out.")
    one_line(lambert("finetune", "--out"), 2, "--out requires a value")
    one_line(lambert("import", "--out=o"), 2, "requires --from.")
    one_line(lambert("report"), 2, "requires a RUN folder: lambert report runs/NAME")
    one_line(lambert("launch"), 2, "requires a VERB: lambert launch")


def test_what_a_recipe_gives_is_not_missing(recipe: Path, lambert: Lambert) -> None:
    recipe.write_text("[train]\nsteps = 7\n[model]\nlayers = 1\n")
    one_line(lambert("pretrain", recipe, "--corpus=c"), 2, "pretrain requires --out.")


def test_all_that_is_open_is_asked_at_once(corpus: Path, tmp_path: Path, lambert: Lambert) -> None:
    called = lambert("pretrain", corpus=corpus, out=tmp_path / "run")
    one_line(called, 2, "No model: give its shape", "How long to train? Set train.steps or train.epochs.")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--seed", "1", "2", "3"], "--seed takes one value, not 3 (1 2 3). For several seeds, give the command once"),
        (["--seed=1", "2"], "--seed takes one value, not 2 (1 2)."),
        (["--optim.lr", "1e-3", "1e-4", "--seed=1"], "--optim.lr takes one value, not 2 (1e-3 1e-4)."),
        (["--log.console", "false"], "--log.console takes no value, and false follows it. Its opposite is "
         "--log.no-console."),
        (["--verify", "yes"], "Its opposite is --no-verify."),
    ],
)  # fmt: skip
def test_a_word_too_many_is_answered_with_its_flag(flags: list[str], part: str, lambert: Lambert) -> None:
    one_line(lambert("pretrain", "--corpus=c", "--out=r", *flags), 2, part)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('optim.lr = "2e-3"', 'optim.lr must be a number, not "2e-3".'),
        ('optim.betas = [0.9, "0.99"]', 'optim.betas must be a number, not "0.99".'),
        ('train.steps = "many"', 'train.steps must be a whole number, not "many".'),
        ("train.steps = 2.5", "train.steps must be a whole number, not 2.5."),
        ("train.stepz = 2", "run.toml: unknown setting train.stepz. Did you mean train.steps?"),
        ("trian.steps = 2", "run.toml: unknown table [trian]. Did you mean [train]?"),
    ],
)
def test_a_line_of_a_recipe_that_is_wrong(line: str, message: str, recipe: Path, lambert: Lambert) -> None:
    recipe.write_text(f'corpus = "c"\nout = "r"\n{line}\n')
    one_line(lambert("pretrain", recipe), 2, message)


@pytest.mark.parametrize("verb", ["serve", "sweep", "embed", "plan"])
def test_a_verb_that_does_not_exist_yet_has_a_way_out(verb: str, lambert: Lambert) -> None:
    if verb not in cli.VERBS:
        one_line(lambert(verb, "--model=m"), 2, f"There is no verb {verb} yet.", cli.NOT_YET[verb])


def test_a_file_in_the_place_of_a_recipe(tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "stories.txt"
    path.touch()
    one_line(lambert("prepare", path, "--out=o"), 2, f"not a recipe (a TOML file). Settings are flags: "
             f"--input {path}.")  # fmt: skip


def test_recipes_that_cannot_be_read(recipe: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    one_line(lambert("pretrain", "rum.toml"), 2, "rum.toml", "Did you mean run.toml?")
    one_line(lambert("pretrain", "nothing-like-it"), 2, "nothing-like-it", "TOML")
    recipe.write_text('corpus = "c\nout = "r"\n')
    one_line(lambert("pretrain", "run.toml"), 2, "run.toml", "line 1")
    recipe.write_bytes(b'corpus = "\xff"\n')
    one_line(lambert("pretrain", "run.toml"), 2, "run.toml")


def test_a_recipe_may_be_written_as_a_path_from_here(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    assert parsed(f"./{recipe.name}").train.steps == 7


def test_a_recipe_behind_the_flags_is_not_passed_over(recipe: Path, lambert: Lambert) -> None:
    one_line(lambert("bench", "--rounds", 1, recipe), 2, "directly after the verb")
    one_line(lambert("pretrain", "--corpus=c", "--out=r", recipe), 2, "directly after the verb")


def failing(error: BaseException) -> Any:
    return mock.patch.object(stage("doctor")[0], "run", side_effect=error)


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (errors.UsageError("Wrong setting."), 2, "Wrong setting."),
        (errors.DataError("Bad file."), 3, "Bad file."),
        (errors.MachineError("No disk."), 4, "No disk."),
        (errors.DivergedError("Nan."), 5, "Nan."),
        (errors.SavedAndStopped("Saved.", 75), 75, "Saved."),
        (errors.SavedAndStopped("Saved.", 130), 130, "Saved."),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (MemoryError(), 4, "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), 4, "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 4, "No space left on device: /x"),
        (OSError(errno.EFBIG, "File too large"), 4, "File too large"),
        (PermissionError(errno.EACCES, "Permission denied", "/y"), 4, "/y"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/z/a"), 2, "/z/a"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, part: str, lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with failing(error):
        one_line(lambert("doctor"), code, part)
        assert "Traceback" in lambert("doctor", "--debug").err
    assert not Path("crash.txt").exists()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("of ours"), OSError(errno.EBADF, "of ours"), ValueError("of ours")]
)
def test_a_bug_leaves_its_traceback_in_a_file(
    error: Exception, lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with failing(error):
        one_line(lambert("doctor", "--json"), 1, "of ours", "crash.txt")
    kept = Path("crash.txt").read_text()
    assert "Traceback" in kept
    assert "doctor --json" in kept
    assert type(error).__name__ in kept


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "from lambert import cli\n"
        "def call(tokens):\n    for _ in range(10000): print('x' * 1000)\n"
        "cli.call = call\ncli.main([])"
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


def test_an_old_name_is_answered_with_the_new_one(lambert: Lambert, tmp_path: Path) -> None:
    said = "optim.warmup_share is optim.warmup_ratio now. Rename it."
    done = lambert("pretrain", corpus="c", out="o", optim__warmup_share=0.1)
    assert (done.code, done.err) == (2, f"lambert: The command has settings by their former names: {said}\n")
    recipe = tmp_path / "old.toml"
    recipe.write_text('corpus = "c"\nout = "o"\nfrom_scratch = true\n[train]\nkeep = 3\n')
    done = lambert("pretrain", recipe)
    assert done.code == 2
    assert "from_scratch is restart_damaged now, train.keep is train.keep_checkpoints now. Rename them." in done.err


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("ulimit -n 8", "8 open files are too few: at least 16 are needed. Raise ulimit -n."),
        ("ulimit -v 500000", "An address space of 512 MB is too small: torch alone takes about 700 MB."),
    ],
)
def test_limits_of_the_shell_are_a_line_and_4(limit: str, said: str, tmp_path: Path) -> None:
    command = f"{limit}; exec {sys.executable} -m lambert pretrain --corpus=c --out=o"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert done.stderr.startswith(f"lambert: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", cli.COMPUTES)
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_is_answered_for_the_verb(
    verb: str, error: Exception, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(tokens: list[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "call", call)
    done = lambert(verb)
    assert (done.code, done.err) == (4, f"lambert: Out of memory. {cli.LESS_MEMORY[verb]}\n")
    names = [name for name in re.findall(r"[a-z_.]*[a-z]", cli.LESS_MEMORY[verb]) if "_" in name or "." in name]
    _, kind = stage(verb)
    for name in names:
        assert _has(kind, name), f"{verb} has no setting {name}"


def _has(kind: type, name: str) -> bool:
    for part in name.split("."):
        hints = get_type_hints(kind)
        if part not in hints:
            return False
        kind = hints[part]
    return True
