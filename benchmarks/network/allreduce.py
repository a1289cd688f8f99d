"""Seconds that an all-reduce takes between the ranks it is started on, one line of JSON from the first.

python -m benchmarks.network.lab --rate 1gbit -- python -m benchmarks.network.allreduce --megabytes 100
"""

import argparse
import json
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20.0, help="of the tensor, 10^6 bytes")
    parser.add_argument("--dtype", default="float32", help="of torch")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    tensor = torch.zeros(int(arguments.megabytes * 1e6) // dtype.itemsize, dtype=dtype)
    small = torch.zeros(1)
    for _ in range(20):
        dist.all_reduce(small)
    pings = []
    for _ in range(100):
        started = time.perf_counter()
        dist.all_reduce(small)
        pings.append(time.perf_counter() - started)
    seconds = []
    for _ in range(arguments.rounds):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - started)
    median = sorted(seconds)[len(seconds) // 2]
    if dist.get_rank() == 0:
        wire = tensor.nbytes * 2 * (dist.get_world_size() - 1) / dist.get_world_size()
        row = {
            "megabytes": arguments.megabytes,
            "dtype": arguments.dtype,
            "ranks": dist.get_world_size(),
            "seconds": round(median, 4),
            "range": [round(min(seconds), 4), round(max(seconds), 4)],
            "mbit_per_second": round(wire * 8 / median / 1e6, 1),
            "small_microseconds": round(sorted(pings)[len(pings) // 2] * 1e6, 1),
        }
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
