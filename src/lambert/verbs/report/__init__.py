"""`lambert report`: one HTML page about runs, sweeps and prepared corpora, without network access."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.files import check_replaceable, write_atomic
from lambert.core.shards import is_corpus
from lambert.engine.metrics_file import METRICS
from lambert.runs.result import Say, silent
from lambert.verb import load_provided
from lambert.verbs.report import errors, ranks, sweep
from lambert.verbs.report.cells import side_by_side, table
from lambert.verbs.report.curves import COLOURS, draw
from lambert.verbs.report.folders import RunContents, read, with_one_ceiling
from lambert.verbs.report.sections import TRUST, advice, charts, differences, endings, final_numbers, mismatches
from lambert.verbs.settings.report import ReportConfig


def run(config: ReportConfig, say: Say = silent) -> Path:
    """Writes the page and returns its path.

    Raises UsageError without folders or without the required packages, DataError if a folder contains neither a run
    nor a sweep nor a corpus.
    """
    if missing := [package for package in ("matplotlib", "jinja2") if find_spec(package) is None]:
        raise UsageError(f"report needs {' and '.join(missing)}: pip install 'lambert-bert[report]'.")
    if not config.runs:
        raise UsageError("report needs a run folder or a corpus: lambert report runs/NAME.")
    given = list(dict.fromkeys(folder.resolve() for folder in config.runs))
    folders = list(dict.fromkeys(run for folder in given for run in _runs_of(folder)))
    named = [*zip(folders, _names(folders), strict=True)]
    sweeps = [sweep.read(folder, name) for folder, name in named if sweep.is_sweep(folder)]
    runs = [read(folder, name) for folder, name in named if not is_corpus(folder) and not sweep.is_sweep(folder)]
    corpora = [load_provided("page of a corpus")(folder, name, runs) for folder, name in named if is_corpus(folder)]
    out = config.out or (config.runs[0] if len(given) == 1 else Path()) / "report.html"
    check_replaceable(out, lambda beginning: b"<!doctype html>" in beginning and b"--run-" in beginning, "report")
    page = (
        render(runs, corpora, sweeps, chain=config.chain).encode("utf-8", "replace").decode()
    )  # JSON may contain half a surrogate pair
    write_atomic(out, page)
    say(f"report  {out}")
    return out


def _runs_of(folder: Path) -> list[Path]:
    """Returns the run folders of the seeds of a folder that `finetune --seeds` wrote, in the order of the seeds;
    another folder alone."""
    if (folder / METRICS).exists():
        return [folder]
    seeds = [path.parent for path in folder.glob(f"seed-*/{METRICS}")]
    return sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]


def render(
    runs: Sequence[RunContents],
    corpora: Sequence[Any] = (),
    sweeps: Sequence[sweep.SweepPage] = (),
    *,
    chain: bool = False,
) -> str:
    """Returns the page as HTML. `corpora` are the values of corpus.html."""
    import jinja2

    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    ).get_template("page.html")
    runs = with_one_ceiling(runs)
    starts = [sum(run.updates for run in runs[:number]) if chain else 0 for number in range(len(runs))]
    pages, damaged = errors.pages(runs)
    drawn = charts(runs, starts)
    title = next((str(run.summary["title"]) for run in runs if run.summary.get("title")), None)
    return template.render(
        title=title
        or " · ".join([*(page.name for page in corpora), *(page.name for page in sweeps), *(run.name for run in runs)]),
        written=time.strftime("%Y-%m-%d %H:%M"),
        began=[run.log[0][0][:16].replace("T", " ") if run.log else "" for run in runs],
        trust=any(chart.title.startswith(TRUST) for chart in drawn),
        names=[run.name for run in runs],
        colours=COLOURS,
        corpora=corpora,
        sweeps=sweeps,
        notices=[notice for page in corpora for notice in page.notices]
        + ([] if chain else mismatches(runs))
        + [notice for run in runs for notice in run.notices + advice(run) + ranks.advice(run)]
        + damaged,
        summaries=[block for run in runs for block in _blocks(run)],
        charts=[{"title": chart.title, "values": endings(chart, len(runs)), "svg": draw(chart)} for chart in drawn],
        chained=chain and len(runs) > 1,
        final=final_numbers(runs),
        differences=differences([run.config for run in runs]) if len(runs) > 1 else [],
        errors=pages,
        ranks=ranks.facts(runs),
        timed=ranks.timings(runs),
        incidents=ranks.incidents(runs),
        settings=side_by_side([run.config for run in runs]),
        environment=[pair for pair in side_by_side([run.environment for run in runs]) if any(pair[1])],
    )


def _blocks(run: RunContents) -> list[dict[str, Any]]:
    """Returns the tables, then the examples, of summary.json."""
    try:
        found = [*(run.summary.get("tables") or ()), *(run.summary.get("examples") or ())]
        return [table(str(block.get("caption", "")), block["columns"], block["rows"]) for block in found]
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"summary.json of {run.name}: every table and example needs a list of columns and a list of rows."
        ) from error


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the names of the folders, with as many parents as make them distinct."""
    deepest = max(len(folder.parts) for folder in folders)
    for depth in range(1, deepest):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
