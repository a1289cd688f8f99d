"""The decorator `run`, which calls an elastic training function again after each change of the ranks."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from lambert.wings.horovod.basics import init, shutdown
from lambert.wings.horovod.elastic.membership import membership
from lambert.wings.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

P = ParamSpec("P")
R = TypeVar("R")


def run(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wraps a function so that it is called again in a new world whenever ranks have failed, left or joined.

    The first argument of the function is the `State`, which is synchronized from rank 0 before each call. After a
    failure (`HorovodInternalError`) the state is restored to the last commit; after a change of hosts
    (`HostsUpdatedInterrupt`) it is kept. No collective may run outside the function, because ranks that join would not
    take part in it.

    Under `lambert horovodrun --min-np`, the processes keep running and form the new world. Under another launcher, such
    as torchrun, the same ranks connect again; if that launcher restarts its workers after a failure, the script starts
    from the beginning.
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
            # A rank of the new world failed before the ranks were connected; the launcher forms the next world
            # without it.
            shutdown()
    init()
