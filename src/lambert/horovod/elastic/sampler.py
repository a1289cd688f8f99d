"""Indices of a dataset split over ranks that may change in number within an epoch."""

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from lambert.horovod.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its share of the samples that no rank has processed in this epoch.

    Put it into the `TorchState`, call `record_batch` (or `record_indices`) after each batch and `set_epoch` at the end
    of each epoch. The order depends on `seed` and the epoch alone, so all ranks agree on what is left. Where the rest
    does not divide by the number of ranks, some samples come twice, as in torch's `DistributedSampler`.
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
        """A new epoch, nothing of it processed. Call it at the end of an epoch, so that a restart repeats no sample."""
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batch `batch_idx` of this pass is done, on every rank: so many samples per rank will not come again."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """These samples will not come again. Ranks tell one another what they have named in `TorchState.sync`."""
        self.processed_indices.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch `batch_idx` in the present pass."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch and what of it is done."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": sorted(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, with the rest split over the ranks of now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Splits what is left over the ranks of now."""
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
