"""What the studies share: planned runs as lines of JSON, which may be killed at any time and continue; tables, plots.

A study is a function `plans(rows)`, which yields the settings of one run after the other, and `run(plan)`, which gives
a row: the plan and its results. `rows` grows meanwhile, so that a plan may depend on earlier runs, such as on the
learning rate that was best. `continue_runs` appends each row to a file and omits the plans that the file has.
"""

import argparse
import fcntl
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lambert.verbs import demo

Row = dict[str, Any]
Plans = Callable[[list[Row]], Iterator[Row]]

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
DEMO = demo.PACKAGE
"""The folder of the recipes and texts of `lambert demo`."""
BASE = BENCHMARKS / "base_encoder"
"""The folder of the recipes of the encoder that studies start from, and of the names that encoders are scored by."""
ENCODER = BASE / "model"
"""The encoder that studies of short runs start from."""
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
DIVERGED = 5
"""Exit code of a run that diverged."""


def read(path: Path) -> list[Row]:
    """Returns the rows of a file, without a last line that was not written to its end; [] if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def append(path: Path, row: Row) -> None:
    """Appends a row, in the place of a last line that was not written to its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(row) + "\n").encode())


def record(path: Path | None, row: Row) -> None:
    """Appends a row to a file, if one is given, and prints it."""
    if path is not None:
        append(path, row)
    print(json.dumps(row), flush=True)


def software() -> Row:
    """Returns the versions of torch and Python, and the commit."""
    import torch

    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {"torch": torch.__version__, "python": platform.python_version(), "commit": commit}


def is_missing(plan: Row, rows: Iterable[Row]) -> bool:
    """Returns whether no row is of this plan."""
    return not any(plan.items() <= row.items() for row in rows)


def continue_runs(out: Path, plans: Plans, run: Callable[[Row], Row], most: int = 0, jobs: int = 1) -> list[Row]:
    """Runs the plans that `out` has not, at most `most` of them (0: all), and returns all rows. SIGTERM ends the run
    that is under way too. With several `jobs` so many run at a time, no plan may depend on a run that is missing, and
    SIGTERM begins no further run, but waits for those that are under way and drops them.

    Raises what `run` raises; with several jobs after the other runs have ended.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows, done = read(out), 0
    if jobs > 1:
        wanted = [plan for plan in plans(rows) if is_missing(plan, rows)]
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(run, plan) for plan in wanted[: most or None]]
            try:
                for future in as_completed(futures):
                    if future.exception() is None:
                        rows.append(future.result())
                        record(out, rows[-1])
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
        for future in futures:
            future.result()
        return rows
    for plan in plans(rows):
        if not is_missing(plan, rows):
            continue
        rows.append(run(plan))
        record(out, rows[-1])
        done += 1
        if done == most:
            break
    return rows


def progress(plans: Plans, rows: Iterable[Row]) -> str:
    """Returns how many of the runs of a study are there, in words. A plan that depends on runs that are missing is
    counted as if they had no results."""
    found = [*rows]
    wanted = []
    for plan in plans(found):
        wanted.append(not is_missing(plan, found))
        if not wanted[-1]:
            found.append(plan)
    return f"Runs so far: {sum(wanted)} of {len(wanted)}."


def best(rows: Iterable[Row], name: str = "mlm") -> Row:
    """Returns the row with the least value; runs without one, such as those that diverged, come last."""
    return min(rows, key=lambda row: math.inf if row.get(name) is None else float(row[name]))


def select(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Returns the rows that have these values."""
    return [row for row in rows if values.items() <= row.items()]


def drop_diverged(values: Iterable[float | None]) -> list[float]:
    """Returns the values of the runs that did not diverge, whose value is None."""
    return [value for value in values if value is not None]


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Returns the mean, and with several values their standard deviation; says how many are None, which diverged."""
    kept = drop_diverged(values)
    lost = "" if len(kept) == len(values) else f"{len(values) - len(kept)} of {len(values)} diverged"
    if not kept:
        return lost
    deviation = f" ± {statistics.stdev(kept):.{digits}f}" if len(kept) > 1 else ""
    return f"{statistics.fmean(kept):.{digits}f}{deviation}{', ' * bool(lost)}{lost}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def publish(out: Path, text: str, plot_alt: str = "") -> None:
    """Prints the results, and writes them between the marks of `out`, if it is a page, or else of the README beside it,
    if they have them: with `plot_alt`, also the picture plot.svg."""
    print(text)
    if plot_alt:
        text = f"{text.strip()}\n\n![{plot_alt}](plot.svg)"
    page = out if out.suffix == ".md" else out.parent / "README.md"
    whole = page.read_text(encoding="utf-8") if page.exists() else ""
    if BEGIN in whole and END in whole:
        before, rest = whole.split(BEGIN, 1)
        page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


Curves = Mapping[str, Sequence[tuple[float, Sequence[float | None]]]]
"""The lines of a panel by name: their points, each with the values of all seeds, None of a run that diverged."""


def plot(path: Path, panels: Mapping[str, Curves], x: str, y: str | Sequence[str], *, log: bool = True) -> None:
    """Draws a panel for each title: means over seeds, with bars from the least to the largest value. `y` is the label
    of all panels, which share an axis, or has one for each panel. Panels with other lines than the first have a legend
    too."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "lambert"  # the same runs give the same bytes
    from matplotlib import pyplot

    labels = [y] * len(panels) if isinstance(y, str) else [*y]
    figure, plots = pyplot.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.6), sharey=isinstance(y, str), layout="constrained", squeeze=False
    )
    for number, (axes, (title, curves)) in enumerate(zip(plots[0], panels.items(), strict=True)):
        for (name, points), style in zip(curves.items(), _styles(), strict=False):
            ordered = [(at, drop_diverged(values)) for at, values in sorted(points, key=lambda point: point[0])]
            filled = [(at, values) for at, values in ordered if values]
            means = [statistics.fmean(values) for _, values in filled]
            bars = [
                [mean - min(values) for mean, (_, values) in zip(means, filled, strict=True)],
                [max(values) - mean for mean, (_, values) in zip(means, filled, strict=True)],
            ]
            if filled:
                axes.errorbar([at for at, _ in filled], means, bars, fmt=style, capsize=3, markersize=4, label=name)
        axes.set(xlabel=x, title=textwrap.fill(title, 40), **({"xscale": "log"} if log else {}))
        if number == 0 or not isinstance(y, str):
            axes.set_ylabel(labels[number])
        axes.grid(alpha=0.3)
        if axes.has_data() and (number == 0 or [*curves] != [*next(iter(panels.values()))]):
            axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _styles() -> list[str]:
    return [f"{marker}{line}" for line in ("-", "--", ":") for marker in "os^dvx"]


def command(verb: str, recipe: Path | None = None, *, flags: Mapping[str, Any]) -> list[str]:
    """Returns `lambert VERB RECIPE` with these settings, where True is a flag alone and a list several values."""
    words = [sys.executable, "-P", "-m", "lambert", verb, *([str(recipe)] if recipe else [])]
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words.append(f"--{name}={value}")
    return words


def lambert(
    verb: str, recipe: Path | None = None, *, flags: Mapping[str, Any], threads: int = 1, ends: Sequence[int] = (0,)
) -> int:
    """Runs `command(verb, recipe, flags)` and returns its exit code. What it prints goes to stderr.

    Raises CalledProcessError for an exit code that is not in `ends`.
    """
    words = command(verb, recipe, flags=flags)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, check=False, stdout=sys.stderr, env=environment)
    if done.returncode not in ends:
        raise subprocess.CalledProcessError(done.returncode, words)
    return done.returncode


def metrics(run: Path) -> list[Row]:
    """Returns the rows of a run's log."""
    return read(run / "metrics.jsonl")


def scores(run: Path) -> dict[str, float]:
    """Returns the scores of a run; {} if it did not end."""
    path = run / "scores.json"
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def pretrain(flags: Mapping[str, Any], threads: int, recipe: Path | None = None) -> dict[str, float]:
    """Runs `lambert pretrain` with these settings, `out` among them, and returns the scores; {} if it diverged."""
    ended_with = lambert("pretrain", recipe, flags=flags, threads=threads, ends=(0, DIVERGED))
    return {} if ended_with == DIVERGED else scores(flags["out"])


def corpus(texts: Sequence[Path] | None, work: Path, vocabulary: int | Path) -> Path:
    """Returns the folder of a corpus of these files in lower case, which is made if it is not there: with a vocabulary
    of its own of so many pieces, or with that of another corpus. Without files it must be there.

    Raises SystemExit if it is not.
    """
    own = isinstance(vocabulary, int)
    out = work / (f"corpus-{vocabulary}" if isinstance(vocabulary, int) else f"corpus-of-{vocabulary.parent.name}")
    if not texts:
        if not out.is_dir():
            raise SystemExit(f"No corpus {out}: give its texts with --text.")
        return out
    tokenizer = {"vocabulary": vocabulary, "lowercase": True} if own else {"tokenizer": vocabulary}
    lambert("prepare", flags={"input": [str(path.resolve()) for path in texts], "out": out, **tokenizer})
    return out


def names(model: Path, out: Path, seed: int, threads: int) -> float:
    """Returns the F1 of names in lower-case text, after fine-tuning `model` on 200 passages."""
    flags = {
        "init": model, "data": BASE / "names-train.jsonl.xz", "dev": BASE / "names-test.jsonl.xz", "out": out,
        "seed": seed,
        "train.threads": threads, "train.compile": "off",
    }  # fmt: skip
    lambert("finetune", BASE / "names.toml", flags=flags, threads=threads)
    return 100 * scores(out)["f1"]


def arguments(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Returns a parser with what all studies take. The runs of a study are in the folder `name`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=BENCHMARKS / name / "runs.jsonl", help="lines of JSON, continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1)
    return parser


def planned_arguments(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Returns a parser with what all studies take whose runs are a plan."""
    parser = arguments(doc, name)
    parser.add_argument("--table", action="store_true", help="show the runs of --out, and draw the plot beside them")
    parser.add_argument("--runs", type=int, default=0, help="end after so many new runs; 0: all")
    return parser


def study_arguments(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Returns a parser with what all studies take whose runs are a plan and read a corpus."""
    parser = planned_arguments(doc, name)
    parser.add_argument("--text", type=Path, nargs="+", help="for `lambert prepare`; without: the corpus in --work")
    parser.add_argument("--work", type=Path, help="folder for the corpus and for runs that are under way")
    return parser


def concurrent_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what studies take whose runs need not come one after the other on one processor."""
    parser.add_argument("--device", default="cpu", help="of the training, as of train.device")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, of those that depend on no other run")
