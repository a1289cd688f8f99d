"""Sides in processes of their own: what they answer, what they inherit, and how they fail."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from sides import SideHere

from lambert import __main__, cli
from lambert.core.errors import DataError, MachineError
from lambert.engine import process
from lambert.measure import ceilings
from lambert.wings.bench import environments, runs, side_process
from lambert.wings.bench import verb as bench
from lambert.wings.bench.side_process import Side, SideProcess
from lambert.wings.bench.verb import BenchConfig
from lambert.wings.bench.work import Step, Work

OWN_WORK = """
import json, os, sys
from lambert import __main__, cli
from lambert.core.errors import DataError
from lambert.wings.bench.work import Work, sides

def work(config, world):
    return Work(sides(config, lambda: lambda: 1.0, {}, 2.0), tokens=10)

built = []

def peer(value: float):
    built.append(value)
    if len(built) == 2:
        raise DataError("no room")
    if len(built) == 3:
        sys.exit("no memory")
    print("a library prints")
    with open(os.environ["WRITTEN"], "a") as file:
        file.write(json.dumps(dict(os.environ)) + "\\n")
    return lambda: value

def plain(value: float):
    return lambda: value

def command(config, folder, out, tokens, updates):
    lines = [json.dumps({"time": update, "loss": 1.0}) for update in range(updates)]
    text = f"import json, os; open({os.environ['WRITTEN']!r}, 'a').write(json.dumps(dict(os.environ)) + chr(10)); "
    return [sys.executable, "-c", text + f"open({str(out)!r}, 'w').write({chr(10).join(lines)!r})"]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which peers of the module bench_own write their environments, a line each."""
    (tmp_path / "bench_own.py").write_text(OWN_WORK)
    variables = {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "WRITTEN": str(tmp_path / "written.jsonl"),
        "LC_ALL": "C.UTF-8",  # else Python sets a variable of its own
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(process.INITIAL_ENVIRONMENT, name, value)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "written.jsonl"


CONFIG = BenchConfig(work="bench_own:work", peer="bench_own:peer")


def started(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_side_answers_from_its_process(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints is no answer, and what this process has set meanwhile does not reach it. Its errors are those of
    the command."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "1")
    with SideProcess(CONFIG, "bench_own:peer", environments.of({"MORE": "1"})) as side:
        times = side.build()
        assert side.round() >= 0
        with pytest.raises(DataError, match=r"^no room$"):
            side.build()
        with pytest.raises(MachineError, match=r"^The process of bench_own:peer ended: no memory\. If it lacked"):
            side.build()
    assert (times.check, times.memory_mb > 50) == (2.0, True)
    assert started(mine) == [environments.of({"MORE": "1"})]


def test_peers_of_a_work_inherit_nothing(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = "bench_own:plain"
    given: list[tuple[str, object]] = []

    class Recorded(SideHere):
        def __init__(self, config: BenchConfig, name: str, environment: object) -> None:
            given.append((name, environment))
            super().__init__(config, name, environment)

    monkeypatch.setattr(bench, "SideProcess", Recorded)
    monkeypatch.setattr(environments, "candidates", lambda device: [{}, {"MORE": "1"}] if device == "cpu" else [])
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the command line sets it
    said: list[str] = []
    bench.run(dataclasses.replace(CONFIG, peer=peer, rounds=1, json=True), said.append)
    found = json.loads(said[0])["sides"]
    assert [*found[peer]["environments_tried"]] == ["unchanged", "MORE"]
    chosen = found[peer]["environment"]
    assert chosen in ({}, {"MORE": "1"})
    user, own = environments.of({}), environments.of(process.variables())
    trials = [(peer, user), (peer, {**user, "MORE": "1"})]
    assert given == [*trials, ("ceilings", own), ("lambert", own), (peer, {**user, **chosen})]
    assert found["lambert"]["environment"] == process.variables()


def test_peers_of_a_run_inherit_nothing(
    mine: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole command from its first line, without the ceilings and Lambert's own side: its process is not replaced,
    and in each round the peer has the user's environment, or a stated addition to it."""
    peer = "bench_own:command"
    flags = ["--work=run", f"--peer={peer}", "--rounds=1", "--updates=2", "--size=tiny", "--sequences=2"]
    flags += [f"--corpus={corpus}", "--length=48", "--threads=1", "--json"]
    monkeypatch.setattr(sys, "argv", ["lambert", "bench", *flags])
    monkeypatch.setattr(process.os, "execv", lambda *_: pytest.fail("the process was replaced"))
    for module in (__main__, cli.signals):
        monkeypatch.setattr(module, "exit_on_signals", lambda: None)
    monkeypatch.setattr(cli.signals, "restore_keyboard_interrupt", lambda: None)
    monkeypatch.setattr(runs, "SideProcess", SideHere)
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: 1e10)
    monkeypatch.setattr(ceilings, "SUSTAINED", 0.01)
    monkeypatch.setattr(ceilings, "COPIED", 2**20)
    monkeypatch.setattr(runs, "_lambert", lambda config, side, *_: (side.seconds.append(1.0), side.starts.append(1.0)))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "")  # restored at the end
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    out, error = capfd.readouterr()
    assert not ended.value.code, error
    user = environments.of({})
    found = json.loads(out)["sides"][peer]
    tried = found["environments_tried"]
    seen = started(mine)
    assert seen[0] == user
    for environment in seen:
        assert {name: environment.get(name) for name in user} == user
        added = {name: value for name, value in environment.items() if user.get(name) != value}
        assert environments.describe(added) in tried
    assert len({json.dumps(environment) for environment in seen}) == len(tried) > 1
    last = {name: value for name, value in seen[-1].items() if user.get(name) != value}
    assert last == found["environment"]
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "FATAL"


