"""The help explains every verb and every setting."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from commands import is_flag, stage

from lambert import __version__
from lambert.verb import all_verbs

Lambert = Callable[..., Any]


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
        if not is_flag(kind, field.name):
            continue
        nested = [part for part in (hints[field.name], *get_args(hints[field.name])) if dataclasses.is_dataclass(part)]
        if nested:
            found |= documented(nested[0], f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = under.get(field.name, "")
    return found


def letters(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", text)


@pytest.mark.parametrize("verb", [name for name, verb in all_verbs().items() if verb.settings])
def test_help_explains_every_setting(verb: str, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    shown = lambert(verb, "--help")
    assert shown.code == 0
    assert all_verbs()[verb].summary in shown.out
    lines = [letters(line) for line in shown.out.splitlines()]
    settings = documented(stage(verb)[1])
    assert settings or all_verbs()[verb].takes == "folder"
    for name, text in settings.items():
        assert len(text) > 10, f"{name} has no docstring"
        flag = "from" if name == "source" else name
        assert any(letters(flag) in line and letters(text) in line for line in lines), name


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_help_begins_with_the_common_settings(verb: str, lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    _, kind = stage(verb)
    module = sys.modules[kind.__module__]
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
    assert all(verb in shown.out and spec.summary[:40] in shown.out for verb, spec in all_verbs().items())
    assert lambert().out == shown.out
    assert lambert("--version").out.strip() == __version__


def test_what_is_required_has_no_default(lambert: Lambert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    shown = lambert("prepare", "--help").out
    assert "[default: 30522]" in shown
    assert not re.search(r"\[default: (|\.|\(\)|\"\")\]", shown)


@pytest.mark.parametrize(
    "command",
    ["pretrain --help", "pretrain --train.stps 3", "finetune --dta x", "evaluate --modl x", "predict --chnk 3",
     "import --frm x", "export --formt x", "bench --sze x", "pretrain recipes/none.toml", "doctor --x"],
)  # fmt: skip
def test_help_and_mistyped_flags_do_not_wait_for_torch(command: str) -> None:
    code = "import sys; from lambert import cli\ntry: cli.main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n"), done.stderr
    assert done.returncode == (0 if "--help" in command else 2)


@pytest.mark.parametrize("verb", [[], ["finetune"], ["corpus", "peek"]])
def test_help_is_a_word_too(verb: list[str], lambert: Lambert) -> None:
    shown = lambert("help", *verb)
    assert shown.code == 0
    assert shown == lambert(*verb, "--help")
