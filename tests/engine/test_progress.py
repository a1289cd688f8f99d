import io
import sys

import pytest

from lambert.engine.progress import format_duration, progress, score_text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (3599, "59 min 59 s"), (7620, "2 h 7 min")]
)
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_plain_lines_come_at_intervals_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(4, "tokenize", unit="files", seconds=0) as bar:
        bar.advance(1, "12 MB")
        bar.advance(3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tokenize: 1/4 (25%) files, 12 MB, ")
    assert lines[0].endswith(" left")
    assert lines[-1] == "tokenize: 4/4 (100%) files, 12 MB, done in 0 s"


def test_between_intervals_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(None, "read", seconds=1000) as bar:
        for _ in range(100):
            bar.advance()
        bar.note("by the way")
    assert capsys.readouterr().err == "by the way\nread: 100, done in 0 s\n"


def test_a_full_disk_behind_stderr_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with progress(2, "read", seconds=0) as bar:
        bar.advance()
        bar.note("by the way")
    assert bar.done == 1


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2, "read", quiet=True, seconds=0) as bar:
        bar.advance()
        bar.note("by the way")
    assert capsys.readouterr().err == ""


def test_the_time_left_counts_only_what_was_done_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress(100, "train", quiet=True, done=60) as bar:
        assert bar.seconds_left is None
        now[0] += 5
        bar.advance(10)
        assert bar.seconds_left == pytest.approx(15)


def test_the_time_left_needs_enough_work_done_now() -> None:
    with progress(100, "train", quiet=True, done=60, measured=10) as bar:
        bar.advance(9)
        assert bar.seconds_left is None
        bar.advance()
        assert bar.seconds_left is not None


def test_a_terminal_shows_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with progress(10, "train", unit="updates") as bar:
        bar.advance(5, "loss 1.5 [x]")
        bar.note("a note")
    text = screen.getvalue()
    for part in ("train", "5/10", "updates", " left", "loss 1.5 [x]", "a note"):
        assert part in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_a_narrow_terminal_shows_the_whole_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress(1000, "a-long-name-of-a-run", unit="updates") as bar:
        bar.advance(500, "loss 1.5000, lr 1.00e-03, 2,000 tokens/s")
    text = screen.getvalue()
    assert " 500/1000" in text
    assert "loss 1.5000" in text
    assert "tokens/s" not in text


def test_a_new_task_has_its_own_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress(None, "read", unit="MB", seconds=10, summary=False) as bar:
        bar.update("read", 1.0, 4.0)
        now[0] += 60
        bar.update("write", 0.0, 4.0)
        now[0] += 10
        bar.update("write", 1.0, 4.0)
    assert capsys.readouterr().err.splitlines() == [
        "read: 1 MB in 1 min 0 s, 0.0 MB/s", "write: 1/4 (25%) MB, 0.1 MB/s, 30 s left", "write: 1 MB in 10 s, 0.1 MB/s"
    ]  # fmt: skip


def test_long_tasks_print_few_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress(None, "read", unit="MB", seconds=10, summary=False) as bar:
        for second in range(36_000):
            now[0] = float(second)
            bar.update("read", second * 20.0, 720_000.0)
    lines = capsys.readouterr().err.splitlines()
    assert 20 < len(lines) < 80
    assert all("20.0 MB/s" in line for line in lines)
    assert lines[-1] == "read: 719,980 MB in 9 h 59 min, 20.0 MB/s"


def test_a_terminal_keeps_a_line_of_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, now = Terminal(), [100.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with progress(None, "read", unit="MB", summary=False) as bar:
        monkeypatch.setattr("lambert.engine.progress.time.monotonic", lambda: now[0])
        for task in ("extract", "clean"):
            bar.update(task, 0.0, 8.0)
            now[0] += 4
            bar.update(task, 8.0, 8.0)
    for task in ("extract", "clean"):
        assert f"{task}: 8 MB in 4 s, 2.0 MB/s" in screen.getvalue()


def test_counts_are_whole_numbers() -> None:
    assert score_text("examples", 12_345.0, ".4g") == "12,345"
    assert score_text("has_answer_questions", 300.0) == "300"
    assert score_text("accuracy", 1.0) == "1.0000"
