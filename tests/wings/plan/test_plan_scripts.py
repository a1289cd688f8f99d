"""The scripts that `lambert plan` prints."""

import re
from pathlib import Path

import pytest
import torch
from plans import LAMB, ROOT, Lambert, found

from lambert.wings.plan.scripts import _quote


def test_the_scripts_are_those_of_deploy(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--devices=32", "--set", "train.micro_tokens=16384")
    for kind, name in (("slurm", "slurm.sbatch"), ("kubernetes", "kubernetes.yaml")):
        script = found(lambert, *command, f"--cluster={kind}")["script"]
        plain = [line.split(" #")[0].rstrip() for line in (ROOT / "deploy" / name).read_text().splitlines()]
        for line in plain:
            changed = re.search(
                r"--time=|--nodes=|cpus-per|nnodes|completions:|parallelism:|/data/|pretrain|gpu: ", line
            )
            if line and not changed and (not line.startswith("#") or line.startswith("#SBATCH")):
                assert line in script, line
        assert "--train.micro-tokens=16384" in script
    assert "completions: 4" in script
    assert "nvidia.com/gpu: 8" in script


def test_the_manifest_for_kubernetes_has_the_recipe_the_image_and_the_claim(lambert: Lambert, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    recipe = tmp_path / "own.toml"
    odd = '\n\n# "quoted" \\ é 😀\nnote = 1\n'
    text = '  # indented\ncorpus = "c"\nout = "o"\n\n[model]\nlayers = 2\t# tab: {x}\n'
    text += "[train]\nsteps = 10\nbatch_size = 64\n"
    for content in (text, "# narrow\u202fspace, \x85 next line" + odd.replace("note = 1\n", "") + text):
        recipe.write_text(content)
        command = (
            "plan",
            recipe,
            "--device=H100",
            "--devices=32",
            "--cluster=kubernetes",
            "--set=train.micro_tokens=4096",
        )
        script = lambert(*command, "--image=ghcr.io/me/lambert:1.0", "--claim=123").out
        config, service, job = yaml.safe_load_all(script)
        assert config["data"]["recipe.toml"].rstrip() == content.rstrip()
        assert [one["kind"] for one in (config, service, job)] == ["ConfigMap", "Service", "Job"]
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "ghcr.io/me/lambert:1.0"
        assert container["workingDir"] == "/data"
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "123"
        assert volumes["recipe"]["configMap"]["name"] == config["metadata"]["name"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        started = container["command"]
        assert started[-3:] == ["pretrain", f"{mounts['recipe']}/recipe.toml", "--train.micro-tokens=4096"]
        assert "Replace " not in script
    marked = lambert(*command).out
    assert marked.count("Replace ") == 2
    assert "Replace " in marked.partition("apiVersion")[0]


@pytest.mark.parametrize(
    "word",
    ["plain", "--a.b=c", "/x/y.toml", "on", "NULL", "12", "1e5", "0x1f", "a: b", "a'b", "[x]", "", "h:80/x:1", "a:"],
)
def test_words_of_the_manifest_are_text(word: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(f"- {_quote(word)}") == [word]


def test_the_script_alone_is_on_standard_output(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--devices=32", "--cluster=slurm")
    called = lambert("plan", *command)
    assert called.out == found(lambert, *command)["script"] + "\n"
    assert called.out.startswith("#!/bin/bash\n")
    assert "efficient choices" in called.err


@pytest.mark.parametrize(("kind", "cores"), [("slurm", "--cpus-per-task="), ("kubernetes", " cpu: ")])
def test_scripts_for_cpus_ask_for_no_gpu(kind: str, cores: str, lambert: Lambert, small: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    script = found(lambert, small, "--seconds=0.5", "--devices=4", "--nodes=2", f"--cluster={kind}")["script"]
    assert "gpu" not in script
    assert f"{cores}{2 * torch.get_num_threads()}" in script
    assert re.search(r"--nproc-per-node[ =]2\b", script)
