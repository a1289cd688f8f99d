"""Who started this process: environments as the launchers leave them, and as they cannot be."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import HANGS
from tiny import free_port  # type: ignore[import-not-found]
from torch._C._distributed_c10d import HashStore, TCPStore

from lambert.core.errors import MachineError, UsageError
from lambert.distributed import group
from lambert.distributed.launch_environment import PORTS, ProcessInfo, hosts_of, process_info
from lambert.distributed.rendezvous import meet, roll_call

SPOKEN = re.compile(r"HOROVOD_|RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|PMIX_|JOB_COMPLETION|TORCHELASTIC|LAMBERT_")
TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "head",
    "MASTER_PORT": "4711", "TORCHELASTIC_RUN_ID": "a",
}  # fmt: skip
BATCH = {
    "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "gpu[07-08,11]", "SLURM_NTASKS": "9", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS_PER_NODE": "3", "SLURM_JOB_NUM_NODES": "3",
}  # fmt: skip
SRUN = BATCH | {
    "SLURM_STEP_NUM_TASKS": "9", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08,11]", "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "3(x3)",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-77@1",
}  # fmt: skip
JOB = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "bert-0.bert"}


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if SPOKEN.match(name)]:
        monkeypatch.delenv(name)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is put into it is in the environment of this test alone."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return os.environ  # type: ignore[return-value]


def test_alone(environment: dict[str, str]) -> None:
    assert process_info() == ProcessInfo(0, 1, 0, 1, "", 0, "one process")


def test_torchrun_and_lambert_launch(environment: dict[str, str]) -> None:
    environment |= TORCHRUN
    assert process_info() == ProcessInfo(5, 8, 1, 4, "head", 4711, "torchrun (RANK, WORLD_SIZE)")
    environment["LAMBERT_LAUNCHER"] = "1"
    assert process_info().reason == "lambert launch (RANK, WORLD_SIZE)"


def test_horovodrun(environment: dict[str, str]) -> None:
    environment |= {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "head"}
    reason = "horovodrun (HOROVOD_RANK, HOROVOD_SIZE)"
    assert process_info() == ProcessInfo(3, 4, 0, 1, "head", 29500, reason)
    environment |= {"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711"}
    assert process_info() == ProcessInfo(3, 4, 1, 2, "head", 4711, reason)
    environment |= {"MASTER_ADDR": "other", "MASTER_PORT": "4712", "RANK": "0", "WORLD_SIZE": "1"}
    assert process_info() == ProcessInfo(3, 4, 1, 2, "other", 4712, reason), "Horovod's variables come first"


def test_kubeflow_has_one_process_in_a_container(environment: dict[str, str]) -> None:
    environment |= {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "head", "MASTER_PORT": "23456"}
    assert process_info() == ProcessInfo(3, 4, 0, 1, "head", 23456, "the environment (RANK, WORLD_SIZE)")


def test_srun(environment: dict[str, str]) -> None:
    environment |= SRUN
    found = process_info()
    assert (found.rank, found.size, found.local_rank, found.local_size) == (4, 9, 1, 3)
    assert found.address == "gpu07"
    assert found.port in PORTS
    assert found.reason == "Slurm (SLURM_PROCID of srun)"
    environment["SLURM_STEP_ID"] = "1"
    assert process_info().port != found.port, "two steps of a job would meet each other"
    environment |= {"MASTER_ADDR": "other", "MASTER_PORT": "1234"}
    assert (process_info().address, process_info().port) == ("other", 1234)


def test_srun_with_other_numbers_of_tasks_on_each_node(environment: dict[str, str]) -> None:
    environment |= SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),5", "SLURM_NODEID": "2", "SLURM_LOCALID": "4"}
    assert process_info().local_size == 5
    environment["SLURM_LOCALID"] = "5"
    with pytest.raises(UsageError, match="local rank 5 of 5"):
        process_info()


def test_a_batch_script_without_srun_is_one_process(environment: dict[str, str]) -> None:
    environment |= BATCH
    assert process_info() == ProcessInfo()


def test_an_interactive_step_keeps_the_number_of_tasks_of_its_job(environment: dict[str, str]) -> None:
    environment |= SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    environment |= {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "gpu07", "SLURM_NODEID": "0"}
    assert process_info().size == 1


def test_the_launcher_within_srun_comes_first(environment: dict[str, str]) -> None:
    environment |= SRUN | TORCHRUN
    assert process_info().rank == 5


def test_open_mpi_before_the_step_that_started_its_daemon(environment: dict[str, str]) -> None:
    environment |= SRUN | MPI
    found = process_info()
    assert (found.rank, found.size, found.local_rank, found.local_size, found.address) == (1, 2, 1, 2, "127.0.0.1")
    assert found.port in PORTS
    environment["PMIX_NAMESPACE"] = "prterun-host-78@1"
    assert process_info().port != found.port
    environment["OMPI_COMM_WORLD_SIZE"] = "4"
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        process_info()
    environment["MASTER_ADDR"] = "n1"
    assert process_info().address == "n1"


def test_an_indexed_job_of_kubernetes(environment: dict[str, str]) -> None:
    environment |= JOB
    assert process_info() == ProcessInfo(2, 3, 0, 1, "bert-0.bert", 29500, process_info().reason)
    assert "JOB_COMPLETION_INDEX" in process_info().reason
    del environment["WORLD_SIZE"]
    assert process_info() == ProcessInfo(), "an indexed Job may be a list of independent runs"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (TORCHRUN | {"RANK": "8"}, "rank 8 is not below size 8"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1'"),
        (TORCHRUN | {"RANK": "one"}, "RANK='one'"),
        (TORCHRUN | {"WORLD_SIZE": ""}, "WORLD_SIZE=''"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "not below size 0"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "of 9 on this machine"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({"RANK": "0"}, "WORLD_SIZE is not"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "which rank"),
        (SRUN | {"SLURM_PROCID": "9"}, "rank 9"),
        (SRUN | {"SLURM_PROCID": "x"}, "SLURM_PROCID='x'"),
        (SRUN | {"SLURM_STEP_NODELIST": "gpu[07-"}, "list of hosts"),
        (SRUN | {"SLURM_STEP_NODELIST": "gpu[9-7]"}, "range"),
        (MPI | {"OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE='two'"),
        (JOB | {"JOB_COMPLETION_INDEX": "3"}, "rank 3"),
        (JOB | {"MASTER_ADDR": ""}, "MASTER_ADDR"),
    ],
)
def test_what_cannot_be_is_named(wrong: dict[str, str], named: str, environment: dict[str, str]) -> None:
    environment |= wrong
    with pytest.raises(UsageError, match=named):
        process_info()


def test_hosts_of_slurm() -> None:
    assert [*hosts_of("n[01-03,7]")] == ["n01", "n02", "n03", "n7"]
    assert [*hosts_of("login,a[1-2]b[0-1],z.example-1.org")] == [
        "login", "a1b0", "a1b1", "a2b0", "a2b1", "z.example-1.org",
    ]  # fmt: skip
    assert next(hosts_of("n[099-101]-x")) == "n099-x"
    assert [*hosts_of("n[099-101]")] == ["n099", "n100", "n101"]


@given(st.lists(st.tuples(st.sampled_from(["a", "node-", "x.y"]), st.integers(0, 120)), min_size=1, max_size=8))
def test_a_list_of_hosts_reads_back(written: list[tuple[str, int]]) -> None:
    text = ",".join(f"{name}[{number:03d}]" for name, number in written)
    assert [*hosts_of(text)] == [f"{name}{number:03d}" for name, number in written]


@pytest.mark.parametrize("text", ["", "n[", "n]", "a,,b", "n[]", "n[1;2]", "n[1-]", "n[-1]", "a b"])
def test_no_list_of_hosts(text: str) -> None:
    with pytest.raises(UsageError):
        [*hosts_of(text)]


@pytest.mark.slow
def test_a_node_that_joins_late_has_another_restart_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent counts from 0, those of the other nodes go on."""
    first = ProcessInfo(0, 2, 0, 2, "127.0.0.1", free_port())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    held = meet(first, 5)
    held.set("verdict", "of this group")
    code = f"import os; from {meet.__module__} import ProcessInfo, meet; here = ProcessInfo(1, 2, 1, 2, '127.0.0.1', "
    code += f"{first.port}); print(meet(here, 20).get('verdict').decode())"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS)
    assert done.stdout == "of this group\n"
    assert not meet(first, 5).check(["verdict"]), "the next group of this process"


