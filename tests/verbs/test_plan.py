"""`lambert plan` as a user calls it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from commands import one_line

from lambert.model.config import SIZES, EncoderConfig
from lambert.planning.choices import choices, efficient
from lambert.planning.devices import DEVICES
from lambert.planning.work import Work
from lambert.verbs import demo
from lambert.verbs.plan import plot
from lambert.verbs.plan.scripts import _quoted

Lambert = Callable[..., Any]
ROOT = Path(__file__).parents[2]
PRETRAIN = ROOT / "recipes" / "bert-base-128.toml"
LAMB = ROOT / "recipes" / "lamb-large-128.toml"
SQUAD = ROOT / "recipes" / "squad-v1.1.toml"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A recipe whose run takes seconds on this machine."""
    recipe = tmp_path / "run.toml"
    recipe.write_text('corpus = "c"\nout = "o"\n[model]\nlayers = 2\n[train]\nsteps = 10\nbatch_size = 4\n')
    return recipe


def found(lambert: Lambert, *arguments: object) -> dict[str, Any]:
    called = lambert("plan", *arguments, "--json")
    assert called.code == 0, called.err
    return dict(json.loads(called.out))


def test_cost_time_and_energy_are_consistent(lambert: Lambert) -> None:
    result = found(lambert, PRETRAIN, "--device=A100-80GB", "--devices=8", "--price=2")
    chosen = result["chosen"]
    assert result["updates"] == 900_000
    assert chosen["seconds"] == pytest.approx(900_000 * chosen["update_seconds"])
    assert chosen["cost"] == pytest.approx(2 * 8 * chosen["seconds"] / 3600)
    assert chosen["kilowatt_hours"] == pytest.approx(0.4 * chosen["device_hours"])
    assert sum(chosen["parts"].values()) == pytest.approx(chosen["update_seconds"])
    assert "waiting" in chosen["limit"]


def test_no_efficient_choice_is_beaten(lambert: Lambert) -> None:
    result = found(lambert, LAMB, "--device=A100-80GB,H100,V100-32GB", "--price=A100-80GB=1.8,H100=3,V100-32GB=0.9")
    table = result["efficient"]
    assert len(table) > 4
    assert [row["seconds"] for row in table] == sorted(row["seconds"] for row in table)
    assert [row["cost"] for row in table] == sorted((row["cost"] for row in table), reverse=True)


