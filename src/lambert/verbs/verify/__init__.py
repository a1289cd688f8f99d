"""`lambert verify`: whether the beginning of a run is on the curve that its recipe expects."""

import dataclasses
from contextlib import closing

from lambert.commands import parse
from lambert.core.errors import DivergedError, UsageError
from lambert.core.files import scratch_folder
from lambert.engine import archive
from lambert.engine.progress import progress
from lambert.engine.signals import START_AGAIN, graceful_stop
from lambert.runs.config import RunConfig
from lambert.runs.expect import ExpectConfig
from lambert.runs.result import Say, silent
from lambert.verb import list_training, load, record_of
from lambert.verbs.settings.training import verb_of
from lambert.verbs.settings.verify import VerifyConfig
from lambert.verbs.verify.comparison import Verified, compare_run
from lambert.verbs.verify.measured import read_measured
from lambert.verbs.verify.writing import make_expectation, write

_SOON, _SHARE = 100, 0.01
"""Without a number of updates, a run is verified up to its last band within the first _SOON updates or the first _SHARE
of the run, whichever is later. Our choice: seconds for the demo, and an hour of a run of four days."""


def run(config: VerifyConfig, say: Say = silent) -> Verified | None:
    """Verifies a recipe, shows the comparison and returns it; with `write_from`, writes [expect] and returns None.

    Raises DivergedError if the run is off the curve.
    """
    verb = verb_of(config.recipe)
    if verb is None:
        verbs = " or ".join(one.name for one in list_training())
        raise UsageError(f"{config.recipe} is not a recipe of {verbs}, the verbs that verify checks.")
    if config.write_from:
        write(config.recipe, expect := make_expectation(config.write_from))
        say(f"[expect] of {config.recipe}: {len(expect.losses)} bands of the loss from {expect.seeds} seeds")
        return None
    tokens = [verb.name, str(config.recipe), "--out=run", *config.overrides]  # a run has a folder of its own
    whole = parse.settings(tokens)
    overrides = tuple(token for token in config.overrides if token.startswith("-"))
    found = verify_run(dataclasses.replace(config, overrides=overrides), whole, say)
    if config.json:
        say(found.json())
    for line in () if config.json else found.lines():
        say(line)
    if not found.on_curve:
        raise DivergedError(found.verdict())
    if not config.json:
        say("on the curve")
    return found


def verify_run(given: VerifyConfig, config: RunConfig, say: Say = silent) -> Verified:
    """Runs the first updates of a run, or reads a run, and compares it with `config.expect`. It has the schedule of
    the whole run and stops early.

    Args:
        given: What to verify. `recipe` is only its name in messages, `overrides` names settings that it does not have.
        config: The settings of the run.

    Raises UsageError if the recipe has no table [expect], or none of its bands is within the updates.
    """
    recipe, out = str(given.recipe), given.out
    expect = config.expect
    if expect is None:
        raise UsageError(
            f"{recipe} has no table [expect], with which a run is compared: lambert verify RECIPE --write-from RUN... "
            "makes it from finished runs (docs/verify.md)."
        )
    _check(config, expect, recipe)
    if given.run is not None:
        here = read_measured(given.run)
        return compare_run(given, config, expect, here, here.problem)
    count = _updates(config, expect, given.updates, recipe)
    with scratch_folder("lambert-verify") as scratch:
        folder = out or scratch / "run"
        log = dataclasses.replace(config.log, every=expect.every)
        log = log if out else dataclasses.replace(log, trackers=())
        problem = _begin(dataclasses.replace(config, out=folder, log=log), count, recipe, say)
        return compare_run(given, config, expect, read_measured(folder), problem)


def _begin(config: RunConfig, count: int, recipe: str, say: Say) -> str:
    """Runs `count` updates. Returns why it diverged, or an empty string."""
    updates = load(record_of(type(config)).updates)
    if done := archive.find_last(config.out):
        read_measured(config.out).check_logged(config.log.every, min(done, count))
    if done >= count:
        return ""
    quiet = say is silent
    try:
        with (
            graceful_stop("; the recipe is not verified", START_AGAIN) as stop,
            progress(count, f"verify {recipe}", unit="updates", quiet=quiet, done=done, summary=False) as bar,
            closing(updates(config, stop, silent)) as steps,
        ):
            for step in steps:
                bar.advance(1)
                if step.index >= count:
                    break
    except DivergedError as error:
        return str(error).rstrip(".")
    return ""


def _check(config: RunConfig, expect: ExpectConfig, recipe: str) -> None:
    """Raises UsageError if a band or a score cannot be one of this run."""
    steps = config.train.steps
    if expect.updates and steps is not None and expect.updates[-1] > steps:
        raise UsageError(
            f"{recipe}: expect.losses has a band up to update {expect.updates[-1]:,}, and the run has train.steps = "
            f"{steps:,}. A run of another length has another curve."
        )
    for score in expect.scores:
        if config.scores and score.name not in config.scores:
            known = ", ".join(config.scores)
            raise UsageError(f"{recipe}: expect.scores names {score.name!r}, and the run has: {known}.")


def _updates(config: RunConfig, expect: ExpectConfig, given: int, recipe: str) -> int:
    """Returns the number of updates to run: that of the last band within the `given` ones."""
    if not expect.updates:
        raise UsageError(f"{recipe}: [expect] has no losses, so only a finished run can be compared: --run RUN.")
    whole = config.train.steps or expect.updates[-1]
    most = given or max(_SOON, int(_SHARE * whole), expect.updates[0])
    within = [update for update in expect.updates if update <= most]
    if not within:
        raise UsageError(f"--updates {given} ends before the first band of [expect], at {expect.updates[0]} updates.")
    return within[-1]
