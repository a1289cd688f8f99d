"""`lambert plan` as a user calls it."""

from pathlib import Path

import pytest
from commands import one_line
from plans import LAMB, PRETRAIN, ROOT, SQUAD, Lambert, found

from lambert.verbs import demo


def test_cost_time_and_energy_are_consistent(lambert: Lambert) -> None:
    result = found(lambert, PRETRAIN, "--device=A100-80GB", "--devices=8", "--price=2")
    chosen = result["chosen"]
    assert result["updates"] == 900_000
    assert chosen["seconds"] == pytest.approx(900_000 * chosen["update_seconds"])
    assert chosen["cost"] == pytest.approx(2 * 8 * chosen["seconds"] / 3600)
    assert chosen["kilowatt_hours"] == pytest.approx(0.4 * chosen["device_hours"])
    assert sum(chosen["parts"].values()) == pytest.approx(chosen["update_seconds"])
    assert "products" in chosen["limit"]


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
    one_line(lambert("plan", *command, "--budget=1USD"), 2, "No choice is within 1USD: the cheapest is 1 H100 with")


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


@pytest.mark.usefixtures("quick_ceilings")
def test_this_machine_is_measured(lambert: Lambert, small: Path) -> None:
    result = found(lambert, small, "--seconds=0.5")
    assert result["chosen"]["device"]
    assert 0 < result["chosen"]["share_of_peak"] < 1
    assert 0 < result["chosen"]["seconds"] < 600


@pytest.mark.slow
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
    one_line(refused, 2, "No choice is within 300USD and 10m: the cheapest is 1 H100 with", ", the fastest ")
    one_line(lambert("plan", *command, "--budget=10USD", "--deadline=12h"), 2, "No choice is within 10USD and 12h")


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
    one_line(no_price, 2, "has no price for H100: add H100=USD for an hour.")
    large = lambert("plan", LAMB, f"--device={file}", "--set=train.micro_tokens=65536")
    one_line(large, 2, "the Own has 24.0", "It fits with --set train.micro_tokens=", " or with --device=H200.")
    again = tmp_path / "again.toml"
    again.write_text(OWN)
    one_line(lambert("plan", LAMB, f"--device=H100,{file},{again}", "--price=1"), 2, "several files describe Own.")
    file.write_text(OWN.replace("memory = 24\n", ""))
    one_line(lambert("plan", LAMB, f"--device={file}"), 2, "own.toml: [device] lacks memory.")
    one_line(lambert("plan", LAMB, "--device=none.toml"), 2, "No such file: none.toml.")


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


def test_the_case_of_devices_does_not_matter(lambert: Lambert) -> None:
    rows = [
        found(lambert, PRETRAIN, *flags)["efficient"]
        for flags in (["--device=h100,t4", "--price=h100=3,T4=1"], ["--device=H100,T4", "--price=H100=3,T4=1"])
    ]
    assert rows[0] == rows[1]


def test_the_price_is_that_of_this_machine(lambert: Lambert, small: Path) -> None:
    result = found(lambert, small, "--seconds=0.5", "--price=7")
    assert result["cost_unit"] == "USD"
    assert result["chosen"]["cost"] == pytest.approx(7 * result["chosen"]["device_hours"])


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
        (["--device=H100,T4", "--price=H100=1"], "price = 'H100=1' has no price for T4: add T4=USD for an hour."),
        (["--device=H100,T4", "--price=H100=1,2"], "has several prices for a device"),
        (["--device=H100,T4", "--price=H100=1,H100=2"], "has several prices for H100"),
        (["--device=H100", "--price=-1"], "price = '-1' must be USD for an hour"),
        (["--device=H100", "--budget=-5", "--price=1"], "budget = '-5' must be an amount"),
        (["--device=TPU-v3", "--cluster=slurm"], "Lambert does not run on TPU-v3"),
        (["--device=H100", "--devices=8", "--link=ethernet-10"], "link = 'ethernet-10' needs several machines"),
        (["--device=H100", "--budget=much", "--price=1"], "budget = 'much' must be an amount such as 500USD"),
        (["--device=H100", "--deadline=soon"], "deadline = 'soon' must be a duration"),
        (["--device=H100", "--link=infiniband-20"], "Did you mean 'infiniband-200'?"),
        (["--device=H100", "--link=nvlink-4"], "connects devices of a machine"),
        (["--device=H100", "--nodes=1", "--link=ethernet-10"], "nodes = 1: omit one of them"),
        (["--device=H100", "--nodes=3", "--devices=8"], "nodes = 3 cannot share devices = 8 evenly"),
        (["--device=H100", "--devices=3"], "3 ranks cannot share train.batch_size = 256 evenly"),
        (
            ["--device=H100", "--devices=9", "--set", "train.batch_size=288"],
            "2 machines of 8 H100 cannot share them evenly. Take 8 or 12, or name the number of machines (nodes).",
        ),
        (["--device=H100", "--checkpoint=5"], "checkpoint requires --failures"),
        (["--device=H100", "--image=x"], "image = 'x' requires --cluster kubernetes."),
        (["--device=H100", "--cluster=slurm", "--claim=x"], "claim = 'x' requires --cluster kubernetes"),
        (["--device=H100", "--cluster=kubernetes", "--image=a b"], "image = 'a b' is not a name of a container image"),
        (
            ["--device=H100", "--cluster=kubernetes", "--claim=My_data"],
            "claim = 'My_data' is not a name of a volume claim",
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
    one_line(
        lambert("plan", demo.PACKAGE / demo.RECIPES / "prepare.toml"), 2, "is not a recipe of pretrain or finetune"
    )
    one_line(lambert("plan", "nothing.toml"), 2, "No such recipe")
    one_line(lambert("plan"), 2, "plan requires a RECIPE")
    one_line(lambert("plan", ROOT / "README.md"), 2, "README.md is not a recipe (a TOML file). See recipes/.")


def test_a_recipe_without_paths_is_planned(lambert: Lambert, tmp_path: Path) -> None:
    recipe = tmp_path / "mini.toml"
    recipe.write_text("[model]\nlayers = 2\n[train]\nsteps = 10\nbatch_size = 4\n")
    result = found(lambert, recipe, "--device=T4")
    assert result["assumed"][0].startswith("the recipe names no corpus (--set corpus=PATH): a vocabulary of 30,522")
    one_line(lambert("plan", recipe, "--device=T4", "--corpus=c"), 2, "--set corpus=VALUE")
    one_line(lambert("plan", recipe, "--device=T4", "--cluster=slurm"), 2, "add --set corpus=PATH out=PATH.")
    one_line(lambert("plan", recipe, "--device=cpu"), 2, "device = 'cpu' is unknown. auto is this machine; others are")
    recipe.write_text("[task]\nname = 'squad'\n[train]\nsteps = 10\nbatch_size = 4\n")
    one_line(lambert("plan", recipe, "--device=T4"), 2, "neither a model nor init: add --size")
    (assumed,) = found(lambert, recipe, "--device=T4", "--size=tiny")["assumed"]
    assert assumed.startswith("the recipe names no data (--set data=PATH) and the recipe names no init")
