"""The sides of a measurement without processes."""

from typing import Any

from lambert.measure.ceilings import Rates
from lambert.wings.bench.side_process import Side
from lambert.wings.bench.verb import BenchConfig
from lambert.wings.bench.work import Times


class SideHere:
    """A side in this process, with the methods of `SideProcess`."""

    def __init__(self, config: BenchConfig, name: str, environment: object) -> None:
        self._side = Side(config, name)

    def __enter__(self) -> "SideHere":
        return self

    def __exit__(self, *failure: object) -> None: ...

    def build(self) -> Times:
        return Times(**self._side.build())

    def round(self) -> float:
        return self._side.round()

    def ceilings(self) -> Rates:
        return Rates(**self._side.ceilings())

    def ask(self, request: str) -> Any:
        return getattr(self._side, request)()
