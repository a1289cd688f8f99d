"""Elastic training, which continues when ranks leave or join: `@elastic.run` wraps the training function, `TorchState`
its state.

When a rank fails, the other ranks restore the last `state.commit()`, form a smaller world and call the function again.
When hosts are added, the ranks form a larger world after the next commit. Start an elastic job with
`lambert horovodrun --min-np`.
"""

from lambert.wings.horovod.elastic.run import run
from lambert.wings.horovod.elastic.sampler import ElasticSampler
from lambert.wings.horovod.elastic.state import ObjectState, State, TorchState
from lambert.wings.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
