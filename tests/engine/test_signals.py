import os
import signal
import threading

import pytest

from lambert.engine.dist import World
from lambert.engine.signals import polite


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)])
def test_a_signal_is_a_request(number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with polite() as request:
        assert not request
        assert not request.agreed(World())
        os.kill(os.getpid(), number)
        assert request
        assert request.agreed(World())
        error = request.stopped("step 7 is saved", "lambert pretrain r.toml")
    assert signal.getsignal(number) is before
    assert error.exit_code == code
    assert str(error) == f"Stopped by {number.name}; step 7 is saved. To continue: lambert pretrain r.toml"
    assert capfd.readouterr().err.count("once more leaves at once") == 1


def test_outside_the_main_thread_it_only_listens() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with polite() as request:
            seen.append((bool(request), request.reason, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, "nothing", before)]
