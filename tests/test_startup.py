"""What a command does before it answers, counted instead of timed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lambert.engine.process import import_quickly
from lambert.model import files, weights
from lambert.verb import all_verbs

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "torch.distributed.elastic", "pyarrow", "rich", "transformers")
"""Modules that some verbs need and that take long to import."""


def run(code: str, *arguments: object, text: str = "") -> Any:
    """The JSON on the last line that Python prints for a script."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


AFTER = """
import gc, json, sys
from lambert import cli
try: cli.main(sys.argv[1:])
except SystemExit: pass
print(json.dumps([sorted(sys.modules), gc.get_freeze_count(), gc.isenabled()]))
"""


@pytest.mark.parametrize("verb", ["predict", "doctor"])
def test_a_short_command_imports_little_and_searches_no_garbage(verb: str, pretrained: Path) -> None:
    flags = ["--model", pretrained] if verb == "predict" else ["--json"]
    modules, frozen, collecting = run(AFTER, verb, *flags, text='{"text": "the [MASK] was"}\n')
    assert "torch" in modules
    assert [name for name in HEAVY if name in modules] == []
    assert frozen > 100_000  # Python does not search the objects of torch, also when it ends
    assert collecting


@pytest.mark.parametrize("flags", [["--help"], [], ["--version"]])
def test_the_list_of_verbs_needs_no_parser(flags: list[str]) -> None:
    modules, *_ = run(AFTER, *flags)
    assert {"cyclopts", "rich", "numpy", "torch"}.isdisjoint(modules)


WITH_ARRAYS = {"prepare", "corpus peek", "corpus fetch", "corpus verify", "extend"}
"""Verbs whose settings name filters, which compute with arrays."""
WITH_TASKS = {"finetune", "evaluate", "predict", "compare"}
"""Verbs whose settings name tasks, which score with arrays."""


OF_TRAINING = {"pretrain", "plan"}
"""Verbs that look for an unknown flag among the settings of the verbs that train."""


@pytest.mark.parametrize("verb", [name for name, verb in all_verbs().items() if verb.settings and name != "launch"])
def test_a_mistyped_flag_waits_for_little(verb: str) -> None:
    modules, frozen, _ = run(AFTER, *verb.split(), "--no-such-flag=3")
    assert "cyclopts" in modules  # it was parsed
    assert {"torch", "pydantic"}.isdisjoint(modules)
    assert ("numpy" in modules) == (verb in WITH_ARRAYS | WITH_TASKS | OF_TRAINING)
    assert frozen == 0


def test_collecting_stays_off_where_it_was_off() -> None:
    code = "import gc, json; gc.disable()\nfrom lambert.engine import process\nprocess.import_quickly('bisect')\n"
    assert run(code + "print(json.dumps(gc.isenabled()))") is False
    assert import_quickly("json") is json


def test_the_process_is_replaced_once_and_before_it_imports_much() -> None:
    code = """
import json, os, sys
from lambert import __main__
replaced = []
os.execv = lambda *arguments: replaced.append(sorted(sys.modules))
for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD", "GOMP_"))]:
    del os.environ[name]
sys.argv = ["lambert", sys.argv[1], "--no-such-flag"]
try: __main__.main()
except SystemExit: pass
print(json.dumps(replaced))
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc's settings")
    (modules,) = run(code, "predict")
    assert {"cyclopts", "lambert.cli", "torch"}.isdisjoint(modules)
    assert run(code, "doctor") == []


def test_doctor_compiles_while_torch_is_imported() -> None:
    code = """
import json, sys
from lambert.verbs import doctor
early, compiler = [], doctor._compiler
doctor._compiler = lambda: early.append("torch._native" not in sys.modules) or compiler()  # torch's last module
list(doctor.examine())
print(json.dumps(early))
"""
    assert run(code) == [True]


def test_weights_for_inference_stay_in_the_file(pretrained: Path) -> None:
    path = pretrained / "model" / files.WEIGHTS
    before = path.read_bytes()
    copied, _ = weights.load(path.parent)
    shared, _ = weights.load(path.parent, share=True)
    words = shared.encoder.words.weight
    for name, parameter in copied.named_parameters():
        assert torch.equal(parameter, shared.get_parameter(name))
    if sys.platform == "linux":
        mapped = Path("/proc/self/maps").read_text().splitlines()
        ranges = [line.split()[0].split("-") for line in mapped if line.endswith(files.WEIGHTS)]
        assert any(int(low, 16) <= words.data_ptr() < int(high, 16) for low, high in ranges)
    with torch.no_grad():
        words.zero_()
    assert path.read_bytes() == before


def test_training_does_not_import_the_compiler(corpus: Path, small: dict[str, object], tmp_path: Path) -> None:
    settings = small | {"corpus": corpus, "out": tmp_path / "run", "train__steps": 2}
    flags = [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in settings.items()]
    modules, *_ = run(AFTER, "pretrain", *flags)
    assert (tmp_path / "run" / "model").is_dir()
    assert [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in modules] == []


UPDATES = """
import inspect, json, sys, torch
def described():  # each function of torch's optimizers, and the attributes that it and what it wraps have
    kinds = torch.optim.Optimizer, torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam
    functions = [value for kind in kinds for value in vars(kind).values() if inspect.isfunction(value)]
    return [(id(found), *vars(found)) for value in functions for found in (value, inspect.unwrap(value))]
before = described()
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import OPTIMIZERS, build
for name in OPTIMIZERS:
    model = torch.nn.Linear(2, 2)
    optimizer = build(model, OptimConfig(name=name))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print(json.dumps([[*OPTIMIZERS], described() == before, sorted(sys.modules)]))
"""


def test_an_update_changes_nothing_in_torch_and_does_not_import_the_compiler() -> None:
    optimizers, unchanged, modules = run(UPDATES)
    assert {"lamb", "adamw", "radam", "lars", "stable_adamw"} <= {*optimizers}
    assert unchanged
    assert [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in modules] == []
