import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from patience import HANGS

from lambert.core.errors import SavedAndStopped
from lambert.core.world import World
from lambert.engine.compiler import compile_or_fall_back
from lambert.engine.signals import Interrupted, StopRequest, graceful_stop

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]


def ask(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def politely(work: Callable[[StopRequest], object]) -> None:
    with graceful_stop() as request:
        work(request)


def deferring(work: Callable[[StopRequest], object]) -> None:
    with graceful_stop() as request, request.defer():
        work(request)


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_is_a_request(number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    before, threads = signal.getsignal(number), threading.active_count()

    def work(request: StopRequest) -> None:
        assert not request
        assert not request.agree(World())
        ask(number)
        assert request
        assert request.agree(World())
        raise request.build_error("step 7 is saved")

    with pytest.raises(SavedAndStopped) as caught:
        deferring(work)
    assert signal.getsignal(number) is before
    assert threading.active_count() == threads
    assert caught.value.exit_code == code
    assert str(caught.value) == f"Stopped by {number.name}; step 7 is saved. To continue: the same command again."
    assert capfd.readouterr().err.count("a second signal exits at once") == 1


@pytest.mark.parametrize(("number", "code"), CODES)
def test_where_nothing_is_to_be_saved_it_breaks_off_what_is_done(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before, descriptors = signal.getsignal(number), len(os.listdir("/proc/self/fd"))
    reached = []

    def work(request: StopRequest) -> None:
        for item in held():
            try:
                ask(number)
                time.sleep(5)
                reached.append(item)
            except Exception:
                reached.append("a failure")

    def held() -> Iterator[str]:
        try:
            yield "after"
        finally:
            reached.append("clean")

    with pytest.raises(SavedAndStopped) as caught:
        politely(work)
    assert reached == ["clean"]
    assert caught.value.exit_code == code
    assert str(caught.value) == (
        f"Stopped by {number.name} before the first update; nothing new to save. To continue: the same command again."
    )
    assert signal.getsignal(number) is before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert capfd.readouterr().err == ""


def test_what_a_continued_run_leaves() -> None:
    def work(request: StopRequest) -> None:
        request.status = "; the newest checkpoint is that of update 8"
        ask()

    with pytest.raises(SavedAndStopped, match=r"^Stopped by SIGTERM; the newest checkpoint is that of update 8\. To"):
        politely(work)


def test_what_a_broken_off_function_holds_is_let_go() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield 1
            ask()
        finally:
            closed.append("source")

    def work(request: StopRequest) -> None:
        source = items()  # held by the frame that the signal breaks off, as a reader's thread would be
        next(source)
        ask()

    with pytest.raises(SavedAndStopped):
        politely(work)
    assert closed == ["source"]


def test_patience_ends_with_what_came_meanwhile() -> None:
    reached = []

    def work(request: StopRequest) -> None:
        with request.defer():
            ask()
            reached.append("within")
        reached.append("behind")

    with pytest.raises(SavedAndStopped, match="nothing new"):
        politely(work)
    assert reached == ["within"]


def test_a_request_that_a_library_swallowed_is_remembered() -> None:
    def work(request: StopRequest) -> None:
        with contextlib.suppress(Interrupted):
            ask()
        with request.defer():
            raise AssertionError

    with pytest.raises(SavedAndStopped):
        politely(work)


def test_a_library_that_turns_the_signal_into_an_error_is_stopped_too() -> None:
    def work(request: StopRequest) -> None:
        with contextlib.suppress(Interrupted):
            ask()  # while a module is imported
        raise AttributeError("partially initialized module")

    with pytest.raises(SavedAndStopped):
        politely(work)


def test_an_error_in_patience_stays_that_error() -> None:
    def work(request: StopRequest) -> None:
        ask()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        deferring(work)


def test_stopping_during_the_trial_is_not_a_failure_to_compile() -> None:
    def work(request: StopRequest) -> None:
        with compile_or_fall_back([], ask, World()):
            raise AssertionError

    with pytest.raises(SavedAndStopped):
        politely(work)


def test_a_request_of_another_rank_leaves_the_own_first_signal_a_first() -> None:
    class Two(World):
        def largest(self, number: int) -> int:
            return int(signal.SIGUSR1)

    def work(request: StopRequest) -> None:
        assert request.agree(Two())
        ask()
        time.sleep(0.1)
        raise request.build_error("saved")

    with pytest.raises(SavedAndStopped, match="SIGUSR1; saved"):
        deferring(work)


def test_a_signal_while_the_ranks_agree_waits_for_the_next_time() -> None:
    class Meeting(World):
        def largest(self, number: int) -> int:
            if not seen:
                ask()
            return number

    seen: list[bool] = []

    def work(request: StopRequest) -> None:
        seen.extend(request.agree(world) for world in (Meeting(), World(), World()))
        raise request.build_error("saved")

    with pytest.raises(SavedAndStopped, match="SIGTERM; saved"):
        deferring(work)
    assert seen == [False, True, True]


def test_outside_the_main_thread_it_only_listens() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with graceful_stop() as request:
            seen.append((bool(request), request.reason, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, "nothing", before)]


# --- code that is deaf to signals: the main thread is in a library and runs no handler ---

DEAF = """
    import hashlib, os, signal, sys, threading, time
    from lambert.engine import signals
    signals.GRACE_SECONDS = 0.5
    def deaf():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
    def after(seconds, number):
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
    with signals.graceful_stop() as request:
        {}
"""


@pytest.fixture
def ended() -> Callable[[str], subprocess.CompletedProcess[str]]:
    def run(body: str) -> subprocess.CompletedProcess[str]:
        script = textwrap.dedent(DEAF).format(textwrap.indent(textwrap.dedent(body), " " * 4).strip())
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS, check=False
        )

    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_code_that_is_deaf_is_left_after_a_grace(
    number: signal.Signals, code: int, ended: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    left = ended(f"after(0.1, {int(number)}); deaf()")
    assert left.returncode == code
    assert left.stderr == (
        f"lambert: Stopped by {number.name} before the first update; nothing new to save. "
        "To continue: the same command again.\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_leaves_even_deaf_code_at_once(
    number: signal.Signals, ended: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    left = ended(f"with request.defer(): after(0.1, {int(number)}); after(0.4, {int(number)}); deaf()")
    assert left.returncode == 128 + number
    assert "exiting at once" in left.stderr


def test_an_unasked_request_says_so() -> None:
    assert StopRequest().reason == "nothing"
    StopRequest().check()
