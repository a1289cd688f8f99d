"""The report: what it says, what it tolerates, and that it stands alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from run_folders import Outline, folder, page, row

import lambert
from lambert.core.errors import DataError, UsageError
from lambert.verbs import report
from lambert.verbs.report import ReportConfig, cells
from lambert.verbs.report.curves import compact


def test_one_run(tmp_path: Path) -> None:
    run = folder(
        tmp_path / "tiny", environment={"device": "cpu", "packages": {"torch": "2.13.0"}, "command": ["a b", "c"]}
    )
    html = page(run)
    text = " ".join(Outline(html).text.split())
    for expected in (
        "Loss, mlm",
        "Loss, nsp",
        "Held out, nsp accuracy",
        "Learning rate",
        "Gradient norm",
        "Real tokens per second",
        "waiting for data",
        "640,000",
        "3 min 20 s",
        "7.6000",
        "optim.lr 0.002",
        "packages.torch 2.13.0",
        "'a b' c",
    ):
        assert expected in text
    assert "ceiling" not in text
    assert "report of 2" in text
    assert "Trust ratio" not in text
    (run / "log.txt").write_text("2026-01-02T03:04:05+0000 began\n")
    assert "begun 2026-01-02 03:04" in page(run)


def test_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    outline = Outline(page(folder(tmp_path / "one"), folder(tmp_path / "two")))
    assert outline.open == []
    assert outline.tags.count("svg") == 7
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(outline.tags)
    assert all(link.startswith("#") for link in outline.links)
    html = (tmp_path / "page.html").read_text()
    assert "http" not in html
    assert "@import" not in html
    assert all(name.startswith("#") for name in re.findall(r"url\((.*?)\)", html))


def test_what_a_summary_says_comes_first_and_is_escaped(tmp_path: Path) -> None:
    summary = {
        "title": "A <b>title</b>",
        "tables": [{"caption": "Scores", "columns": ["", "F1"], "rows": [["ours", 88.5], ["theirs", None]]}],
        "examples": [{"caption": "Answers", "columns": ["text"], "rows": [["<script>alert(1)</script>"]]}],
    }
    html = page(folder(tmp_path / "x&y", summary=summary))
    assert "<title>A &lt;b&gt;title&lt;/b&gt;</title>" in html
    assert "<script>" not in html
    assert html.index("Scores") < html.index("Answers") < html.index("Curves")
    assert "x&amp;y" in html
    assert ">88.5<" in html


HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{{ 7 * 7 }}"


def test_a_run_folder_of_hostile_names_is_text_on_the_page(tmp_path: Path) -> None:
    rows = [row(step, **{f"loss/{HOSTILE}": 1.0}) for step in (10, 20)]
    rows += [{"step": step, f"heldout/{HOSTILE}": 0.5} for step in (10, 20)]
    run = folder(
        tmp_path / "<script>alert(2)<",
        rows,
        config=f"[{json.dumps(HOSTILE)}]\nname = {json.dumps(HOSTILE)}\n",
        environment={HOSTILE: HOSTILE, "processes": HOSTILE},
        scores={HOSTILE: 0.5},
        summary={"title": HOSTILE, "tables": [{"caption": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}]},
    )
    incident = {"step": 1, "time": 1e9, "what": HOSTILE, "parameter": HOSTILE, "ranks": [HOSTILE], "sequences": []}
    (run / "incidents.jsonl").write_text(
        json.dumps(incident) + "\n" + json.dumps({**incident, "what": "\ud800"}) + "\n"
    )
    (run / "log.txt").write_text(f"2026-01-01T00:00:00+0000 warning: {HOSTILE}\n")
    other = folder(tmp_path / "other", rows)
    for html in (page(run), page(run, other)):
        assert not {"script", "img"} & set(Outline(html).tags)
        assert "{{ 7 * 7 }}" in html
        assert "\n49" not in html


def test_several_runs_are_compared(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", scores={"heldout/mlm": 1.0, "exact": 80.123})
    two = folder(tmp_path / "two", [row(10), row(20)], config='seed = 1\n[optim]\nname = "adamw"\nwarmup_steps = 5\n')
    text = " ".join(Outline(page(one, two)).text.split())
    assert "optim.name lamb adamw" in text
    assert "optim.warmup_steps 5" in text
    assert "Updates 100 20" in text
    assert "exact 80.123" in text
    differing = dict(report.differences([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": True}]))
    assert differing == {"b": ["2", "3"], "c": ["", "yes"]}


def test_trust_ratios_and_cost(tmp_path: Path) -> None:
    def ratios(step: int) -> dict[str, float]:
        return {f"trust/blocks_{name}": value * step for name, value in (("min", 0.5), ("median", 2.0), ("max", 9.0))}

    run = folder(tmp_path / "run", [row(step, cost=step / 4, **ratios(step)) for step in (10, 20, 30)])
    other = folder(tmp_path / "other")
    for html in (page(run), page(other, run)):
        text = " ".join(Outline(html).text.split())
        assert "Trust ratio of LAMB, blocks" in text
        assert "Trust ratio of LAMB, heads" not in text
        assert "Cost so far 7.50" in text
    (chart,) = (chart for chart in report.charts([report.read(run, "run")], [0]) if "Trust" in chart.title)
    assert chart.lines[0].points == [(10, 20.0), (20, 40.0), (30, 60.0)]
    assert chart.lines[0].ends == ([(10, 5.0), (20, 10.0), (30, 15.0)], [(10, 90.0), (20, 180.0), (30, 270.0)])


def test_what_a_recipe_expects_is_no_setting(tmp_path: Path) -> None:
    config = 'seed = 1\n[expect]\nsource = "a log"\nseeds = 2\nlosses = [{ update = 10, low = 1.0, high = 2.0 }]\n'
    run, other = folder(tmp_path / "run", config=config), folder(tmp_path / "other", config="seed = 1\n")
    assert "a log" not in page(run)
    assert "expect" not in page(run, other)


def test_what_is_wrong_with_a_run_is_said(tmp_path: Path) -> None:
    rows = [row(step, loss=None if step > 50 else 3.0) for step in range(10, 101, 10)]
    assert "5 of 10 logged losses are not finite, the first after 60 updates" in page(folder(tmp_path / "nan", rows))
    run = folder(tmp_path / "odd")
    for content in (b"\x00\xff\xfe" * 50, b'{"iteration": 1, "train_loss": 2.0}\n'):
        (run / "metrics.jsonl").write_bytes(content)
        assert "no line of metrics.jsonl is a row of a run" in page(run)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(DataError, match=r"metrics\.jsonl is a folder, not a file"):
        page(run)
    with pytest.raises(DataError, match=r"page\.html is a file: name the folder of a run"):
        page(tmp_path / "page.html")


def test_runs_of_other_tasks_are_not_compared_silently(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", config='[task]\nname = "squad"\n')
    two = folder(tmp_path / "two", config='[task]\nname = "classify"\n')
    said = "The runs learn different tasks (one squad, two classify)"
    assert said in page(one, two)
    assert said not in page(one, two, chain=True)
    assert "other tasks" not in page(one)


def test_chained_runs_follow_one_another(tmp_path: Path) -> None:
    runs = [report.read(folder(tmp_path / name), name) for name in ("one", "two")]
    first, second = (
        chart.lines for chart in report.charts(runs, [0, 100]) if chart.title in ("Loss, mlm", "Learning rate")
    )
    assert [line.points[0][0] for line in second] == [10, 110]
    assert [(line.run, line.held_out) for line in first] == [(0, False), (1, False), (0, True), (1, True)]
    assert "Runs follow one another" in page(tmp_path / "one", tmp_path / "two", chain=True)


def test_a_run_that_is_still_being_written(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 110, "lo')
    assert report.read(run, "run").notices == []
    text = (run / "metrics.jsonl").read_text().replace('{"step": 20,', '{"step": 20;')
    (run / "metrics.jsonl").write_text(text + "\n[1]\n" + json.dumps(row(120)))
    html = page(run)
    assert "3 of 15 lines of metrics.jsonl could not be read" in html
    assert ">120<" in html


def test_missing_keys_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    rows = [{"step": 1}, {"step": 2, "loss": None, "lr": "high"}, {"step": 3, "loss": 2.0}, {"step": 4, "loss": True}]
    rows.append({"step": 5, "loss": 1.5})
    run = report.read(folder(tmp_path / "run", rows), "run")
    assert run.series("loss") == [(3, 2.0), (5, 1.5)]
    assert [chart.title for chart in report.charts([run], [0])] == ["Loss"]
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n')
    assert "fewer than two updates have been logged" in page(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert "fewer than two updates have been logged" in page(tmp_path / "run")


def test_a_run_of_another_version_is_said(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    for version, said in (("0.0.9", True), (lambert.__version__, False)):
        (run / "environment.json").write_text(json.dumps({"lambert": version}))
        assert ("Lambert 0.0.9 wrote this run" in page(run)) is said


def test_damaged_side_files_are_said_on_the_page(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", environment="{", scores="[1]", config="seed = \n")
    html = page(run)
    assert "environment.json could not be read" in html
    assert "config.toml is not a TOML recipe" in html


def test_without_optional_files(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    (run / "config.toml").unlink()
    text = Outline(page(run)).text
    assert "Settings" not in text
    assert "Environment" not in text


def test_advice() -> None:
    def advised(rows: list[dict[str, Any]]) -> list[str]:
        return report.advice(report.RunContents("run", rows, {}, {}, {}, {}, []))

    assert advised([row(step) for step in range(1, 9)]) == []
    (line,) = advised([row(step, wait_share=0.18) for step in range(1, 9)])
    assert "18% of the time was spent waiting for data" in line
    (line,) = advised([row(100, skipped=7)])
    assert "7 of 100 updates were skipped" in line
    held_out = [{"step": step, "heldout/mlm": loss} for step, loss in ((1, 5.0), (2, 4.0), (3, 4.5))]
    (line,) = advised([row(1), *held_out])
    assert "was lowest, 4, after 2 updates and is 4.5 at the end" in line
    assert advised([row(1), *held_out[:2]]) == []


def test_where_the_page_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = folder(Path("runs/one")), folder(Path("runs/two"))
    assert report.run(ReportConfig(runs=(one,))) == Path("runs/one/report.html")
    assert report.run(ReportConfig(runs=(one, two))) == Path("report.html")
    assert report.run(ReportConfig(runs=(one, one), out=Path("new/page.html"))) == Path("new/page.html")
    assert Path("new/page.html").read_text().count("<tbody") == Path("runs/one/report.html").read_text().count("<tbody")
    assert list(Path("new").iterdir()) == [Path("new/page.html")]


def test_a_folder_of_several_seeds_is_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "low"
    for seed in (10, 2, 1):
        folder(out / f"seed-{seed}")
    folder(tmp_path / "other")
    assert report.run(ReportConfig((out,))) == out / "report.html"
    assert "<title>seed-1 · seed-2 · seed-10</title>" in (out / "report.html").read_text()


def test_mistakes_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path / "runs" / "base")
    with pytest.raises(UsageError, match="lambert report runs/NAME"):
        report.run(ReportConfig())
    with pytest.raises(DataError, match=r"No such folder: .*bsae\. Run folders near it: .*base"):
        report.run(ReportConfig(runs=(tmp_path / "runs" / "bsae",)))
    (tmp_path / "corpus.work" / "extract").mkdir(parents=True)
    with pytest.raises(DataError, match=r"corpus\.work is neither a run nor a corpus"):
        report.run(ReportConfig(runs=(tmp_path / "corpus.work",)))
    (tmp_path / "corpus.work" / "lock.json").touch()
    with pytest.raises(DataError, match=r"corpus\.work is a work folder of prepare"):
        report.run(ReportConfig(runs=(tmp_path / "corpus.work",)))
    begun = folder(tmp_path / "runs" / "begun", [])
    (begun / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match=r"begun has no metrics yet: a row is written every N updates, N = log\.every"):
        report.run(ReportConfig(runs=(begun,)))
    with pytest.raises(UsageError, match=r"cannot be written: .*Choose another place"):
        report.run(ReportConfig(runs=(run,), out=run / "config.toml" / "page.html"))
    (run / "summary.json").write_text('{"tables": [{"rows": [[1]]}]}')
    with pytest.raises(DataError, match=r"summary\.json of base: every table"):
        report.run(ReportConfig(runs=(run,)))
    monkeypatch.setattr(report, "find_spec", lambda package: None)
    with pytest.raises(UsageError) as raised:
        report.run(ReportConfig(runs=(run,)))
    assert str(raised.value) == "report needs matplotlib and jinja2: pip install 'lambert-bert[report]'."


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folder(tmp_path / "a" / "base")
    folder(tmp_path / "b" / "base")
    html = page(tmp_path / "a" / "base", tmp_path / "b" / "base")
    assert "a/base" in html
    assert "b/base" in html


def test_scores_that_are_shown_as_held_out_are_not_repeated(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", scores={"mlm": 1.25, "nsp_accuracy": 0.5, "exact": 80.125})
    labels = [label for label, _ in report.final_numbers([report.read(run, "run")])]
    assert "exact" in labels
    assert "mlm" not in labels
    assert len(set(labels)) == len(labels)


def test_scores_of_a_run_that_keeps_the_best_are_those_of_its_weights(tmp_path: Path) -> None:
    rows = [
        row(10) | {"heldout/f1": 0.75, "heldout/f1_se": 0.25},
        row(20) | {"heldout/f1": 0.5, "heldout/f1_se": 0.125},
    ]
    last = report.read(folder(tmp_path / "last", rows, scores={"f1": 0.5, "f1_se": 0.125}), "last")
    best = report.read(folder(tmp_path / "best", rows, scores={"f1": 0.75, "f1_se": 0.25, "best_update": 10}), "best")
    assert dict(report.final_numbers([last, best]))["Held out, f1"] == ["0.5000 ± 0.1250", "0.7500 ± 0.2500"]


def test_labels_of_neighbouring_ticks_differ() -> None:
    labels = [compact(value, form) for form in (".4g", ".1%") for value in (1.345, 1.35, 1.355, 1.36)]
    assert labels == ["1.345", "1.35", "1.355", "1.36", "134.5%", "135%", "135.5%", "136%"]
    assert compact(1e-05, "") == "1e-05"


def test_scores_have_their_errors_and_counts_are_whole(tmp_path: Path) -> None:
    scores = {"accuracy": 0.37573, "accuracy_se": 0.01873, "examples": 200.0}
    rows = [row(step) | {f"heldout/{name}": value for name, value in scores.items()} for step in (10, 20)]
    run = report.read(folder(tmp_path / "run", rows, scores=scores | {"f1": 0.5, "f1_se": 0.25, "g_se": 0.125}), "run")
    final = dict(report.final_numbers([run]))
    assert final["Held out, accuracy"] == ["0.3757 ± 0.0187"]
    assert final["Held out, examples"] == ["200"]
    assert final["f1"] == ["0.5 ± 0.25"]
    assert final["g_se"] == ["0.125"]
    assert not {"Held out, accuracy se", "f1_se", "accuracy", "accuracy_se"} & set(final)
    titles = [chart.title for chart in report.charts([run], [0])]
    assert "Held out, accuracy" in titles
    assert not {"Held out, accuracy se", "Held out, examples"} & set(titles)


def test_the_loss_of_a_single_objective_is_shown_once(tmp_path: Path) -> None:
    runs = []
    for name in ("mlm", "label"):
        rows = [{"step": step, "loss": 2.0, f"loss/{name}": 2.0} for step in (10, 20)]
        runs.append(report.read(folder(tmp_path / name, rows), name))
    final = dict(report.final_numbers(runs))
    assert "Loss" not in final
    assert final["Loss, mlm"] == ["2.0000", ""]


def test_settings_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    text = '[task]\nname = "{}"\ntop = 5\n[task.columns]\ntext = "text"\n[task.squad]\nbest = 20\n'
    for task, found in {
        "classify": {"task.name", "task.columns.text"},
        "squad": {"task.name", "task.squad.best"},
        "mine:Task": {"task.name", "task.top", "task.columns.text", "task.squad.best"},
    }.items():
        run = folder(tmp_path / task.partition(":")[0], config=text.format(task))
        assert set(report.read(run, task).config) == found


@pytest.mark.parametrize("text", ["1", "-1.5", "+17.1% ± 1.2%", "1,024", "2.1e-05", "3 GB", "81%", "640,000"])
def test_quantities(text: str) -> None:
    assert cells.is_quantity(text)


@pytest.mark.parametrize("text", ["", "lamb", "6.4 (unigrams)", "0.9, 0.999", "14.2 standard errors", "2.13.0 + cpu"])
def test_other_cells(text: str) -> None:
    assert not cells.is_quantity(text)