def test_a_budget_takes_the_fastest_and_a_deadline_the_cheapest(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--price=3", "--link=infiniband-200")
    fast = found(lambert, *command, "--budget=300USD")["chosen"]
    cheap = found(lambert, *command, "--deadline=12h")["chosen"]
    assert fast["cost"] <= 300 < found(lambert, *command, "--budget=9999USD")["chosen"]["cost"]
    assert cheap["seconds"] <= 12 * 3600
    assert cheap["cost"] < fast["cost"]
    assert fast["method"] == cheap["method"] == "float32"
    one_line(lambert("plan", *command, "--budget=1USD"), 2, "No choice keeps 1USD: the cheapest is 1 H100 with")


def test_a_prepared_corpus_gives_lengths_and_vocabulary(lambert: Lambert, corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text(
        f'corpus = "{corpus}"\nout = "{tmp_path}/out"\n[model]\nlayers = 2\n[train]\nepochs = 1\nbatch_size = 4'
    )
    result = found(lambert, recipe, "--device=T4")
    assert result["assumed"] == []
    assert result["tokens"] > 0
    more = found(lambert, recipe, "--device=T4", "--set", "train.epochs=3")
    assert more["sequences"] == pytest.approx(3 * result["sequences"], rel=0.1)


def test_fine_tuning_without_its_files(lambert: Lambert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    command = (SQUAD, "--device=V100-16GB", "--set", "train.precision=float16")
    one_line(lambert("plan", *command), 2, "add --size")
    one_line(lambert("plan", *command, "--size=base"), 2, "add --sequences")
    result = found(lambert, *command, "--size=base", "--sequences=88524")
    assert result["updates"] == 2 * 88_524 // 12
    assert 100 < result["chosen"]["seconds"] < 1440


def test_this_machine_is_measured(lambert: Lambert, small: Path) -> None:
    result = found(lambert, small, "--seconds=0.5")
    assert result["chosen"]["device"]
    assert 0 < result["chosen"]["share_of_peak"] < 1
    assert 0 < result["chosen"]["seconds"] < 600


def test_failures_are_simulated(lambert: Lambert) -> None:
    pytest.importorskip("simpy")
    command = (LAMB, "--device=V100-32GB", "--devices=64", "--set", "train.precision=float16")
    quiet, noisy = (found(lambert, *command, f"--failures={hours}")["failures"] for hours in (10_000, 10))
    assert quiet["useful_share"] > 0.98 > noisy["useful_share"] > 0.5
    assert noisy["useful_share"] == pytest.approx(noisy["useful_share_closed_form"], abs=0.05)
    assert noisy["best_save_every"] < quiet["best_save_every"]
    assert noisy["useful_share_1_percent"] < noisy["useful_share"] < noisy["useful_share_99_percent"]
    short = found(lambert, *command, "--failures=500", "--set", "train.steps=100")["failures"]
    assert short["useful_share"] == pytest.approx(short["useful_share_closed_form"], abs=0.02)
    lines = lambert("plan", *command, "--failures=500", "--set", "train.steps=100").out
    assert f"the mean of {short['simulations']:,} simulated runs" in " ".join(lines.split())


def test_a_budget_and_a_deadline_are_both_kept_by_the_cheapest_choice(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--price=3", "--link=infiniband-200")
    both = found(lambert, *command, "--budget=300USD", "--deadline=12h")["chosen"]
    assert both["cost"] <= 300
    assert both["seconds"] <= 12 * 3600
    assert both == found(lambert, *command, "--deadline=12h")["chosen"]
    rows = lambert("plan", *command, "--budget=300USD", "--deadline=12h").out.splitlines()
    assert {row.partition(" over the ")[2] for row in rows} == {"", "budget", "deadline"}
    refused = lambert("plan", *command, "--budget=300USD", "--deadline=10m")
    one_line(refused, 2, "No choice keeps 300USD and 10m: the cheapest is 1 H100 with", ", the fastest ")
    one_line(lambert("plan", *command, "--budget=10USD", "--deadline=12h"), 2, "No choice keeps 10USD and 12h")


OWN = """[device]
name = "Own"
float32 = 100
bfloat16 = 400
bandwidth = 1000
memory = 24
watts = 300
per_node = 4
link = "pcie-4"
price = 1.5
"""


def test_a_device_of_ones_own(lambert: Lambert, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    result = found(lambert, LAMB, f"--device={file}", "--devices=8", "--link=infiniband-200")
    chosen = result["chosen"]
    assert (chosen["device"], chosen["devices"], chosen["nodes"], result["cost_unit"]) == ("Own", 8, 2, "USD")
    assert chosen["cost"] == pytest.approx(1.5 * chosen["device_hours"])
    assert chosen["kilowatt_hours"] == pytest.approx(0.3 * chosen["device_hours"])
    assert found(lambert, LAMB, f"--device={file}", "--price=3")["chosen"]["cost"] == pytest.approx(
        2 * found(lambert, LAMB, f"--device={file}")["chosen"]["cost"]
    )
    beside = found(lambert, LAMB, f"--device={file},H100", "--price=H100=3")["efficient"]
    assert {row["device"] for row in beside} <= {"Own", "H100"}
    no_price = lambert("plan", LAMB, f"--device={file},H100")
    one_line(no_price, 2, "has none for H100: add H100=USD for an hour.")
    large = lambert("plan", LAMB, f"--device={file}", "--set=train.micro_tokens=65536")
    one_line(large, 2, "the Own has 24.0", "It fits with --set train.micro_tokens=", " or with --device=H200.")
    file.write_text(OWN.replace("memory = 24\n", ""))
    one_line(lambert("plan", LAMB, f"--device={file}"), 2, "own.toml: [device] lacks memory.")
    one_line(lambert("plan", LAMB, "--device=none.toml"), 2, "No such file: none.toml.")


def test_the_plot_has_the_choices_and_the_limits(lambert: Lambert, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = tmp_path / "plan.svg"
    command = (LAMB, "--device=A100-80GB,H100", "--price=A100-80GB=1.8,H100=3", f"--plot={written}")
    result = found(lambert, *command, "--budget=500USD", "--deadline=2d")
    root = ElementTree.parse(written).getroot()
    texts = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {
        "lamb-large-128: time against cost of the choices", "time of the run (hours)", "cost of the run (USD)",
        "chosen", "over the budget or the deadline", "efficient: no other is both faster and cheaper",
        "A100-80GB", "H100", "budget: 500USD", "deadline: 2d",
    } <= texts  # fmt: skip
    for row in result["efficient"]:
        each = f"{row['nodes']} x {row['devices'] // row['nodes']}" if row["nodes"] > 1 else str(row["devices"])
        assert f"{each} {row['device']}" in texts
    first = written.read_bytes()
    found(lambert, *command, "--budget=500USD", "--deadline=2d")
    assert written.read_bytes() == first
    alone = lambert("plan", PRETRAIN, "--device=T4", f"--plot={written}")
    assert alone.code == 0, alone.err
    assert "over the budget or the deadline" not in written.read_text()
    assert "cost of the run (device-hours)" in written.read_text()


def test_a_plot_replaces_only_a_plot_and_needs_matplotlib(
    lambert: Lambert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "logo.svg"
    other.write_text("<svg/>")
    command = (PRETRAIN, "--device=T4", f"--plot={other}")
    monkeypatch.setattr(plot, "find_spec", lambda name: object())
    one_line(lambert("plan", *command), 2, "`lambert plan` did not write it: name another file")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    one_line(lambert("plan", *command), 2, "plot needs matplotlib: pip install 'lambert-bert[report]'")
    assert other.read_text() == "<svg/>"


def test_a_slow_device_is_waited_for_in_the_plan_and_in_its_simulation(lambert: Lambert) -> None:
    pytest.importorskip("simpy")
    command = (LAMB, "--device=V100-32GB", "--devices=64", "--failures=5000", "--set", "train.steps=1000")
    usual, slow = (found(lambert, *command, *flags) for flags in ([], ["--slow=1.5"]))
    computing = usual["chosen"]["update_seconds"] - usual["chosen"]["parts"]["exchange"]
    more = slow["chosen"]["update_seconds"] - usual["chosen"]["update_seconds"]
    assert more == pytest.approx(0.5 * computing, rel=0.1)
    waiting = [result["failures"]["waiting_seconds"] / 1000 for result in (usual, slow)]
    assert waiting[1] - waiting[0] == pytest.approx(more, rel=0.02)
    assert waiting[0] < usual["chosen"]["parts"]["waiting"] + 1e-9
    assert "wait for the slowest device" in lambert("plan", *command, "--slow=1.5").out
    assert "wait for the slowest device" not in lambert("plan", PRETRAIN, "--device=T4", "--failures=5000").out


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
        assert "CHANGE" not in script
    marked = lambert(*command).out
    assert marked.count("CHANGE ") == 2
    assert "CHANGE " in marked.partition("apiVersion")[0]


@pytest.mark.parametrize(
    "word",
    ["plain", "--a.b=c", "/x/y.toml", "on", "NULL", "12", "1e5", "0x1f", "a: b", "a'b", "[x]", "", "h:80/x:1", "a:"],
)
def test_words_of_the_manifest_are_text(word: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(f"- {_quoted(word)}") == [word]


def test_the_case_of_devices_does_not_matter(lambert: Lambert) -> None:
    rows = [
        found(lambert, PRETRAIN, *flags)["efficient"]
        for flags in (["--device=h100,t4", "--price=h100=3,T4=1"], ["--device=H100,T4", "--price=H100=3,T4=1"])
    ]
    assert rows[0] == rows[1]


def test_the_script_alone_is_on_standard_output(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--devices=32", "--cluster=slurm")
    called = lambert("plan", *command)
    assert called.out == found(lambert, *command)["script"] + "\n"
    assert called.out.startswith("#!/bin/bash\n")
    assert "efficient choices" in called.err


def test_the_table_has_the_chosen_row_and_marks_what_is_over_a_limit(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--price=3", "--link=infiniband-200")
    for flags, limit in ((["--budget=300USD"], "budget"), (["--deadline=1h"], "deadline")):
        rows = lambert("plan", *command, *flags).out.partition("efficient choices")[2].splitlines()
        (chosen,) = (row for row in rows if row.endswith(" <- chosen"))
        assert "float32 " in chosen
        over = [row for row in rows if row.endswith(f" over the {limit}")]
        assert over
        assert all((rows.index(row) < rows.index(chosen)) == (limit == "budget") for row in over)


def test_the_price_is_that_of_this_machine(lambert: Lambert, small: Path) -> None:
    result = found(lambert, small, "--seconds=0.5", "--price=7")
    assert result["cost_unit"] == "USD"
    assert result["chosen"]["cost"] == pytest.approx(7 * result["chosen"]["device_hours"])


@pytest.mark.parametrize(("kind", "cores"), [("slurm", "--cpus-per-task="), ("kubernetes", " cpu: ")])
def test_scripts_for_cpus_ask_for_no_gpu(kind: str, cores: str, lambert: Lambert, small: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    script = found(lambert, small, "--seconds=0.5", "--devices=4", "--nodes=2", f"--cluster={kind}")["script"]
    assert "gpu" not in script
    assert f"{cores}{2 * torch.get_num_threads()}" in script
    assert re.search(r"--nproc-per-node[ =]2\b", script)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices=0"], "devices = 0 must be at least 1"),
        (["--device=A100-80G"], "Did you mean 'A100-80GB' or 'A100-80GB-PCIe'?"),
        (["--device=v100"], "Did you mean 'V100-16GB' or 'V100-32GB'?"),
        (["--device=L40S"], "device = 'L40S' is unknown. Did you mean 'L4'?"),
        (["--device=Gaudi"], "device = 'Gaudi' is unknown. Known: A100-40GB, "),
        (["--device=H100", "--budget=500USD"], "budget needs the price of H100: add --price"),
        (["--device=H100", "--price=cheap"], "price = 'cheap' must be USD for an hour"),
        (["--device=H100", "--price=V100-16GB=1"], "price names V100-16GB, which is not in device"),
        (["--device=H100,T4", "--price=H100=1"], "price = 'H100=1' has none for T4: add T4=USD for an hour."),
        (["--device=H100,T4", "--price=H100=1,2"], "has several prices for a device"),
        (["--device=H100,T4", "--price=H100=1,H100=2"], "has several prices for H100"),
        (["--device=H100", "--price=-1"], "price = '-1' must be USD for an hour"),
        (["--device=H100", "--budget=-5", "--price=1"], "budget = '-5' must be an amount"),
        (["--device=TPU-v3", "--cluster=slurm"], "Lambert does not run on TPU-v3"),
        (["--device=H100", "--devices=8", "--link=ethernet-10"], "devices = 8 are in one: leave it out"),
        (["--device=H100", "--budget=much", "--price=1"], "budget = 'much' must be an amount such as 500USD"),
        (["--device=H100", "--deadline=soon"], "deadline = 'soon' must be a duration"),
        (["--device=H100", "--link=infiniband-20"], "Did you mean 'infiniband-200'?"),
        (["--device=H100", "--link=nvlink-4"], "is inside of a machine"),
        (["--device=H100", "--nodes=1", "--link=ethernet-10"], "nodes = 1 is one: leave one of them out"),
        (["--device=H100", "--nodes=3", "--devices=8"], "nodes = 3 cannot share devices = 8 evenly"),
        (["--device=H100", "--devices=3"], "3 ranks cannot share train.batch_size = 256 evenly"),
        (
            ["--device=H100", "--devices=9", "--set", "train.batch_size=288"],
            "2 machines of 8 H100 cannot share them evenly. Take 8 or 12, or name the number of machines (nodes).",
        ),
        (["--device=H100", "--checkpoint=5"], "add --failures"),
        (["--device=H100", "--image=x"], "image = 'x' is for the pods of Kubernetes: add --cluster kubernetes."),
        (["--device=H100", "--cluster=slurm", "--claim=x"], "claim = 'x' is for the pods of Kubernetes"),
        (["--device=H100", "--cluster=kubernetes", "--image=a b"], "image = 'a b' is no name of a container image"),
        (
            ["--device=H100", "--cluster=kubernetes", "--claim=My_data"],
            "claim = 'My_data' is no name of a volume claim",
        ),
        (["--device=H100", "--plot=plan.png"], "plot = 'plan.png' must be the name of an SVG file, such as plan.svg"),
        (["--device=H100", "--slow=0.5"], "slow = 0.5 must be at least 1"),
        (["--device=H100", "--jitter=1"], "jitter = 1.0 must be"),
        (["--device=H100", "--set", "train.steps"], "NAME=VALUE"),
        (["--device=H100", "--set", "=3"], "NAME=VALUE"),
        (["--device=H100", "--set", "train.stepz=4"], "train.steps"),
        (["--device=K80", "--set", "train.micro_tokens=1000000"], "The run does not fit: it needs"),
    ],
)
def test_bad_input_is_a_line(flags: list[str], message: str, lambert: Lambert) -> None:
    one_line(lambert("plan", PRETRAIN, *flags), 2, message)


def test_recipes_that_are_none_of_plans(lambert: Lambert) -> None:
    one_line(lambert("plan", demo.PACKAGE / demo.RECIPES / "prepare.toml"), 2, "no recipe of pretrain or finetune")
    one_line(lambert("plan", "nothing.toml"), 2, "No such recipe")
    one_line(lambert("plan"), 2, "plan requires a RECIPE")
    one_line(lambert("plan", ROOT / "README.md"), 2, "README.md is not a recipe (a TOML file). See recipes/.")


@pytest.mark.parametrize(
    ("settings", "flags", "advice"),
    [
        (["train.micro_tokens=65536"], [], r"--set train\.micro_tokens=\d+ or with --device=H200\."),
        (["model.layers=60"], [], r"--devices=2 --set train\.shard_optimizer=true or with --device=P100\."),
        (["model.layers=60"], ["--devices=2"], r"--set train\.shard_optimizer=true or with --device=P100\."),
        (["model.layers=600"], [], r"--device=H200 --devices=2 --set train\.shard_optimizer=true\."),
    ],
)
def test_what_is_said_to_fit_fits(settings: list[str], flags: list[str], advice: str, lambert: Lambert) -> None:
    refused = lambert("plan", LAMB, "--device=K80", *flags, *(f"--set={setting}" for setting in settings))
    one_line(refused, 2, "GB too few. It fits with ")
    text = refused.err.partition("It fits with ")[2].strip()
    assert re.fullmatch(advice, text)
    for change in text.removesuffix(".").split(" or with "):
        new = {setting.partition("=")[0]: setting for setting in [*settings, *re.findall(r"--set (\S+)", change)]}
        which = ["--device=K80", *flags, *re.findall(r"--device\S+", change)]
        devices = {flag.partition("=")[0]: flag for flag in which}
        row = found(lambert, LAMB, *devices.values(), *(f"--set={setting}" for setting in new.values()))["chosen"]
        assert row["memory_bytes"] <= 1e9 * (12 if "--device=K80" in devices.values() else 141)


def test_what_fits_nowhere_is_said_with_what_lacks(lambert: Lambert) -> None:
    called = lambert("plan", LAMB, "--device=K80", "--set=model.hidden=20480")
    one_line(called, 2, "No change of these makes it fit: on ", " a device still lacks 337.1 GB. Take a smaller model")


def test_a_recipe_of_which_only_another_exchange_fits_is_an_error_that_names_it(lambert: Lambert) -> None:
    large = [f"--set={name}" for name in ("exchange.method=int8", "model.layers=44", "model.hidden=1280")]
    called = lambert("plan", LAMB, "--device=V100-16GB", "--devices=8", *large)
    one_line(called, 2, "GB too few", "or with --set exchange.method=bfloat16.")


def test_choices_that_do_not_fit_are_not_efficient() -> None:
    work = Work(EncoderConfig(**SIZES["large"], vocabulary=30_522), [512], 256, {"mlm": 77}, micro_tokens=65_536)
    found = choices(work, 10**6, [DEVICES["T4"], DEVICES["H200"]], {}, counts=(1, 2))
    assert {one.cluster.device.name for one in found} == {"T4", "H200"}
    assert {one.cluster.device.name for one in efficient(found)} == {"H200"}
