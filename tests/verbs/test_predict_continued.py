"""A prediction of files that was killed or stopped: the same command continues, to the same bytes."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line

import lambert as library
from lambert import cli
from lambert.core.errors import DataError
from lambert.inference import answer_file
from lambert.verbs import predict

Lambert = Callable[..., Any]
KEPT = "; the predictions so far are kept"
Tuned = Callable[[str], Path]
COUNT, CHUNK = 23, 4
WRITING = [
    (os, "fsync"), (os, "link"), (Path, "mkdir"), (Path, "rename"), (Path, "replace"), (shutil, "rmtree"),
    (predict, "make_readable_request"),
]  # fmt: skip
"""All by which the file comes about, and the reading of a chunk."""


@pytest.fixture(autouse=True)
def _always_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is on the disk when it is complete."""
    torch.set_num_threads(1)
    monkeypatch.setattr(answer_file, "_SECONDS", 0.0)


@pytest.fixture
def rows(tmp_path: Path) -> list[Path]:
    """Two files with a row that cannot be predicted."""
    found = []
    for number, (name, count) in enumerate((("one.csv", 9), ("two.jsonl", COUNT - 9))):
        path = tmp_path / name
        texts = [f'the king "found" river {number} {row}' + "\nnear" * (row % 2) for row in range(count)]
        if path.suffix == ".csv":
            path.write_text(
                "text,day\n" + "".join('"{}",{}\n'.format(t.replace('"', '""'), i) for i, t in enumerate(texts))
            )
        else:
            texts[5:6] = []
            path.write_text("".join(json.dumps({"text": text, "day": "x"}) + "\n" for text in texts) + "{}\n")
        found.append(path)
    return found


class Model:
    """A model that is loaded once, and counts the rows that it is asked."""

    def __init__(self, folder: Path) -> None:
        self.model = library.load(folder)

    def __call__(self, *arguments: object) -> Any:
        return self.model


def vectors(pretrained: Path, folder: Path, lambert: Lambert) -> Path:
    """A model of vectors."""
    pairs = folder / "pairs.jsonl"
    pairs.write_text('{"text": "a river", "text_b": "a boat"}\n' * 4)
    flags = {"task__name": "embed", "train__steps": 1, "train__batch_size": 2, "task__columns__text_b": "text_b"}
    done = lambert("finetune", init=pretrained, data=pairs, out=folder / "vectors", **flags)
    assert done.code == 0, done.err
    return folder / "vectors"


def run(config: Any) -> None:
    with pytest.raises(DataError, match=r"1 of 23 rows has an error"):
        predict.run(config)


def dying(function: Callable[..., Any], count: list[int], fatal: int) -> Callable[..., Any]:
    """`function`, which takes the process with it before the `fatal`-th call of any that share `count`."""

    def call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == fatal:
            os._exit(9)
        return function(*arguments, **options)

    return call