def test_the_environments_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "allocator_variables", lambda: {"M": "1"})
    monkeypatch.setattr(process, "thread_variables", lambda: {"W": "2"})
    monkeypatch.setattr(process, "INITIAL_ENVIRONMENT", {"HOME": "/"})
    bound = environments.BOUND
    assert environments.candidates("cpu") == [{}, {"M": "1"}, {"W": "2"}, {"M": "1", "W": "2"}, bound]
    assert environments.candidates("cuda:0") == [{}]
    monkeypatch.setattr(process, "INITIAL_ENVIRONMENT", {"OMP_PROC_BIND": "spread"})
    monkeypatch.setattr(process, "thread_variables", dict)
    assert environments.candidates("cpu") == [{}, {"M": "1"}]
    assert environments.of({"M": "1"}) == {"OMP_PROC_BIND": "spread", "M": "1"}
    monkeypatch.setattr(process, "INITIAL_ENVIRONMENT", {"HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"})
    assert environments.of({}) == {"HOME": "/"}  # each side keeps its compiled modules


def test_the_fastest_environment_is_taken() -> None:
    seconds, asked = iter([3.0, 2.0, 4.0, 1.0, 2.5, 4.0]), []

    def trial(variables: environments.Variables) -> float:
        asked.append(dict(variables))
        return next(seconds)

    tried = [{}, {"M": "1"}, {"M": "1", "W": "2"}]
    found = environments.find_fastest(trial, tried)
    assert asked == tried * 2
    assert found.as_json() == {
        "environment": {}, "environments_tried": {"unchanged": 1.0, "M": 2.0, "M W": 4.0},
    }  # fmt: skip
    alone = environments.find_fastest(trial, [{}])
    assert alone.as_json() == {"environment": {}, "environments_tried": {}}


def test_a_side_that_learns_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def own() -> Step:
        built.append(1)
        return lambda: 1.0

    monkeypatch.setattr(side_process, "work_of", lambda *_: Work({"lambert": own}, tokens=1, rebuilt=True))
    side = Side(BenchConfig(), "lambert")
    side.build()
    side.round(), side.round()
    assert len(built) == 3
