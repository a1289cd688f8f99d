"""The lines that `lambert plan` prints, and its advice for a run that does not fit."""

import re

import pytest
from commands import one_line
from plans import LAMB, Lambert, found


def test_the_table_has_the_chosen_row_and_marks_what_is_over_a_limit(lambert: Lambert) -> None:
    command = (LAMB, "--device=H100", "--price=3", "--link=infiniband-200")
    for flags, limit in ((["--budget=300USD"], "budget"), (["--deadline=1h"], "deadline")):
        rows = lambert("plan", *command, *flags).out.partition("efficient choices")[2].splitlines()
        (chosen,) = (row for row in rows if row.endswith(" <- chosen"))
        assert "float32 " in chosen
        over = [row for row in rows if row.endswith(f" over the {limit}")]
        assert over
        assert all((rows.index(row) < rows.index(chosen)) == (limit == "budget") for row in over)


@pytest.mark.parametrize(
    ("settings", "flags", "advice"),
    [
        (["train.micro_tokens=65536"], [], r"--set train\.micro_tokens=\d+ or with --device=H200\."),
        (["model.layers=60"], [], r"--devices=2 --set train\.shard_optimizer=true or with --device=P100\."),
        pytest.param(
            ["model.layers=60"], ["--devices=2"], r"--set train\.shard_optimizer=true or with --device=P100\.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["model.layers=600"], [], r"--device=H200 --devices=2 --set train\.shard_optimizer=true\.",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
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
    one_line(
        called, 2, "None of the changes tried makes it fit: on ", " a device still lacks 337.1 GB. Take a smaller model"
    )


def test_a_recipe_of_which_only_another_exchange_fits_is_an_error_that_names_it(lambert: Lambert) -> None:
    large = [f"--set={name}" for name in ("exchange.method=int8", "model.layers=44", "model.hidden=1280")]
    called = lambert("plan", LAMB, "--device=V100-16GB", "--devices=8", *large)
    one_line(called, 2, "GB too few", "or with --set exchange.method=bfloat16.")
