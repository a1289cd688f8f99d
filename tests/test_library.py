"""The library as a stranger uses it: lazy names, the verbs as functions, updates in a loop, a model over texts."""

import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lambert
from lambert import library
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.settings import read, text
from lambert.runs.run import Run

Tuned = Callable[[str], Path]
Labelled = Callable[[str, str], Path]


ROOT = Path(__file__).parents[1]
FOREIGN = ("PYTEST", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that pytest sets, and one that torch sets when a process first asks for deterministic algorithms."""


def state() -> dict[str, Any]:
    """What a part of Lambert could leave behind in the process."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "random": torch.random.get_rng_state().tolist(),
        "numpy random": str(np.random.get_state()),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
        "folder": Path.cwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "levels": [logging.getLogger(name).level for name in ("", "lambert")],
        "handlers": list(logging.getLogger("lambert").handlers),
        "hooks": (sys.excepthook, threading.excepthook),
        "threads alive": {thread.name for thread in threading.enumerate()},
    }


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(capfd: pytest.CaptureFixture[str]) -> Any:
    """Whatever a test does with the library: the process is as before, and nothing was printed."""
    before = state()
    yield
    after = state()
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def pretraining(corpus: Path, small: dict[str, object], tmp_path: Path) -> dict[str, object]:
    return small | {"corpus": corpus, "out": tmp_path / "run", "train__steps": 6}


# --- names ---


