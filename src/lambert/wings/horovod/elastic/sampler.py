"""A sampler that splits the indices of a dataset over ranks whose number may change within an epoch."""

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from lambert.wings.horovod.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Yields each rank's share of the samples that no rank has processed in this epoch.

    Add the sampler to the `TorchState`, call `record_batch` (or `record_indices`) after each batch and `set_epoch` at
    the end of each epoch. The order depends only on `seed` and the epoch, so all ranks agree on the remaining samples.
    If their number is not divisible by the number of ranks, some samples occur twice, as in torch's
    `DistributedSampler`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts a new epoch with no processed samples. Call `set_epoch` at the end of an epoch, so that a restart
        repeats no sample."""
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records one processed batch of `batch_size` samples per rank. These samples are not repeated in this epoch.
        `batch_idx` is not used."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """Records samples that are not repeated in this epoch. `TorchState.sync` combines the records of all ranks."""
        self.processed_indices.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the samples of this rank's batch `batch_idx` in the current pass."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the samples processed in it."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": sorted(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state and splits the remaining samples over the current ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Splits the remaining samples over the current ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        rest = order[self.processed_num :]
        self.remaining_indices = [index for index in rest if index not in self.processed_indices]
        self.num_samples: int = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._mine()

    def _mine(self) -> list[int]:
        rest = self.remaining_indices
        repeated = (rest * (1 + self.total_size // len(rest)))[: self.total_size] if rest else []
        return repeated[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        self.indices = self._mine()
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
