"""The launcher with small shell commands as ranks: their places, their output, how they end, and that they do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANGS

import lambert.horovod as hvd
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.wings.horovod import aliased
from lambert.wings.horovod.run import job, main
from lambert.wings.horovod.run.function import run as run_function
from lambert.wings.horovod.run.hosts import Host, assign_slots, discover, fill, parse_hosts, read_hostfile
from lambert.wings.horovod.run.options import build_environment, parse

FAR = "far-away.invalid"


def run(*arguments: str) -> int:
    return main([str(argument) for argument in arguments])


def test_ranks_know_their_place(capfd: pytest.CaptureFixture[str]) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_SIZE HOROVOD_CROSS_SIZE MASTER_ADDR"
    assert run("-np", "2", "--gloo", "sh", "-c", f"echo {' '.join('$' + name for name in names.split())}") == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["[0]<stdout>:0 2 0 0 2 2 1 127.0.0.1", "[1]<stdout>:1 2 1 1 2 2 1 127.0.0.1"]


def test_places_count_within_and_across_hosts() -> None:
    found = fill([Host("a", 2), Host("b", 1), Host("c", 4)], 5)
    assert [(p.hostname, p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in found] == [
        ("a", 0, 0, 2, 0, 3),
        ("a", 1, 1, 2, 0, 2),
        ("b", 2, 0, 1, 1, 3),
        ("c", 3, 0, 2, 2, 3),
        ("c", 4, 1, 2, 1, 2),
    ]
    # Ranks of an elastic job need not stand together.
    assert [(p.local_rank, p.cross_rank) for p in assign_slots(["a", "b", "a"])] == [(0, 0), (0, 1), (1, 0)]


def test_hosts_come_from_options_files_and_scripts(tmp_path: Path) -> None:
    assert parse_hosts("a:2, b.c-d:1") == [Host("a", 2), Host("b.c-d", 1)]
    (tmp_path / "hosts").write_text("# cluster\na slots=2\n\nb slots = 1 # small\nc\n")
    assert read_hostfile(str(tmp_path / "hosts")) == [Host("a", 2), Host("b", 1), Host("c", 1)]
    assert discover("printf 'a:2\\nb\\n'", slots=3) == [Host("a", 2), Host("b", 3)]
    assert discover("true", slots=None) == []
    for wrong in ("a", "a:0", "a:x", "-oProxyCommand=x:1", "a b:1", "", "a:1,a:2"):
        with pytest.raises(UsageError):
            parse_hosts(wrong)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=many\n")
    with pytest.raises(DataError, match="hosts:2: 'b slots=many'"):
        read_hostfile(str(tmp_path / "hosts"))
    with pytest.raises(DataError, match="cannot read"):
        read_hostfile(str(tmp_path / "none"))
    with pytest.raises(DataError, match="discovery script failed"):
        discover("exit 3", None)


def test_options_become_variables() -> None:
    line = (
        "-np 2 --fusion-threshold-mb 32 --cycle-time-ms 3.5 --timeline-filename t.json --timeline-mark-cycles "
        "--no-stall-check --stall-check-warning-time-seconds 5 --network-interface eth0,eth1 --autotune "
        "--cache-capacity 10 --mpi-args=--x --log-level INFO --start-timeout 9 python t.py --lr 1"
    )
    args = parse(line.split())
    assert args.command == ["python", "t.py", "--lr", "1"]
    assert args.ignored == ["--autotune", "--mpi-args --x"]
    found = build_environment(args)
    wanted = {
        "HOROVOD_FUSION_THRESHOLD": str(32 * 1024 * 1024),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_CACHE_CAPACITY": "10",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_START_TIMEOUT": "9",
        "HOROVOD_GLOO_IFACE": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0,eth1",
        "NCCL_SOCKET_IFNAME": "eth0,eth1",
    }
    assert wanted.items() <= found.items()
    assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" not in found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("true", "-np N"),
        ("-np 2", "the command is missing"),
        ("-np 0 true", "'0' is not a whole number of at least 1"),
        ("-np two true", "-np/--num-proc: 'two' is not a whole number of at least 1"),
        ("-np 2 --cycle-time-ms x true", "--cycle-time-ms: 'x' is not a number of at least 0"),
        ("-np 3 -H localhost:2 true", "-np 3 exceeds the 2 slots"),
        ("-np 2 --mpi true", "--mpi"),
        ("-np 2 --gloo --mpi true", "not allowed with"),
        ("-np 2 --nonsense true", "nonsense"),
        ("-np 2 --config-file c.yaml true", "--config-file"),
        ("-np 2 --max-np 3 true", "require --min-np"),
        ("-np 2 --min-np 3 true", "--max-np 2 does not hold"),
        ("-np 1 no-such-program", "no-such-program"),
    ],
)
def test_what_cannot_run_is_told(line: str, message: str) -> None:
    with pytest.raises(LambertError, match=message) as caught:
        run(*line.split())
    assert caught.value.exit_code == 2


def test_the_first_failure_ends_all_and_is_the_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = f"echo $$ > {tmp_path}/$RANK; [ $RANK = 1 ] && sleep 0.2 && echo late >&2 && exit 7; sleep 900 & wait"
    assert run("-np", "3", "sh", "-c", script) == 7
    told = capfd.readouterr().err
    assert "[1]<stderr>:late" in told
    assert "rank 1 on localhost failed with exit code 7" in told
    assert all(gone(int((tmp_path / name).read_text())) for name in "012")
    assert run("-np", "1", "sh", "-c", "kill -KILL $$") == 137


def test_output_keeps_its_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = r"printf 'one\ntwo\rthree\r\n\303\244\nno end'; printf 'said' >&2"
    assert run("-np", "1", "--output-filename", str(tmp_path / "logs"), "sh", "-c", text) == 0
    captured = capfd.readouterr()
    prefix = "[0]<stdout>:"
    assert captured.out == f"{prefix}one\n{prefix}two\r{prefix}three\r\n{prefix}ä\n{prefix}no end\n"
    assert captured.err == "[0]<stderr>:said\n"
    assert (tmp_path / "logs/rank.0/stdout").read_bytes() == "one\ntwo\rthree\r\nä\nno end".encode()
    assert (tmp_path / "logs/rank.0/stderr").read_text() == "said"


def test_a_dry_run_prints_what_would_run(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["-np", "2", "-H", f"{FAR}:1,localhost:1", "-p", "2222", "-i", "key", "--dry-run"]
    assert run(*options, "python", "train.py", "--note", "two words") == 0
    out = capfd.readouterr().out
    assert f"-p 2222 -i key {FAR} sh -s" in out
    assert "python train.py --note 'two words' </dev/null" in out
    assert f"export MASTER_ADDR={FAR}\n" in out
    assert f"MASTER_ADDR={FAR}" in out.splitlines()[-1]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that stays here: it drops its options and the host, and starts the shell that it is asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\nexec sh -s\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


def test_remote_ranks_run_in_a_shell_of_ssh(
    ssh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", 'it\'s "$HOME" `x`\nand more')
    monkeypatch.setenv("SSH_AGENT_PID", "1")
    code = run("-np", "2", "-H", f"{FAR}:2", "sh", "-c", 'echo "$RANK $SECRET $SSH_AGENT_PID"; exit $((RANK * 9))')
    assert code == 9
    out = capfd.readouterr().out
    assert '[1]<stdout>:1 it\'s "$HOME" `x`\n[1]<stdout>:and more 1' in out  # this shell inherits what ssh would not
    calls = ssh.read_text()
    assert calls.count(f"BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=10 {FAR} sh -s") == 2
    assert "SECRET" not in calls


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Nobody may collect it where this runs as process 1: a zombie is gone too.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(holds: Callable[[], bool], seconds: float = HANGS) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel of Linux ends ranks with their launcher")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(number: signal.Signals, tmp_path: Path, ssh: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid.$RANK.new; mv {tmp_path}/pid.$RANK.new {tmp_path}/pid.$RANK; exec sleep 900"
    command = ["-np", "2", "-H", f"localhost:1,{FAR}:1", "sh", "-c", script]
    launcher = subprocess.Popen([sys.executable, "-m", "lambert.wings.horovod.run", *command])
    files = [tmp_path / "pid.0", tmp_path / "pid.1"]
    try:
        assert wait_until(lambda: all(file.exists() for file in files))
        pids = [int(file.read_text()) for file in files]
        launcher.send_signal(number)
        assert launcher.wait(HANGS) == (-9 if number == signal.SIGKILL else 128 + number)
        assert wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        launcher.kill()
        for file in files:
            if file.exists() and not gone(int(file.read_text())):
                os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_signal_while_a_rank_is_started_ends_that_rank_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(job, "end", lambda workers, number: ended.extend(workers))
    workers: list[Any] = []

    def start() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "rank 0"

    def launch() -> None:
        with job.terminate_at_end(workers):
            with job.STARTING:
                workers.append(start())
            pytest.fail("the signal is lost")

    with pytest.raises(job.Stop, match="SIGTERM"):
        launch()
    assert ended == ["rank 0"]


@pytest.mark.slow
def test_a_horovod_script_runs_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, horovod, horovod.torch as hvd\n"
        "from horovod.torch.elastic import TorchState\n"
        "hvd.init()\n"
        "print(hvd.size(), hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), name='x').item())\n"
    )
    trace = tmp_path / "trace.json"
    assert run("-np", "2", "--alias", "--timeline-filename", str(trace), sys.executable, str(script)) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:2 1.5", "[1]<stdout>:2 1.5"]
    assert "allreduce.x" in trace.read_text()


def total(first: float, *, more: float) -> tuple[int, float]:
    hvd.init()
    return hvd.rank(), float(hvd.allreduce(torch.tensor(first + hvd.rank()), op=hvd.Sum)) + more


def test_a_function_runs_on_every_rank(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_function(total, (3.0,), {"more": 0.5}, num_proc=2) == [(0, 7.5), (1, 7.5)]
    with pytest.raises(UsageError, match="use_mpi"):
        run_function(total, use_mpi=True)
    with pytest.raises(UsageError, match="this host only"):
        run_function(total, hosts=f"{FAR}:1")


@pytest.mark.slow
def test_a_script_that_starts_itself_runs_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod, horovod.torch as hvd\n"
        "def work(x):\n"
        "    hvd.init()\n"
        "    if x == hvd.rank(): raise ValueError('no')\n"
        "    return x * hvd.rank()\n"
        "if __name__ == '__main__':\n"
        "    print(horovod.run(work, args=(7,), np=2, use_gloo=True))\n"
        "    horovod.run(work, args=(0,), np=1)\n"
    )
    folder = str(Path(aliased.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert "[0, 7]" in done.stdout
    assert "ValueError: no" in done.stderr
    assert "a rank failed with exit code 1" in done.stderr
