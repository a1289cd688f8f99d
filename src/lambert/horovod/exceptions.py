"""What goes wrong while ranks work together; `lambert.horovod.elastic` recovers from both."""


class HorovodInternalError(RuntimeError):
    """A collective operation failed, here or on another rank: ranks disagree about it, or one of them is gone."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed. `skip_sync` says that the state needs no new synchronization."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync
