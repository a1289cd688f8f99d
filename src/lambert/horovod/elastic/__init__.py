"""Training that goes on while ranks come and go: `@elastic.run` around the loop, `TorchState` around what it changes.

When a rank fails, the others go back to the last `state.commit()`, meet again as a smaller world and call the function
anew; when hosts appear, they meet as a larger one after the next commit. Start it with `lambert horovodrun --min-np`.
"""

from lambert.horovod.elastic.run import run
from lambert.horovod.elastic.sampler import ElasticSampler
from lambert.horovod.elastic.state import ObjectState, State, TorchState
from lambert.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
