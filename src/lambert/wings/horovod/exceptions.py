"""The exceptions of collectives. `lambert.wings.horovod.elastic` recovers from both."""


class HorovodInternalError(RuntimeError):
    """Raised when a collective fails on this or another rank, because ranks disagree on it or a rank is gone."""


class HostsUpdatedInterrupt(RuntimeError):
    """Raised when the set of hosts has changed. If `skip_sync` is true, the state need not be synchronized again."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync
