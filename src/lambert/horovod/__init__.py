"""Horovod's API for PyTorch on `torch.distributed`: Gloo between CPUs, NCCL between GPUs. No compilation is needed.

    import lambert.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

For programs that cannot be changed, `install_alias()` makes `import horovod.torch` import this package.
"""

from lambert.horovod import elastic
from lambert.wings.horovod import basics, operations
from lambert.wings.horovod.alias import install_alias
from lambert.wings.horovod.basics import *  # noqa: F403
from lambert.wings.horovod.compression import Compression
from lambert.wings.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lambert.wings.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from lambert.wings.horovod.operations import *  # noqa: F403
from lambert.wings.horovod.optimizer import DistributedOptimizer
from lambert.wings.horovod.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from lambert.wings.horovod.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression", "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "ProcessSet",
    "SyncBatchNorm", "add_process_set", "allgather_object", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "elastic", "global_process_set", "install_alias", "remove_process_set",
]  # fmt: skip
__all__ += basics.__all__
__all__ += operations.__all__