def test_the_import_is_light() -> None:
    code = (
        "import lambert, sys\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules and 'cyclopts' not in sys.modules\n"
        "assert {'finetune', 'load', 'Lamb'} <= {*dir(lambert)}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", lambert.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert inspect.getdoc(getattr(lambert, name))


def test_type_checkers_see_the_same_names() -> None:
    source = Path(lambert.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    seen = [line.split(" as ")[-1] for line in source.splitlines() if line.startswith("from lambert.")]
    assert sorted(seen) == sorted([*lambert.__all__, "__version__"])


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="finetun"):
        lambert.finetun  # noqa: B018
    assert not hasattr(lambert, "__wrapped__")


# --- settings ---


def test_the_strangers_script(texts: Path, labelled: Labelled, small: dict[str, Any], tmp_path: Path) -> None:
    corpus = lambert.prepare(input=texts, out=tmp_path / "corpus", documents="line", vocabulary=160, heldout=0.2)
    run = {**small, "corpus": corpus.folder, "out": tmp_path / "run", "train__steps": 6, "train__evaluate_every": 2}
    for step in lambert.updates(**run):
        if step.scores and step.index >= 4:
            break
    assert [step.index for step in lambert.updates(**run)] == [5, 6]
    assert [step.index for step in lambert.updates(**run)] == []
    result = lambert.finetune(
        init=tmp_path / "run", data=labelled("classify", "train"), dev=labelled("classify", "dev"),
        out=tmp_path / "labels", optim={"name": "adamw", "lr": 3e-3}, train={"steps": 4, "batch_size": 8},
        task__max_length=32,
    )  # fmt: skip
    assert 0 <= result.scores["accuracy"] <= 1
    assert result.metrics["step"][-1] == 4
    model = lambert.load(result.folder)
    assert model("the king found a river")["label"] in ("land", "water")
    assert model.encode(["one text", "another"]).shape == (2, 32)
    assert lambert.evaluate(model=result.model, data=labelled("classify", "dev")).scores["accuracy"] == pytest.approx(
        result.scores["accuracy"], abs=0.05
    )


def test_ways_to_say_a_setting_are_equal(pretraining: dict[str, Any], tmp_path: Path) -> None:
    out = pretraining["out"]

    def resolved(*arguments: Any, **settings: Any) -> str:
        steps = lambert.updates(*arguments, **settings)
        next(steps)
        steps.close()
        found = (out / "config.toml").read_text()
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        return found

    flat = resolved(**pretraining, optim__lr=1e-4, optim__betas=(0.8, 0.9))
    nested = resolved(**pretraining, optim={"lr": 1e-4, "betas": [0.8, 0.9]})
    made = resolved(**pretraining, optim=lambert.OptimConfig(lr=1e-4, betas=(0.8, 0.9)))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(flat)
    assert flat == nested == made == resolved(recipe) == resolved(str(recipe), optim__lr=1e-4)
    other = resolved(recipe, optim__lr="2e-4")
    assert other != flat
    assert other.replace("lr = 0.0002", "lr = 0.0001") == flat


def test_a_dataclass_is_taken_as_it_is_and_overridden(corpus: Path, tmp_path: Path) -> None:
    config = lambert.PretrainConfig(
        corpus, tmp_path / "run", model=lambert.EncoderConfig(layers=1, hidden=32, heads=2, intermediate=64),
        train=lambert.TrainConfig(batch_size=8, steps=1),
    )  # fmt: skip
    assert lambert.pretrain(config, train__steps=2).metrics["step"].max() == 2
    with pytest.raises(UsageError, match="finetune takes a FinetuneConfig, not a PretrainConfig"):
        lambert.finetune(config)
    assert text(config)


def test_none_stands_for_not_set(pretraining: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('init = "nowhere"\n[train]\nsteps = 9\nepochs = 3\n')
    assert lambert.pretrain(recipe, **pretraining, init=None, train__epochs=None).metrics["step"].max() == 6
    assert "epochs" not in read(pretraining["out"] / "config.toml")["train"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optim__lrr": 1.0}, r"the call: unknown setting optim__lrr. Did you mean optim__lr\?"),
        ({"outt": "r"}, r"the call: unknown setting outt. Did you mean out\?"),
        ({"optim": {"name": "lam"}}, "optim__name = 'lam' is unknown. Did you mean 'lamb'"),
        ({"optim__lr": "fast"}, "fast"),
        ({"train__precision": "half"}, "bfloat16"),
        ({"train__steps": 0}, "train__steps = 0"),
        ({"out": None}, "out"),
    ],
)
def test_a_wrong_setting_is_the_command_lines_message(
    settings: dict[str, Any], said: str, pretraining: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        lambert.pretrain(**pretraining | settings)
    assert "\n" not in str(raised.value)


def test_updates_says_at_the_call_what_is_wrong(pretraining: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean"):
        lambert.updates(**pretraining, optim__lrr=1.0)
    with pytest.raises(UsageError, match="corpus for pretrain or data for finetune"):
        lambert.updates(out=tmp_path / "x")
    with pytest.raises(UsageError, match=r"No such recipe: -x\.toml"):
        lambert.pretrain("-x.toml")
    with pytest.raises(DataError):
        lambert.pretrain(**pretraining | {"corpus": tmp_path / "nowhere"})


def test_progress_is_shown_where_the_settings_ask(
    pretraining: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    lambert.pretrain(**pretraining, log__console=True)
    assert "run: 6/6 (100%) updates" in capfd.readouterr().err


# --- updates ---


def test_a_plan_has_rows_and_nothing_is_started(pretraining: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text(f'corpus = "{pretraining["corpus"]}"\nout = "{tmp_path}/run"\nmodel.layers = 2\n')
    given = {"device": "T4", "devices": 2, "price": 0.5, "set": ["train.batch_size=8", "train.steps=100"]}
    plan = lambert.plan(recipe, **given)
    row = plan.chosen
    assert (row.device, row.devices, plan.updates, plan.cost_unit) == ("T4", 2, 100, "USD")
    assert row.cost == pytest.approx(0.5 * 2 * row.seconds / 3600)
    assert row in plan.efficient
    assert plan.as_dict()["chosen"]["seconds"] == row.seconds
    assert 0 < lambert.plan(str(recipe), set=("train.steps=2",), seconds=0.2).chosen.seconds < 600
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"the call: unknown setting devics\. Did you mean device"):
        lambert.plan(recipe, devics=3)


def test_a_loop_has_its_own_settings_of_torch(pretraining: dict[str, Any]) -> None:
    """Between two updates the process is the caller's, and what the caller changes there changes nothing of the run."""
    quiet = lambert.pretrain(**pretraining, train__deterministic=True).metrics["loss"]
    kept = torch.random.get_rng_state()
    torch.manual_seed(5)
    expected, drawn = torch.rand(6).tolist(), []
    torch.manual_seed(5)
    before = state()
    for _ in lambert.updates(**pretraining | {"out": pretraining["out"].with_name("b")}, train__deterministic=True):
        now = state()
        assert {name for name in now if now[name] != before[name]} <= {"random", "handlers", "levels", "threads alive"}
        drawn.append(float(torch.rand(1)))
    assert drawn == expected
    again = lambert.pretrain(**pretraining | {"out": pretraining["out"].with_name("b")}, train__deterministic=True)
    assert np.array_equal(again.metrics["loss"], quiet, equal_nan=True)
    torch.random.set_rng_state(kept)


# --- rows ---


@pytest.mark.parametrize("rows", [[{"text": "a"}], {"text": ["a"]}, np.zeros(3)])
def test_rows_in_the_place_of_a_recipe(rows: Any, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"its first argument is a recipe, not .*Name the rows: finetune\(data=\.\.\.\)"
    ):
        lambert.finetune(rows, init=pretrained, out=tmp_path / "run")


def test_rows_instead_of_files(pretrained: Path, tmp_path: Path) -> None:
    rows = [{"text": f"the {word} found a stone", "label": len(word) % 2} for word in ("king", "bird", "river", "boat")]
    settings: dict[str, Any] = {"init": pretrained, "out": tmp_path / "run", "train__batch_size": 4, "log__every": 1}
    settings |= {"data": rows, "dev": rows, "task__max_length": 32}
    assert lambert.finetune(**settings, train__steps=2).scores["examples"] == 4
    assert (tmp_path / "run-data.jsonl").read_text().count("\n") == 4
    model = lambert.load(tmp_path / "run")
    assert model.evaluate(rows)["examples"] == 4
    unseen = [{"text": "\u4eca \u65e5", "label": label} for label in (0, 1)]
    notes = model.evaluate(unseen).notes
    assert [line.split(" (")[0] for line in notes if "[UNK]" in line] == ["note: 100.0% of the words of data"]
    assert notes == lambert.evaluate(model=tmp_path / "run", data=unseen).notes
    with pytest.raises(UsageError, match=r"data differs from .*run-data\.jsonl"):
        lambert.finetune(**settings | {"data": rows[:3]}, train__steps=2)
    assert lambert.evaluate(model=tmp_path / "run", data=rows).scores["examples"] == 4
    for wrong in ({"task__columns__label": "kind"}, {"init": tmp_path / "none"}, {"task__name": "nothing"}):
        with pytest.raises(LambertError):
            lambert.finetune(**settings | {"out": tmp_path / "refused"} | wrong, train__steps=2)
        assert [*tmp_path.glob("refused*")] == []
    with pytest.raises(UsageError, match="a value that JSON does not have"):
        lambert.finetune(init=pretrained, out=tmp_path / "other", data=[{"text": "a", "label": {"x"}}])
    with pytest.raises(UsageError, match="exists: name another folder"):
        model.save(tmp_path / "run")
    with pytest.raises(UsageError, match="not a dict"):
        model.encode({"text": "a stone"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not NoneType"):
        model.encode(["a stone", None])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="set out"):
        lambert.finetune(init=pretrained, data=rows)
    with pytest.raises(UsageError, match="a list of dicts"):
        lambert.finetune(init=pretrained, data=["text"], out=tmp_path / "x")
    for wrong in (5, None):
        with pytest.raises(UsageError, match="takes a text or several, not a"):
            model(wrong)  # type: ignore[call-overload]
    shown = repr(model)
    assert "BERT of 1 layer, width 32" in shown
    assert "task classify; labels 0, 1; up to 32 tokens; float32 on cpu" in shown


def test_what_is_no_path_is_refused(pretrained: Path, tmp_path: Path) -> None:
    model: Any = lambert.load(pretrained)
    data = [{"text": "a", "label": "b"}]
    for call, found in (
        (lambda wrong: lambert.compare(wrong, "b"), "A run"),
        (lambda wrong: lambert.compare("a", "b", gold=wrong), "gold"),
        (lambda wrong: lambert.export(wrong, out="x"), "model"),
        (lambert.import_model, "source"),
        (lambda wrong: lambert.import_model(pretrained, check=wrong), "check"),
        (lambda wrong: lambert.verify("r.toml", run=wrong), "run"),
        (lambert.verify_corpus, "corpus"),
        (lambda wrong: lambert.fetch_corpus("s3://a/b", wrong), "out"),
    ):
        for wrong in (["a"], b"a", model):
            with pytest.raises(UsageError, match=rf"^{found} must be a path, not "):
                call(wrong)
        for wrong in ("", "a\0b"):
            with pytest.raises(UsageError, match=rf"^{found} (is empty: it must|= 'a\\x00b' has)"):
                call(wrong)
    with pytest.raises(UsageError, match=r"^init must be a path, not TextModel"):
        lambert.finetune(init=model, data="d", out=tmp_path / "run")
    with pytest.raises(UsageError, match=r"^model must be a path, not TextModel"):
        lambert.evaluate(model=model, data="d")
    with pytest.raises(UsageError, match=r"^out must be a path, not b'x'"):
        lambert.pretrain(corpus="c", out=b"x")
    with pytest.raises(UsageError, match=r"^out = 'a\\x00' has a NUL character"):
        lambert.finetune(init=pretrained, data=data, out="a\0")
    with pytest.raises(UsageError, match=r"^source must be text, not 5"):
        lambert.fetch_corpus(5, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^format must be text, not 5"):
        lambert.export(pretrained, out="x", format=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^space must be a table, not \[1\]"):
        lambert.sweep(space=[1], out="x")


def test_the_first_argument_may_be_given_by_name(pretraining: dict[str, Any], pretrained: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'corpus = "{pretraining["corpus"]}"\n[train]\nsteps = 2\n[model]\nlayers = 1\n')
    assert lambert.plan(recipe=recipe, device="A100-80GB", devices=1).chosen.devices == 1
    for call in (lambert.pretrain, lambert.updates, lambert.finetune, lambert.evaluate, lambert.prepare, lambert.peek):
        with pytest.raises(UsageError, match=r"^No such recipe: none\.toml"):
            call(recipe="none.toml", corpus="c") if call is lambert.updates else call(recipe="none.toml")
    with pytest.raises(UsageError, match=r"has no table \[expect\]"):
        lambert.verify(recipe=recipe)
    for call in (lambert.extend, lambert.export):
        with pytest.raises(UsageError, match=r"is not empty|exists"):
            call(model=pretrained, out=pretrained, **({"input": ["t"], "words": 1} if call is lambert.extend else {}))


def test_errors_name_keywords(tmp_path: Path) -> None:
    """Except in commands and in messages about a recipe."""
    recipe, rows = tmp_path / "recipe.toml", [{"text": "a stone", "label": "x"}]
    recipe.write_text("[optim]\nlrr = 1.0\n")
    given: dict[str, Any] = {"init": tmp_path / "none", "data": rows, "out": tmp_path / "run"}
    for recipes, settings, found in (
        ((), {"optim__lrr": 1.0}, "unknown setting optim__lrr. Did you mean optim__lr?"),
        ((), {"task__columns__txt": "a.b"}, "unknown setting task__columns__txt. Did you mean task__columns__text?"),
        ((), {"optim__lr": "train.csv"}, 'optim__lr must be a number, not "train.csv"'),
        ((recipe,), {}, "unknown setting optim.lrr. Did you mean optim.lr?"),
        ((), {}, "`hf download NAME --local-dir FOLDER` first"),
    ):
        with pytest.raises(LambertError) as error:
            lambert.finetune(*recipes, **given | settings)
        assert found in str(error.value)


def test_a_table_in_memory_trains_as_a_file_does(pretrained: Path, tmp_path: Path) -> None:
    """The names of classes keep their order, as those of a saved data set do; settings may be scalars of numpy."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    texts = [f"the {word} found a stone" for word in ("king", "bird", "river", "boat")]
    classes = datasets.ClassLabel(names=["zebra", "ant"])
    features = datasets.Features({"text": datasets.Value("string"), "label": classes})
    held = datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 1, 0]}, features=features)
    frame = pandas.DataFrame({"text": texts, "label": pandas.Categorical(["zebra", "ant", "ant", "zebra"])})
    settings: dict[str, Any] = {"init": pretrained, "train__batch_size": np.int64(4), "task__max_length": 32}
    settings |= {"optim__lr": np.float32(1e-3), "train__steps": 2}
    result = lambert.finetune(**settings, data=held.select([2, 0, 3, 1]), dev=frame, out=tmp_path / "run")
    model = lambert.load(result.folder)
    assert model.task.config.labels == ("zebra", "ant")
    scores = [model.evaluate(held), model.evaluate(frame), lambert.evaluate(model=result.folder, data=frame).scores]
    assert [found["loss"] for found in scores] == pytest.approx([result.scores["loss"]] * 3, abs=1e-6)
    predictions = model(texts)
    several = (frame, held, frame["text"], np.array(texts), {"text": texts}, held.with_format("pandas"))
    assert all([row["label"] for row in model(given)] == [row["label"] for row in predictions] for given in several)
    with pytest.raises(DataError, match=r"^data:2: the label \(column 'label'\) is empty"):
        model.evaluate(frame.assign(label=["ant", None, "ant", "ant"]))


def test_base_of_a_sweep_may_have_rows(tmp_path: Path) -> None:
    rows = {"text": ["a", "b"], "label": np.array([0, 1])}
    given = {"out": tmp_path / "sweep", "space": {"optim.lr": {"choices": list(np.array([1e-3, 2e-3]))}}}
    for base in ({"base": {"data": rows, "init": "pre", "optim": {"eps": np.float32(0.5)}}}, {"base__data": rows}):
        config = library.call_settings("sweep", None, {**given, **base, "metric": "accuracy"})
        assert config.base["data"] == str(tmp_path / "sweep-data.jsonl")
        assert config.space == {"optim.lr": {"choices": [1e-3, 2e-3]}}
    assert (tmp_path / "sweep-data.jsonl").read_text() == '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n'


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": 1e-3}, "optim__lr"),
        ({"learning_rate": 1e-3}, "optim__lr"),
        ({"num_train_epochs": 3}, "train__epochs"),
        ({"per_device_train_batch_size": 8}, "train__batch_size"),
        ({"max_seq_length": 64}, "task__max_length"),
        ({"model": "minilm"}, "init"),
        ({"output_dir": "x"}, "out"),
        ({"optim__learning_rate": 1e-3}, "optim__lr"),
        ({"task": "ner"}, "'tag'"),
        ({"task": "text-classification"}, "'classify'"),
        ({"task__name": "token-classification"}, "'tag'"),
    ],
)
def test_names_of_other_libraries_are_answered(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = {"data": "rows.csv", "init": "pre", "out": tmp_path / "x"} | settings
    with pytest.raises(UsageError, match=rf"Did you mean {said}\?$"):
        lambert.finetune(**given)


def test_a_signal_ends_a_script_and_its_run_is_saved(
    pretraining: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that tries several runs and catches what fails ends too, with the exit code of the signal."""
    save, sent = Run.save, []

    def saved(*given: Any, **named: Any) -> None:
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        save(*given, **named)

    monkeypatch.setattr(Run, "save", saved)

    def script() -> None:
        for _ in range(2):
            with contextlib.suppress(Exception):
                lambert.pretrain(**pretraining, train__save_every=2)

    with pytest.raises(lambert.SavedAndStopped) as ended:
        script()
    assert isinstance(ended.value, SystemExit)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err.splitlines()[-1].startswith("Stopped by SIGTERM; saved after update 3 of 6.")
    assert lambert.pretrain(**pretraining).metrics["step"].max() == 6


def test_the_state_of_torch_in_the_program_changes_no_run(pretraining: dict[str, Any], tmp_path: Path) -> None:
    plain = (lambert.pretrain(**pretraining).model / "model.safetensors").read_bytes()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = lambert.pretrain(**pretraining | {"out": tmp_path / "again"})
        assert not torch.is_grad_enabled()
    assert (again.model / "model.safetensors").read_bytes() == plain
    with torch.inference_mode(), pytest.raises(UsageError, match=r"torch\.inference_mode: call it outside"):
        lambert.pretrain(**pretraining | {"out": tmp_path / "never"})
    with (
        torch.device("meta"),
        pytest.raises(UsageError, match=r"default device is meta: call torch\.set_default_device"),
    ):
        lambert.load(again.folder)
    torch.set_default_dtype(torch.bfloat16)
    try:
        for function in (lambda: lambert.load(again.folder), lambda: lambert.pretrain(**pretraining)):
            with pytest.raises(UsageError, match=r"default type is torch\.bfloat16: call torch\.set_default_dtype"):
                function()
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_result_says_that_its_folder_is_not_there(
    pretraining: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = lambert.pretrain(**pretraining | {"out": "run"})
    assert result.metrics["step"].max() == 6
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(DataError, match="run is not there: it was moved, or the working directory has changed"):
        _ = result.metrics
    monkeypatch.chdir(tmp_path)
    loop = lambert.updates(**pretraining | {"out": "another"})
    next(loop)
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(lambert.MachineError, match="If the program changed its working directory, give an absolute"):
        loop.close()
    monkeypatch.undo()


def test_a_notebook_shows_progress(
    pretraining: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = type("Module", (), {"get_ipython": staticmethod(type("Shell", (), {"kernel": None}))})
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    lambert.pretrain(**pretraining, log__console=False)
    assert capfd.readouterr() == ("", "")
    lambert.pretrain(**pretraining | {"out": pretraining["out"].with_name("shown")})
    shown = capfd.readouterr()
    assert "model  " in shown.out
    assert "shown: 6/6 (100%) updates" in shown.err


# --- the parts in somebody's own loop ---


def test_what_is_no_batch_and_no_encoder_is_refused() -> None:
    for rows in ([[1.5, 2]], [1, 2], None, [], [[]], [[-1]], [[2**70]], ["a"]):
        with pytest.raises(UsageError, match=r"^Batch\.of takes "):
            lambert.Batch.of(rows)  # type: ignore[arg-type]
    batch = lambert.Batch.of(row for row in (iter([1, 2]), torch.tensor([3])))
    assert (batch.ids_T.tolist(), batch.bounds_S1.tolist()) == ([1, 2, 3], [0, 2, 3])
    for config in ("mini", {"layers": 1}):
        with pytest.raises(UsageError, match=r"^config must be an instance of EncoderConfig"):
            lambert.build_encoder(config)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^vocabulary = 0"):
        lambert.build_encoder(lambert.EncoderConfig())
    with pytest.raises(UsageError, match=r"^positions must be a whole number, not 1\.5"):
        lambert.EncoderConfig(positions=1.5)  # type: ignore[arg-type]


def test_encoder_and_lamb_in_a_loop_of_ones_own() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = lambert.build_encoder(lambert.EncoderConfig(vocabulary=50, hidden=32, heads=2, intermediate=64))
    head = torch.nn.Parameter(torch.zeros(32))
    groups = lambert.decay_groups(net)
    assert len(groups) == 2
    optimizer = lambert.Lamb([*groups, {"params": [("head", head)]}], lr=2e-2)
    rate = lambert.schedule(lambert.OptimConfig(lr=2e-2, warmup_steps=2), steps=12)
    batch = lambert.Batch.of([[2, 15, 3], [2, 7, 9, 11, 3]])
    assert (batch.tokens, batch.sequences, batch.longest) == (8, 2, 5)
    assert batch.positions_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    losses = []
    net.eval()  # no dropout
    for number in range(12):
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        scores_S = net(batch)[batch.bounds_S1[:-1].long()] @ head
        loss = ((scores_S - torch.tensor([1.0, -1.0])) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
