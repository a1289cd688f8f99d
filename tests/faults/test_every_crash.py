"""Every crash and every failure of the disk that a small run can meet, one by one (docs/reliability.md).

By default a few of them, spread evenly; LAMBERT_TEST_CRASHES is how many, or "all" (`make test-crash`).
"""

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import disks
import pytest
from disks import Disk, Ended, Files, Operation, Warm

CHOSEN = os.environ.get("LAMBERT_TEST_CRASHES", "1")
ALL = CHOSEN == "all"
POINTS = 0 if ALL else int(CHOSEN)
"""Of each kind and command, where not all are tried."""
KILLED_RUNS = int(os.environ.get("LAMBERT_TEST_KILLED_RUNS", "1"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"),
    pytest.mark.timeout(300 if POINTS == KILLED_RUNS == 1 else 14400),
]

MEASURED = {
    "time", "sequences_per_second", "tokens_per_second", "wait_share", "utilisation", "ceiling_gflops", "memory_mb",
    "checkpoint_pause_seconds", "imbalance", "exchange_seconds", "exchange_wait_seconds",
}  # fmt: skip
"""Keys of metrics.jsonl that differ from run to run."""
TOLD = ("environment.json", "log.txt")
"""Files with times and what happened; all others are compared byte for byte, metrics.jsonl but for MEASURED."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("crashes")
    (home / "place").mkdir()
    return home


@pytest.fixture(scope="module")
def warm(home: Path) -> Iterator[Warm]:
    made = Warm(home, home / "place")
    yield made
    made.close()


def flags(**settings: object) -> list[str]:
    return [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in settings.items()]


@pytest.fixture
def commands(home: Path, texts: Path, corpus: Path, pretrained: Path, small: dict[str, object]) -> dict[str, list[str]]:
    """Each verb that writes, as a small command that writes below `home`/place."""
    rows = home / "rows.tsv"
    pairs = [("river", "water"), ("stone", "land")] * 8
    rows.write_text("text\tlabel\n" + "".join(f"the {thing} near the road\t{kind}\n" for thing, kind in pairs))
    place = home / "place"
    fixed: dict[str, object] = {"train__micro_tokens": 400, "train__compile": "off", "train__device": "cpu"}
    lines: dict[str, object] = {"documents": "line", "vocabulary": 160, "heldout": 0.2, "workers": 1}
    tuning: dict[str, object] = {"task__max_length": 32, "train__batch_size": 8, "train__steps": 2, "log__every": 1}
    run: dict[str, object] = {"train__steps": 6, "train__save_every": 2, "train__evaluate_every": 4}
    sweep = home / "sweep.toml"
    sweep.write_text(
        f'data = "{rows}"\ndev = "{rows}"\ninit = "{pretrained}"\n[task]\nmax_length = 32\n[log]\nevery = 1\n'
        '[train]\nbatch_size = 8\nsteps = 2\nsave_every = 1\nevaluate_every = 1\nmicro_tokens = 400\ndevice = "cpu"\n'
        f'compile = "off"\n[sweep]\nout = "{place / "sweep"}"\ntrials = 2\nsampler = "random"\n[sweep.space]\n'
        '"optim.lr" = {low = 1e-5, high = 1e-2, log = true}\n"optim.weight_decay" = {choices = [0.0, 0.1]}\n'
    )
    return {
        "prepare": ["prepare", *flags(input=texts, out=place / "corpus", **lines)],
        "steps": [
            "prepare",
            *flags(input=texts, out=place / "corpus", steps="extract,clean,tokens", clean="normalise", **lines),
        ],
        "pretrain": ["pretrain", *flags(corpus=corpus, out=place / "run", **small, **fixed, **run)],
        "finetune": [
            "finetune",
            *flags(data=rows, dev=rows, init=pretrained, out=place / "tuned", optim__lr=1e-3, train__save_every=1),
            *flags(**tuning, **fixed),
        ],
        "sweep": ["sweep", str(sweep)],
        "import": ["import", *flags(**{"from": pretrained / "model", "out": place / "imported"})],
        "export": ["export", *flags(model=pretrained / "model", out=place / "exported")],
    }


VERBS = ("prepare", "steps", "pretrain", "resume", "finetune", "import", "export", "launch", "launch two")
LAUNCH = {"launch": ["launch", "-np=1", "--max-restarts=1"], "launch two": ["launch", "-np=2", "--max-restarts=1"]}
"""What stands before `pretrain`; the launcher's own files lie below `home`/place, too."""


@dataclass(frozen=True)
class Sound:
    """A command where nothing goes wrong."""

    before: Files
    """What there is before it."""
    after: Files
    """What it leaves."""
    done: list[Operation]
    """What it did that changed something."""
    count: int
    """Operations with those that failed as they should."""
    passed: set[str] = field(default_factory=set)
    """The states, as `likeness` has them, from which the same command is known to end in `after`."""


@pytest.fixture(scope="module")
def known() -> dict[str, Sound]:
    return {}


@pytest.fixture
def sound(warm: Warm, commands: dict[str, list[str]], known: dict[str, Sound]) -> Callable[[str], Sound]:
    def find(verb: str) -> Sound:
        if verb not in known:
            before: Files = {"tmp": None} if verb in LAUNCH else {}
            if verb == "resume":  # after four of six updates, with rows of the fifth
                after = find("pretrain").after
                gone = ("run/model", "run/scores.json", "run/checkpoints/step-000006")
                before = {path: data for path, data in after.items() if not path.startswith(gone)}
                before |= {f"run/checkpoints/step-000002{path[27:]}": data for path, data in after.items()
                           if path.startswith("run/checkpoints/step-000004")}  # fmt: skip
                before = {path: data for path, data in before.items() if "step-000002" not in path}
            disks.write(warm.root, before)
            left, done = warm.record(command(commands, verb))
            assert left.code == 0, left.text
            known[verb] = Sound(before, disks.read(warm.root), done, left.operations)
        return known[verb]

    return find


def command(commands: dict[str, list[str]], verb: str) -> list[str]:
    if verb in LAUNCH:
        return [*LAUNCH[verb], *commands["pretrain"]]
    return commands["pretrain" if verb == "resume" else verb]


def products(files: Files, rows: bool = True) -> dict[str, Any]:
    """What must be the same however often the command was broken off; `rows`: those of metrics.jsonl, too."""
    found: dict[str, Any] = {path: data for path, data in files.items() if Path(path).name not in TOLD}
    found = {path: data for path, data in found.items() if not path.startswith("sweep/locks/")}
    for path in [path for path in found if path.endswith(("sweep.json", "study.journal"))]:
        content = json.loads(found.pop(path)) if path.endswith("sweep.json") else {"trials": []}
        trials = [{key: value for key, value in trial.items() if key != "seconds"} for trial in content["trials"]]
        found[path] = {**content, "trials": trials}
    for path in [path for path in found if path.endswith("metrics.jsonl")]:
        lines = found.pop(path).decode().splitlines()
        if rows:
            found[path] = [
                {key: value for key, value in json.loads(line).items() if key not in MEASURED} for line in lines
            ]
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path) or
                  (path in one) != (path in other))  # fmt: skip