def test_what_an_earlier_group_left_in_torchruns_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agents keep one store for all groups of theirs, and count only restarts: not machines that come."""
    held = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    places = [ProcessInfo(rank, 2, rank, 2, "127.0.0.1", held.port) for rank in range(2)]
    for here in places:
        meet(here, 5).set("verdict", "of this group")
    for here in places:
        with pytest.raises(MachineError, match=r"store of an earlier group at .* TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
            meet(here, 5)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not meet(places[0], 5).check(["verdict"])


@pytest.mark.parametrize(
    ("cards", "said"), [(["", ""], ""), (["a", "b"], ""), (["a", "a"], "Ranks 0 and 1 .* same GPU")]
)
def test_two_ranks_have_two_gpus(cards: list[str], said: str) -> None:
    store = HashStore()
    places = [ProcessInfo(rank, 2, rank, 2, "127.0.0.1", 29400) for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(roll_call, here, store, "cuda", None, 5, card=card)
            for here, card in zip(places, cards, strict=True)
        ]
    for text, code in (answer.result() for answer in answers):
        assert re.match(said, text) if said else not text
        assert code == (2 if said else 0)


def test_ranks_may_share_a_gpu_where_their_group_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "gpu_uuid", lambda device: "a")
    device = torch.device("cuda:0")
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    assert group.own_card(device) == "a"
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert not group.own_card(device)
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for backends, card in ("cpu:gloo,cuda:gloo", ""), ("cpu:gloo,cuda:nccl", "a"):
        monkeypatch.setattr(torch.distributed, "get_backend_config", lambda backends=backends: backends)
        assert group.own_card(device) == card
