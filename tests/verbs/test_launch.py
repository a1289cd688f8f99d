"""What `lambert launch` would start, what it refuses, and how soon it gives up where the machines cannot meet."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import Called, one_line, stage
from patience import HANGS

from lambert.core import launcher
from lambert.core.errors import UsageError
from lambert.verb import all_verbs
from lambert.verbs.launch import LaunchConfig, split


@pytest.fixture(autouse=True)
def _said_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")  # else a call in this process would leave it behind


@pytest.mark.parametrize(
    ("line", "flags", "verb"),
    [
        ("launch pretrain r.toml --nnodes 3", [], "pretrain"),
        ("launch -np 2 pretrain -np 3", ["--nproc-per-node", "2"], "pretrain"),
        ("launch -np=2 --dry-run predict", ["--nproc-per-node=2", "--dry-run"], "predict"),
        ("launch --run-id pretrain finetune x", ["--run-id", "pretrain"], "finetune"),
    ],
)
def test_its_flags_end_with_the_verb(line: str, flags: list[str], verb: str) -> None:
    assert split(line.split())[0] == ["launch", *flags, verb]


def test_a_dry_run_says_what_would_be_started(lambert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(9), raising=False)
    shown = lambert("launch", "--dry-run", "-np", 4, "pretrain", "a b.toml", "--train.steps=3", "--help", "--debug")
    assert shown.code == 0, shown.err
    assert "4 on this machine" in shown.out
    assert "OMP_NUM_THREADS=2 " in shown.out
    assert shown.out.endswith("-m lambert pretrain 'a b.toml' --train.steps=3 --help --debug\n")
    assert "1 on this machine" in lambert("launch", "--dry-run", "pretrain").out  # no GPU here, or one
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS=7 " in lambert("launch", "--dry-run", "-np=4", "pretrain").out


def test_its_help_is_not_its_verbs(lambert: Any) -> None:
    shown = lambert("launch", "--help")
    assert shown.code == 0
    assert "--max-restarts" in shown.out
    assert "--train.steps" not in shown.out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["-np", "0", "pretrain"], "--nproc-per-node 0"),
        (["-np", "two", "pretrain"], "--nproc-per-node two"),
        (["--nnodes=2:1", "pretrain"], "--nnodes 2:1"),
        (["--nnodes=0", "pretrain"], "--nnodes 0"),
        (["--nnodes=2", "pretrain"], "--endpoint HOST:PORT"),
        (["--nnodes=2", "--endpoint=node1", "pretrain"], "--endpoint node1"),
        (["--endpoint=node1:99999", "pretrain"], "node1:99999"),
        (["--max-restarts=-1", "pretrain"], "max_restarts = -1 must be at least 0"),
        (["--timeout=0", "pretrain"], "timeout = 0 must be at least 1"),
        (["prepare"], "prepare cannot run in several processes. These verbs can: pretrain, finetune"),
        (["--nproc=2", "pretrain"], "--nproc"),
        (["-np", "2", "pretrain", "none.toml"], "No such recipe: none.toml"),
        (["-np", "2", "pretrain", "--corpus=c", "--out=o", "--train.steps=0"], "train.steps = 0 must be above 0"),
        (["-np", "2", "pretrain", "--corpus=c", "--out=o", "--train.batch-sise=4"], "Did you mean --train.batch-size?"),
        (["-np", "2", "predict", "--chunk=8"], "--model"),
        (["-np", "3", "pretrain", "--corpus=c", "--out=o", "--train.batch-size=8"], "3 ranks cannot share"),
        ([], "VERB"),
    ],
)
def test_wrong_settings(flags: list[str], named: str, lambert: Any) -> None:
    one_line(lambert("launch", *flags), 2, named)


@pytest.mark.parametrize(
    ("flags", "flag", "right"),
    [
        ("pretrain -np 2 r.toml --train.steps 3", "-np", "-np 2 pretrain r.toml --train.steps 3"),
        ("pretrain r.toml --max_restarts=1", "--max-restarts", "--max_restarts=1 pretrain r.toml"),
        ("-np=2 finetune --dry-run 'a b.toml'", "--dry-run", "-np=2 --dry-run finetune 'a b.toml'"),
        ("pretrain r.toml -np", "-np", "-np pretrain r.toml"),
    ],
)
def test_flags_behind_the_verb_are_answered_with_the_right_order(
    flags: str, flag: str, right: str, lambert: Any
) -> None:
    shown = lambert("launch", *shlex.split(flags))
    assert shown.code == 2
    assert shown.err == f"lambert: {flag} of launch must precede the verb: lambert launch {right}\n"


def test_no_verb_has_a_flag_of_launch() -> None:
    for verb in (name for name, verb in all_verbs().items() if verb.ranks):
        names = {field.name for field in fields(stage(verb)[1])}
        assert not names & {field.name for field in fields(LaunchConfig)}


@pytest.mark.slow
def test_wrong_settings_are_found_before_anything_is_started(tmp_path: Path) -> None:
    """By the launcher, which needs torch anyway: no rank begins, and no group meets."""
    (tmp_path / "r.toml").write_text('corpus = "c"\nout = "o"\n[train]\nbatch_sise = 4\n')
    launch = ["lambert", "launch", "-np", "4", "pretrain", str(tmp_path / "r.toml")]
    done, seconds = processor_seconds("-m", *launch)
    one_line(Called(done.returncode, done.stdout, done.stderr), 2, "batch_sise")
    _, alone = processor_seconds("-c", "import torch, lambert.verbs.launch, lambert.verbs.pretrain")
    assert seconds < 2 * alone, "four ranks with their launcher take five times what one process alone imports"


def processor_seconds(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """What an interpreter did with these arguments, and the processor time that it and its children took."""
    began = os.times()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=HANGS)
    took = os.times()
    return done, took.children_user + took.children_system - began.children_user - began.children_system


def test_slurm_says_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(UsageError):
        LaunchConfig(nnodes="2").rendezvous()
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert LaunchConfig(nnodes="2").rendezvous() == ("n1", 15_000 + 12 * 31)
    assert LaunchConfig(nnodes="2", endpoint="[::1]:5").rendezvous() == ("::1", 5)


@pytest.mark.parametrize(
    ("host", "taken", "said"),
    [
        ("127.0.0.1", True, "Port {port} of 127.0.0.1 is in use"),
        pytest.param("127.0.0.1", False, "Fewer than 2 machines met at", marks=pytest.mark.slow),
        pytest.param(
            "no-such-host.invalid", False, "Nobody answers at {host}:{port} within 1 s", marks=pytest.mark.slow
        ),
    ],
)
def test_machines_that_cannot_meet(host: str, taken: bool, said: str) -> None:
    """In a process of its own, since torch learns when it is imported that it is to say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not taken:
            server.close()
        flags = ["--nnodes=2", f"--endpoint={host}:{port}", "--timeout=1", "pretrain", "--corpus=none", "--out=none"]
        done = subprocess.run(
            [sys.executable, "-m", "lambert", "launch", *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS,
        )
    one_line(Called(done.returncode, done.stdout, done.stderr), 4, said.format(host=host, port=port))


# --- the worker's side ---


def test_without_a_launcher_an_end_is_a_line_and_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LAMBERT_LAUNCHER", raising=False)
    assert launcher.report_end(5, "Diverged.") == 5
    assert capsys.readouterr().err == "lambert: Diverged.\n"


@pytest.mark.parametrize(("code", "leaves"), [(0, 0), (1, 1), (2, 0), (3, 0), (4, 4), (5, 0), (75, 0), (130, 0)])
def test_the_launcher_is_told_what_is_final(
    code: int, leaves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMBERT_LAUNCHER", str(os.getppid()))
    monkeypatch.setenv("LAMBERT_ENDS", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    assert launcher.report_end(code, "A line.") == leaves
    assert capsys.readouterr().err == ""
    (end,) = launcher.read_ends(tmp_path)
    assert (end.rank, end.pid, end.code, end.line) == (3, os.getpid(), code, "A line.")


def test_a_launcher_that_is_gone_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMBERT_LAUNCHER", "1")
    monkeypatch.setenv("LAMBERT_ENDS", str(tmp_path))
    assert launcher.report_end(3, "A line.") == 3
    assert capsys.readouterr().err == "lambert: A line.\n"


def test_one_of_those_whose_launcher_is_gone_speaks_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMBERT_LAUNCHER", "1")
    monkeypatch.setenv("LAMBERT_ENDS", str(tmp_path))
    assert [launcher.report_end(75, "A line.") for _ in range(3)] == [75, 75, 75]
    assert capsys.readouterr().err == "lambert: A line.\n"
    monkeypatch.setenv("LAMBERT_ENDS", str(tmp_path / "gone"))
    assert launcher.report_end(75, "A line.") == 75
    assert capsys.readouterr().err == "lambert: A line.\n"


FOLLOWS = """
import os, subprocess, sys, time
os.environ["LAMBERT_LAUNCHER"] = str(os.getpid())
code = "import time; from lambert.core.launcher import follow; follow(); print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "1\\n"
print(child.pid, flush=True)
time.sleep(60)
"""


def test_it_leaves_with_its_launcher() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", FOLLOWS], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + HANGS
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