def spread(found: Sequence[Any]) -> Sequence[Any]:
    """All, or POINTS of them."""
    step = 1 if ALL else max(1, -(-len(found) // POINTS))
    return found[step // 2 :: step]


def shown(path: str, data: bytes) -> bytes:
    """Of a file what the same command can depend on when it is given again."""
    name = Path(path).name
    if name in TOLD:
        return data[-1:]
    if name == "lock.json":
        return re.sub(rb"\d+", b"0", data)
    if name == "metrics.jsonl":
        return re.sub(rb'"(' + "|".join(sorted(MEASURED)).encode() + rb')": [^,}]*', b"", data)
    return data


def again(warm: Warm, tokens: list[str], sound: Sound, where: str, rows: bool = True, gaps: bool = False) -> list[str]:
    """What is wrong after the same command was given again where nothing fails any more; `gaps`: a save had failed."""
    state = disks.likeness(disks.read(warm.root), shown)
    if state in sound.passed:
        return []
    wrong = _again(warm, tokens, sound.after, where, rows, gaps)
    if rows and not gaps and not wrong:
        sound.passed.add(state)
    return wrong


def _again(warm: Warm, tokens: list[str], whole: Files, where: str, rows: bool, gaps: bool) -> list[str]:
    left = warm.run(tokens)
    if not complete(tokens, left):
        return [f"{where}: the same command again ends with {left.code}: {left.text[-600:]}"]
    different = differences(products(disks.read(warm.root), rows), products(whole, rows))
    different = [path for path in different if not (gaps and older(path, whole))]
    return [f"{where}: not the same after the same command again: {different}"] if different else []


def complete(tokens: list[str], left: Ended) -> bool:
    """Whether a command has done its work; `import` and `export` also if they were killed after it and say so."""
    return left.code == 0 or (tokens[0] in ("import", "export") and "exists already" in left.text)


def told(wrong: list[str], said: int) -> int:
    """Prints what was not `said` yet, since a test of all points takes an hour; gives how much there is."""
    for text in wrong[said:]:
        print(f"\n{text}", flush=True)
    return len(wrong)


CHECKPOINT = re.compile(r"(run|tuned)/checkpoints/step-(\d+)")


def older(path: str, whole: Files) -> bool:
    """Whether it is of another checkpoint than the newest."""
    found = CHECKPOINT.match(path)
    return found is not None and int(found[2]) != newest(whole)


def newest(files: Files) -> int:
    """The update of the newest checkpoint."""
    return max((int(found[2]) for found in map(CHECKPOINT.match, files) if found), default=0)


SLOW = {"steps", "import", "export", "launch two"}


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=pytest.mark.slow if verb in SLOW else ()) for verb in VERBS])
def test_after_a_crash_at_any_operation_the_same_command_ends_in_the_same_bytes(
    verb: str, warm: Warm, commands: dict[str, list[str]], sound: Callable[[str], Sound]
) -> None:
    """Killed before and after every operation and in every write; and without power, with all data and names lost that
    were not flushed."""
    straight, tokens = sound(verb), command(commands, verb)
    before, whole, done = straight.before, straight.after, straight.done
    disk = Disk(before)
    for operation in done:
        disk.do(operation)
    assert disk.seen() == whole, "something was written that was not recorded"
    wrong: list[str] = []
    said = 0
    for names in (False, True):
        kept = products(disk.lost(names), rows=False)
        if lost := [path for path, data in products(whole, rows=False).items() if kept.get(path, b"") != data]:
            wrong.append(f"lost without power after the end: {lost}")
    found = list(disks.crashes(before, done))
    for how in ("killed", "no power after", "no power, names"):
        steps = [newest(crash.files) for crash in found if crash.where.startswith(how)]
        if steps != sorted(steps):
            wrong.append(f"{how}: a checkpoint that was there is lost: {steps}")
    for crash in spread(found):
        disks.write(warm.root, crash.files)
        wrong += again(warm, tokens, straight, crash.where)
        said = told(wrong, said)
    print(f"\n{verb}: {len(done)} operations, {len(spread(found))} of {len(found)} states after a crash")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize(
    ("moment", "which"),
    [
        ("mkdir sweep/locks/0001", 0),
        pytest.param(
            "write sweep/study.journal", 0, marks=pytest.mark.slow
        ),  # the trial is recorded without its settings
        pytest.param("write sweep/study.journal", 1, marks=pytest.mark.slow),  # and with the first of them
        pytest.param("metrics.jsonl", 1, marks=pytest.mark.slow),
        pytest.param("step-000001", -1, marks=pytest.mark.slow),
        ("sweep.json", 0),
    ],
)
def test_a_sweep_that_is_killed_chooses_and_trains_the_same(
    moment: str, which: int, warm: Warm, commands: dict[str, list[str]], sound: Callable[[str], Sound]
) -> None:
    """Killed in its second trial. The trials, their metrics.jsonl and weights, sweep.json and best.toml are compared,
    but for times. With LAMBERT_TEST_CRASHES=all, killed after all operations of a kind."""
    straight, tokens = sound("sweep"), command(commands, "sweep")
    operations = [one for one in straight.done if ".journal.lock" not in one.path]  # Optuna's, a symbolic link
    done = [str(operation) for operation in operations]
    second = next(at for at, text in enumerate(done) if "locks/0001" in text)
    found = [at for at in range(second, len(done)) if moment in done[at]]
    wrong: list[str] = []
    for number in found if ALL else [found[which]]:
        disk = Disk(straight.before)
        for operation in operations[: number + 1]:
            disk.do(operation)
        disks.write(warm.root, disk.seen())
        wrong += again(warm, tokens, straight, f"killed after operation {number + 1} of {len(done)}: {done[number]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["prepare", "pretrain", "finetune", "sweep", "import", "export"])
def test_killed_again_and_again_at_random_instants_it_ends_in_the_same_bytes(
    verb: str, warm: Warm, commands: dict[str, list[str]], sound: Callable[[str], Sound]
) -> None:
    """Fault 4 of 24. Unlike above, training goes on while a checkpoint is written."""
    straight, tokens, whole = sound(verb), command(commands, verb), math.inf
    for _ in range(3):  # the first waits for imports
        disks.write(warm.root, straight.before)
        began = time.monotonic()
        assert warm.run(tokens, ordered=False).code == 0
        whole = min(whole, time.monotonic() - began)
    moments, kills = random.Random(1), 0
    for number in range(1, KILLED_RUNS + 1):
        disks.write(warm.root, straight.before)
        seconds = whole
        while (left := warm.run(tokens, ordered=False, seconds=moments.uniform(0, seconds))).code == -signal.SIGKILL:
            kills, seconds = kills + 1, seconds * 1.1  # the machine may have become slower
        assert complete(tokens, left), left.text
        assert products(disks.read(warm.root)) == products(straight.after)
        print(f"\n{verb}: {number} of {KILLED_RUNS} runs, {kills} kills", flush=True)
    assert kills > 0


FAULTS = {
    "full": (disks.FULL_FROM, errno.ENOSPC),
    "error": (disks.ERROR_ONCE, errno.EIO),
    "short": (disks.SHORT_ONCE, 0),
    "killed": (disks.KILL, 0),
}
KILLED = 137
"""The exit code of a process at KILL."""


def complaint(left: Ended, launched: bool) -> str:
    """What is wrong with how a command ended on a disk that failed, or nothing. Ranks that are `launched` speak for
    themselves where the disk of temporary files, by which they tell their launcher, is full as well."""
    if left.code in (0, KILLED):
        return ""
    lines = [line for line in left.text.splitlines() if line.startswith("lambert: ")]
    if left.code != 4 or not lines or (len(lines) > 1 and not launched) or "Traceback" in left.text:
        return f"ended with {left.code}: {left.text[-600:]}"
    return ""


def faults() -> Iterator[Any]:
    """Each verb with each fault; quick is one fault of each verb, another one of the next."""
    kinds = [fault for fault in FAULTS if fault != "killed"]
    for number, verb in enumerate(VERBS):
        for fault in FAULTS if verb in LAUNCH else kinds:
            quick = fault == kinds[number % 3] and verb not in LAUNCH
            yield pytest.param(verb, fault, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("verb", "fault"), [*faults()])
def test_a_disk_that_fails_at_any_operation_costs_one_line_and_nothing_else(
    verb: str, fault: str, warm: Warm, commands: dict[str, list[str]], sound: Callable[[str], Sound]
) -> None:
    """Full from the operation on, in the middle of a write; one input or output error; one write that is cut short;
    and the process alone killed that does it, while its launcher lives."""
    straight, tokens = sound(verb), command(commands, verb)
    before, whole, count = straight.before, straight.after, straight.count
    kind, error = FAULTS[fault]
    wrong, said, points = list[str](), 0, spread(range(1, count + 1))
    for at in points:
        disks.write(warm.root, before)
        left = warm.run(tokens, kind, at, error)
        where = f"{fault} at {at} of {count}"
        failed = "could not be written" in left.text  # a save, and training went on: an older checkpoint was kept
        if text := complaint(left, verb in LAUNCH):
            wrong.append(f"{where}: {text}")
        elif left.code == 0:
            different = differences(products(disks.read(warm.root), rows=False), products(whole, rows=False))
            different = [path for path in different if not (failed and older(path, whole))]
            different = [path for path in different if not path.endswith("lock.json") and "/.tmp-" not in f"/{path}"]
            wrong += [f"{where}: ended well, but {different}"] if different else []
        if newest(disks.read(warm.root)) < newest(before):
            wrong.append(f"{where}: a checkpoint is lost")
        wrong += again(warm, tokens, straight, where, rows=left.code != 0 or fault == "killed", gaps=failed)
        said = told(wrong, said)
    print(f"\n{verb}: {fault} at {len(points)} of {count} operations")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