def killed(config: Any, fatal: int) -> bool:
    """Runs in a process that dies at a call. Returns whether it died."""
    child = os.fork()
    if not child:
        count = [0]
        for owner, name in WRITING:
            setattr(owner, name, dying(getattr(owner, name), count, fatal))
        try:
            predict.run(config)
        except DataError:
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize(
    ("suffix", "step"),
    [
        pytest.param(".jsonl", 2, marks=pytest.mark.slow),
        (".csv", 5),
        (".parquet", 4),
        pytest.param(".npy", 5, marks=pytest.mark.slow),
    ],
)
def test_the_same_command_continues_after_a_kill_at_any_call(
    suffix: str, step: int, rows: list[Path], pretrained: Path, tuned: Tuned, tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = vectors(pretrained, tmp_path, lambert) if suffix == ".npy" else tuned("classify")
    monkeypatch.setattr(predict, "TextModel", Model(model))
    out = tmp_path / "out" / f"answers{suffix}"
    keep = () if suffix == ".npy" else ("day",)
    config = predict.PredictConfig(model, input=tuple(rows), out=out, chunk=CHUNK, keep=keep)
    run(config)
    expected = out.read_bytes()
    asked: list[int] = []
    plain = predict.make_readable_request
    monkeypatch.setattr(predict, "make_readable_request", lambda *given: asked.append(len(given[1])) or plain(*given))
    fatal, kept = 1, set()
    while True:
        shutil.rmtree(out.parent)
        if not killed(config, fatal):
            break
        state = out.parent / f"{out.name}.partial" / "state.json"
        done = json.loads(state.read_text())["rows"] if state.is_file() else 0
        assert not out.exists() or out.read_bytes() == expected
        asked.clear()
        run(config)
        assert sum(asked) == COUNT - done
        assert out.read_bytes() == expected
        assert [*out.parent.iterdir()] == [out]
        kept.add(done)
        fatal += step
    assert kept == {0, *range(CHUNK, COUNT, CHUNK), COUNT}


def test_several_kills_in_one_file(
    rows: list[Path], tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "TextModel", Model(tuned("classify")))
    out = tmp_path / "out" / "answers.parquet"
    config = predict.PredictConfig(tuned("classify"), input=tuple(rows), out=out, chunk=CHUNK)
    run(config)
    expected = out.read_bytes()
    out.unlink()
    kills = 0
    while killed(config, 15 + kills):
        kills += 1
        assert kills < 20
        assert not out.exists()
    assert kills >= 3
    assert out.read_bytes() == expected
    assert [*out.parent.iterdir()] == [out]


def test_a_signal_says_that_the_same_command_continues(
    rows: list[Path], tuned: Tuned, tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "answers.jsonl"
    flags = {"model": tuned("classify"), "chunk": CHUNK, "input": rows[1]}
    expected = lambert("predict", **flags).out
    with monkeypatch.context() as patched:
        plain, calls = predict.make_readable_request, []

        def striking(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return plain(*given)

        patched.setattr(predict, "make_readable_request", striking)
        stopped = lambert("predict", **flags, out=out)
        assert stopped.code == 75
        assert stopped.err.endswith(
            "Stopped by SIGTERM; the predictions so far are kept. To continue: the same command again.\n"
        )
        assert not out.exists()
    ended = lambert("predict", **flags, out=out)
    assert ended.code == 3
    assert out.read_text() == expected
    assert sorted(tmp_path.iterdir()) == sorted([*rows, out])


@pytest.mark.parametrize(("chunks", "said"), [(0, " before the first prediction; nothing was written"), (1, KEPT)])
def test_a_signal_says_whether_there_are_predictions(
    chunks: int, said: str, rows: list[Path], tuned: Tuned, tmp_path: Path, lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plain, calls = predict.make_readable_request, []

    def striking(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 + chunks:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(*given)

    monkeypatch.setattr(predict, "make_readable_request", striking)
    flags = {"model": tuned("classify"), "chunk": CHUNK, "input": rows[1], "out": tmp_path / "answers.jsonl"}
    stopped = lambert("predict", **flags)
    assert stopped.code == 130
    assert stopped.err.endswith(f"Stopped by SIGINT{said}. To continue: the same command again.\n")


def half(config: Any) -> Path:
    """Kills a run in its middle. Returns the folder of the part."""
    assert killed(config, 25)
    return config.out.with_name(f"{config.out.name}.partial")


@pytest.fixture
def begun(rows: list[Path], tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """The part of an interrupted run, and its command."""
    with monkeypatch.context() as patched:
        patched.setattr(predict, "TextModel", Model(tuned("classify")))
        out = tmp_path / "answers.jsonl"
        part = half(predict.PredictConfig(tuned("classify"), input=tuple(rows), out=out, chunk=CHUNK))
    assert (part / "state.json").is_file()
    flags = ["--model", tuned("classify"), "--chunk", CHUNK, "--out", out, "--input", *rows]
    return part, [*map(str, flags)]


def test_another_model_input_or_setting_is_refused(
    begun: tuple[Path, list[str]], rows: list[Path], tuned: Tuned, lambert: Lambert
) -> None:
    part, flags = begun
    before = {name: (part / name).read_bytes() for name in ("state.json", "rows")}
    model = str(tuned("classify"))
    for given, what in (
        ([*flags, "--errors", "stop"], "other settings (errors)"),
        ([*flags, "--inference.device", "cpu"], "other settings (inference.device)"),
        ([str(tuned("regress")) if flag == model else flag for flag in flags], "another model"),
    ):
        said = f"{part} has unfinished predictions of a command with {what}. Remove {part} to start again."
        one_line(lambert("predict", *given), 2, said)
    saved = rows[0].read_text()
    rows[0].write_text(saved + '"more",3\n')
    one_line(lambert("predict", *flags), 2, "of a command with another input.")
    assert {name: (part / name).read_bytes() for name in ("state.json", "rows")} == before


def test_a_damaged_part_is_refused(begun: tuple[Path, list[str]], lambert: Lambert) -> None:
    part, flags = begun
    state = json.loads((part / "state.json").read_text())
    for text in ("", "3", "{", json.dumps(state | {"rows": "a"}), json.dumps(state | {"position": {}})):
        (part / "state.json").write_text(text)
        one_line(lambert("predict", *flags), 3, f"{part}/state.json is damaged", f"Remove {part} to start again.")
    (part / "state.json").write_text(json.dumps(state))
    os.truncate(part / "rows", 10)
    one_line(lambert("predict", *flags), 3, f"{part}/rows is shorter than {part}/state.json says.")
    shutil.rmtree(part)
    assert lambert("predict", *flags).code == 3


def test_one_process_at_a_time(begun: tuple[Path, list[str]], lambert: Lambert) -> None:
    part, flags = begun
    with answer_file.lock_folder(part):
        child = os.fork()
        if not child:
            try:
                cli.main(["predict", *flags])
            except SystemExit as left:
                os._exit(int(str(left.code)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert lambert("predict", *flags).code == 3
