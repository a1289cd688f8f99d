"""The files in deploy/: they parse, name what exists, and lead to the command that they promise."""

import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from patience import HANGS

from lambert.commands import parse
from lambert.verb import all_verbs

DEPLOY = Path(__file__).parents[1] / "deploy"
SCRIPTS = [DEPLOY / "slurm.sbatch", DEPLOY / "torchrun.sh"]

# Two tasks on two nodes, as srun starts them; the launchers only say what they would do.
SRUN = f"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
[[ $1 == python ]] && shift
for task in 0 1; do
    SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 \\
    SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_STEP_TASKS_PER_NODE='1(x2)' \\
        {shlex.quote(sys.executable)} "${{@:1:3}}" --dry-run -np 3 "${{@:4}}"
done
exit $LEFT
"""
SBATCH = """#!/bin/bash
script="${@: -1}"
grep '^#SBATCH' "$script" >> options.txt
echo >> options.txt
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
for task in $(seq 0 "$last"); do
    SLURM_JOB_ID=17 SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=node1 RUN_OFFSET=0 bash "$script" >> slurm.log 2>&1
done
echo "Submitted batch job 17"
"""
"""It runs the tasks of an array one after the other, and waits as with the option --wait."""
JOB = {"SLURM_JOB_ID": "4242", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_NTASKS": "2"}


def command(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def started(folder: Path, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["bash", script, *arguments], env=os.environ | paths | variables, cwd=folder, capture_output=True, text=True,
        check=False, timeout=HANGS,
    )  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_slurm_starts(tmp_path: Path) -> None:
    command(tmp_path, "srun", SRUN)
    done = started(tmp_path, SCRIPTS[0], "pretrain", "r.toml", "--train.steps", "4", **JOB, LEFT="0")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    meetings = {match[1] for line in said if (match := re.search(r"3 on each of 2 machines that meet at (\S+)", line))}
    assert len(meetings) == 1, done.stdout
    assert meetings.pop().startswith("gpu07:")
    assert [line.split("-m lambert ")[1] for line in said if "-m lambert" in line] == [
        "pretrain r.toml --train.steps 4"
    ] * 2


@pytest.mark.parametrize(("code", "queued"), [(0, False), (75, True), (2, False), (4, False), (137, False)])
def test_slurm_queues_again_what_was_saved(code: int, queued: bool, tmp_path: Path) -> None:
    command(tmp_path, "srun", f"#!/bin/bash\nexit {code}\n")
    command(tmp_path, "scontrol", '#!/bin/bash\necho "$@" > scontrol.txt\n')
    assert started(tmp_path, SCRIPTS[0], "pretrain", **JOB).returncode == code
    asked = tmp_path / "scontrol.txt"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 4242\n" if queued else "")


def test_slurm_asks_for_a_signal_that_is_handled() -> None:
    text = SCRIPTS[0].read_text()
    assert "#SBATCH --signal=USR1@120\n" in text
    assert "#SBATCH --ntasks-per-node=1\n" in text
    options = re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE)
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", option) for option in options)


@pytest.mark.slow
def test_slurm_prepares_the_corpus_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("datatrove")
    command(tmp_path, "sbatch", SBATCH)
    command(tmp_path, "srun", '#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done\nexec "$@"\n')
    command(tmp_path, "scontrol", '#!/bin/bash\necho "$3"\n')
    for number in range(3):
        text = "".join(f"River {number}{line} runs under an old stone bridge.\n" for line in range(25_000))
        (tmp_path / f"{number}.txt").write_text(text)
    names = [f"{number}.txt" for number in range(3)]
    shared = ["--documents", "line", "--vocabulary", "120", "--min-tokens", "2", "--steps", "extract,tokens"]
    arguments = [part for name in names for part in ("--input", name)] + shared
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    for program in (["-m", "lambert", "prepare", "--out", "one"],
                    [DEPLOY / "prepare_slurm.py", "--partition", "cpu", "--tasks", "2", "--out", "many"]):  # fmt: skip
        done = subprocess.run([sys.executable, *program, *arguments], env=os.environ | variables, cwd=tmp_path,
                              capture_output=True, text=True, check=False, timeout=HANGS)  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "many" / "manifest.json").read_text() == (tmp_path / "one" / "manifest.json").read_text()
    options, *_ = (tmp_path / "options.txt").read_text().split("\n\n")
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in options.splitlines())
    assert (asked["array"], asked["partition"], asked["mem-per-cpu"], asked["cpus-per-task"]) == (
        "0-1",
        "cpu",
        "2G",
        "1",
    )
    assert {"wait", "requeue"} <= asked.keys()
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in options.splitlines())


def test_torchrun_knows_the_options(tmp_path: Path) -> None:
    from torch.distributed.run import parse_args

    command(tmp_path, "torchrun", '#!/bin/bash\nprintf "%s\\n" "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE" "$@"\n')
    command(tmp_path, "python", "#!/bin/bash\nexit 0\n")  # that finds a GPU
    done = started(tmp_path, SCRIPTS[1], "pretrain", "r.toml", "--train.steps=4", NODES="1:2", HEAD="node1:29500")
    assert done.returncode == 0, done.stderr
    disabled, *arguments = done.stdout.splitlines()
    chosen = parse_args(arguments)  # type: ignore[no-untyped-call]
    assert disabled == "1"
    assert (chosen.nnodes, chosen.nproc_per_node, chosen.rdzv_endpoint) == ("1:2", "gpu", "node1:29500")
    assert (chosen.module, chosen.training_script) == (True, "lambert")
    assert chosen.training_script_args == ["pretrain", "r.toml", "--train.steps=4"]


def test_torchrun_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    command(tmp_path, "torchrun", "#!/bin/bash\necho $*\n")
    command(tmp_path, "python", "#!/bin/bash\nexit 1\n")
    done = started(tmp_path, SCRIPTS[1], "pretrain", "r.toml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "torch finds no GPU here" in done.stderr
    assert "PROCESSES=2 " in done.stderr
    done = started(tmp_path, SCRIPTS[1], "pretrain", "r.toml", PROCESSES="2")
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node 2 " in done.stdout


def test_kubernetes() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert container["command"][:4] == ["python", "-m", "lambert", "launch"]
    flags = dict(flag[2:].split("=") for flag in container["command"][4:] if flag.startswith("--"))
    assert flags["endpoint"].split(":")[0] == f"{name}-0.{service['metadata']['name']}"
    assert int(flags["nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert "pretrain" in all_verbs()
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    by_action = {rule["action"]: rule for rule in reversed(job["spec"]["podFailurePolicy"]["rules"])}
    assert by_action["FailJob"]["onExitCodes"]["values"] == [2, 3, 5]
    assert by_action["Ignore"]["onExitCodes"]["values"] == [75]


def test_kubernetes_command_is_understood(lambert: Any) -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    command = re.findall(r"^            - (\S+)$", text.split("command:")[1].split("resources:")[0], re.MULTILINE)
    shown = lambert(command[3], "--dry-run", *command[4:])
    assert shown.code == 0, shown.err
    assert "2 machines that meet at lambert-0.lambert:29500" in shown.out
    assert shown.out.rstrip().endswith("-m lambert pretrain /data/recipe.toml --out=/data/run")


def test_service_on_kubernetes() -> None:
    yaml = pytest.importorskip("yaml")
    from lambert.wings.serve.config import ServeConfig

    deployment, service, autoscaler = yaml.safe_load_all((DEPLOY / "serve-kubernetes.yaml").read_text())
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    assert {volume["name"] for volume in template["spec"]["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    config = parse.call(container["command"][3:], run=lambda config, *_, **__: config)
    assert isinstance(config, ServeConfig)
    assert [name for name, _ in config.models] == ["labels"]
    (port,) = container["ports"]
    assert port["containerPort"] == config.port == int(template["metadata"]["annotations"]["prometheus.io/port"])
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert template["spec"]["terminationGracePeriodSeconds"] >= wait + config.seconds + 2
    metric = autoscaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric in (DEPLOY.parent / "src" / "lambert" / "wings" / "serve" / "metrics.py").read_text()
    assert "LAMBERT_API_KEY" in {variable["name"] for variable in container["env"]}


IMAGES = sorted(DEPLOY.glob("Dockerfile.*"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, in order."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", path.read_text(encoding="utf-8")))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.suffix[1:])
def test_images(path: Path) -> None:
    """What the files refer to exists, and nothing runs as root."""
    found = instructions(path)
    assert {name for name, _ in found} <= {
        "ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    bases = [rest for name, rest in found if name == "FROM"]
    assert len(bases) == 2
    assert [base.partition(" AS ")[2] for base in bases] == ["build", ""]
    hidden = {line for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, rest in found:
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((DEPLOY.parent / source).exists() and f"!{source}" in hidden for source in sources), rest
    last = found[[name for name, _ in found].index("FROM", 3) :]
    assert ("USER", "1000") in last
    assert ("ENTRYPOINT", '["lambert"]') in last
    assert (DEPLOY.parent / "pyproject.toml").read_text().count('lambert = "lambert.__main__:main"') == 1


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.suffix[1:])
def test_images_keep_the_torch_that_is_pinned(path: Path) -> None:
    """The image for CPUs has that of the Makefile. The other keeps its own: it is a constraint of the installation."""
    text, makefile = path.read_text(encoding="utf-8"), (DEPLOY.parent / "Makefile").read_text(encoding="utf-8")
    pinned = re.findall(r"^TORCH \?= (torch==\S+)$", makefile, re.MULTILINE)
    if path.suffix == ".cpu":
        assert re.findall(r"^ARG TORCH=(\S+)$", text, re.MULTILINE) == pinned
    else:
        assert f"pytorch:{pinned[0].removeprefix('torch==')}-cuda" in text
        assert "-c /tmp/torch.txt" in text
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)[0].split(",")
    known = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)
