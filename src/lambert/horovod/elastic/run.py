"""The loop around an elastic training function."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from lambert.horovod.basics import init, shutdown
from lambert.horovod.elastic.membership import membership
from lambert.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

P = ParamSpec("P")
R = TypeVar("R")


def run(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The function, called again in a new world whenever ranks have failed, gone or come.

    Its first argument is the `State`, which is made that of rank 0 before each call. After a failure
    (`HorovodInternalError`) it goes back to the last commit; after a change of hosts (`HostsUpdatedInterrupt`) it stays
    as it is. No collective operation may run outside the function, where ranks that join would not take part in it.

    Started by `lambert horovodrun --min-np`, ranks live on and meet again. Under another launcher, such as torchrun,
    the same ranks meet again; one that restarts its workers after a failure makes the function begin from the script's
    start.
    """

    @functools.wraps(function)
    def elastic(state: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        in_step = False
        while True:
            try:
                if not in_step:
                    state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                in_step = False
            except HostsUpdatedInterrupt as interrupt:
                in_step = interrupt.skip_sync
            _meet_again()
            state.on_reset()

    return cast(Callable[Concatenate[Any, P], R], elastic)


def _meet_again() -> None:
    shutdown()
    while membership.elastic:
        membership.join_next()
        try:
            init()
            return
        except HorovodInternalError:
            # One of the new world failed before it had met; the launcher forms the next one without it.
            shutdown()
    init()
