"""What the cost model (model.py) is told: when gradients are ready, and what methods cost on a link without a limit.

    python benchmarks/network/lab.py -- python benchmarks/network/calibrate.py --corpus CORPUS --out calibration.json

Run it with as many ranks as the study, all at once, as they compete for memory in training too. Nothing of it is
measured at the rates that the model is asked about. The first rank writes, in seconds, medians of the rounds:

- `forward`, `backward`, `after`: of an update, the last being clipping and the optimizer
- `parameters`: of each, in the order of the buffer, its bytes and how long after the backward pass began it was ready
- `buckets`: the parameters [low, high) of each, in the order in which they are sent
- `methods`: for each bucket the seconds that its exchange takes with nothing else under way, and the bytes a rank sends
- `byte`, `copy`: seconds that a byte takes through the kernel and a float32 byte through a copy
- `agreement`: seconds of an all-reduce of a few bytes
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from study import METHODS, flags_of, settings

from lambert.core.shards import Split
from lambert.corpus.tokens import roles
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import methods
from lambert.engine.gradients import Gradients
from lambert.engine.precision import Precision
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build


def timeline(args: argparse.Namespace, gradients: Gradients, net: Any, precision: Precision) -> dict[str, Any]:
    """Forward and backward pass and what follows, without any exchange."""
    tokenizer = tokenizers.load(args.corpus)
    packing = PackingConfig(mode="full", sequence_length=args.length)
    specials = roles.specials(tokenizer)
    source = CorpusSource(Split(args.corpus, "train"), packing, MaskingConfig(), specials, 0)
    share = args.batch_size // args.ranks
    optimizer = build(net, OptimConfig(name=args.optimizer, lr=args.lr))
    ready: list[float] = [0.0] * len(gradients.views)
    nodes = []
    for place, parameter in enumerate(gradients.parameters):
        leaf: Any = parameter.expand_as(parameter).grad_fn
        node = leaf.next_functions[0][0]

        def note(*_: object, place: int = place) -> None:
            ready[place] = time.perf_counter()

        nodes.append((node, node.register_hook(note)))
    rows = []
    for number in range(args.rounds + 2):
        indices_S = np.arange(share) + number * share
        batch = source.collate(np.zeros_like(indices_S), indices_S)
        dist.barrier()
        began = time.perf_counter()
        gradients.clear()
        with precision.autocast():
            sums_K = net(batch.with_compute(replace(precision.compute, gradients=gradients)))
        forward = time.perf_counter()
        precision.backward(sums_K.sum() / batch.targets["mlm"].count)
        backward = time.perf_counter()
        gradients.collect()
        precision.step(optimizer, gradients, 1.0)
        after = time.perf_counter()
        rows.append([forward - began, backward - forward, after - backward, *(at - forward for at in ready)])
    for _, hook in nodes:
        hook.remove()
    forward, backward, after, *times = np.median(np.array(rows[2:]), axis=0).tolist()
    sizes = [view.nbytes for view in gradients.views]
    return {
        "forward": forward,
        "backward": backward,
        "after": after,
        "parameters": [{"bytes": size, "ready": round(max(0.0, at), 6)} for size, at in zip(sizes, times, strict=True)],
    }


def costs(args: argparse.Namespace, gradients: Gradients, name: str) -> dict[str, list[float]]:
    """Of a method of the study: seconds and bytes of each bucket."""
    config = ExchangeConfig(**METHODS[name])
    method = methods.METHODS[config.method](config, None, None)
    buckets = gradients.buckets(config.megabytes(gradients.flat.device))
    kept = gradients.flat.clone()
    seconds: list[list[float]] = []
    for _ in range(args.rounds + 2):
        gradients.flat.copy_(kept)
        seconds.append([])
        for bucket in buckets:
            dist.barrier()
            began = time.perf_counter()
            method.reduce(bucket)
            seconds[-1].append(time.perf_counter() - began)
    gradients.flat.copy_(kept)
    medians = np.median(np.array(seconds[2:]), axis=0).tolist()
    return {"seconds": medians, "bytes": [method.wire_bytes(bucket) for bucket in buckets]}


def small(rounds: int = 100) -> float:
    """Seconds of an all-reduce of a few bytes."""
    tensor, seconds = torch.zeros(64, dtype=torch.uint8), []
    for _ in range(rounds):
        began = time.perf_counter()
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def copying(flat: torch.Tensor) -> float:
    """Seconds a byte of float32 takes to be cast to float16, about what a copy into a fusion buffer takes."""
    narrow, seconds = torch.empty_like(flat, dtype=torch.float16), []
    for _ in range(9):
        began = time.perf_counter()
        narrow.copy_(flat)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) / flat.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    args.ranks = dist.get_world_size()
    args.recipe, args.updates, args.evaluate_sequences = None, 1, 1
    shape = {k.removeprefix("model."): v for k, v in flags_of(args, args.out, 0).items() if k.startswith("model.")}
    pieces = tokenizers.load(args.corpus).get_vocab_size()
    net = weights.fresh(EncoderConfig(**shape, vocabulary=pieces), {"mlm": 0}, 0).train()
    precision, gradients = Precision(args.precision), Gradients(net)
    found = {"work": "calibration"} | timeline(args, gradients, net, precision)
    starts = {view.data_ptr(): place for place, view in enumerate(gradients.views)}
    buckets = gradients.buckets(ExchangeConfig().megabytes(gradients.flat.device))
    lows = [starts[bucket.views[0].data_ptr()] for bucket in buckets]
    found["buckets"] = [[low, low + len(bucket.views)] for low, bucket in zip(lows, buckets, strict=True)]
    found["methods"] = {name: costs(args, gradients, name) for name in METHODS if "method" in METHODS[name]}
    found["methods"]["float32"] = dense = costs(args, gradients, "float32")
    found["byte"] = sum(dense["seconds"]) / sum(dense["bytes"])
    found["copy"], found["agreement"] = copying(gradients.flat), small()
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(found | settings(args)) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
