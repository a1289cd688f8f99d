"""The doctor tells what is there, never fails over what is not, and knows every extra."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lambert.verbs import doctor
from lambert.verbs.doctor import DoctorConfig, Finding

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SIDE", 32)


def found(findings: list[Finding], what: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.what == what)
    return finding


def test_table_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    findings = doctor.run(DoctorConfig())
    table = capsys.readouterr().out
    doctor.run(DoctorConfig(json=True), print)
    rows = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in rows] == [finding.what for finding in findings]
    for finding in findings:
        assert finding.what in table
    for what in ("Python", "torch", "device used", "threads", "memory", "disk", "bfloat16", "torch.compile"):
        assert found(findings, what).found
    assert torch.__version__ in found(findings, "torch").found
    assert not torch.distributed.is_initialized()


def test_gloo_is_tried() -> None:
    assert "a sum by gloo works" in doctor._gloo().found


def test_gloo_that_fails_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("unable to resolve hostname\nmore")

    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    finding = doctor._gloo()
    assert (finding.state, finding.found) == ("missing", "unable to resolve hostname")
    assert "GLOO_SOCKET_IFNAME" in finding.advice


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, wanted in project.items():
        if extra not in ("test", "dev", "bench"):
            names = sorted(re.split(r"[<>=;\[ ]", requirement)[0] for requirement in wanted)
            names = [name for name in names if name != "lambert-bert"]  # with another extra
            assert sorted(doctor.list_extras()[extra]) == names


def test_a_missing_extra_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "list_extras", lambda: {"magic": ["no-such-distribution"]})
    monkeypatch.setenv("COLUMNS", "200")
    findings = doctor.run(DoctorConfig())
    assert found(findings, "extra magic").advice == "pip install 'lambert-bert[magic]'"
    assert "pip install 'lambert-bert[magic]'" in capsys.readouterr().out


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    which: Callable[[str], str | None] = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert doctor._compiler().found == "no C++ compiler"
    monkeypatch.setattr(shutil, "which", lambda name: which("false") if name == "g++" else None)
    assert (doctor._compiler().state, doctor._compiler().found) == ("note", "it failed without a message")


def test_a_driver_without_a_cuda_build_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    finding = found(list(doctor._devices()), "GPU")
    assert finding.state == "note"
    assert "CUDA build" in finding.advice


def test_idle_cores_and_a_full_disk_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: range(torch.get_num_threads() + 2), raising=False)
    assert f"OMP_NUM_THREADS={torch.get_num_threads() + 2}" in doctor._threads().advice
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 10**9))
    assert doctor._disk().state == "note"
