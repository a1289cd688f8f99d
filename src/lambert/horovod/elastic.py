"""Elastic training under the name that Horovod's users import (`lambert.wings.horovod.elastic`)."""

from lambert.wings.horovod.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TorchState,
    run,
)

__all__ = [
    "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run",
]  # fmt: skip
