"""The training loop on a GPU in several ways, and where the time of each goes by kind of kernel.

    python -m benchmarks.gpu.arms [--device cuda] [--works base-512-full ...] [--arms plain ...] [--tokens 32768]
    python -m benchmarks.gpu.arms --device cpu --works tiny-64-full --tokens 512 --rounds 1   # proves the script

Arms: `plain`, torch's kernels one by one; `compiled`, blocks by torch.compile; `triton`, Lambert's kernels
(LAMBERT_TRITON=1); `graphs` and `triton-graphs`, the same replayed as CUDA graphs (LAMBERT_GRAPHS=1). A work is
SIZE-LENGTH-LENGTHS: a size of BERT, `8x512` (8 layers of width 512) or `modern-base`; the tokens of a sequence; and
`full`, or `wikipedia` for lognormal lengths. An update is one micro-batch with as many sequences as have `--tokens`
real tokens; four batches come again and again, so losses fall. Clipping, LAMB, dropout 0.1 (modern-base: 0), bfloat16.

Each arm runs in a process of its own, which prints a line of JSON: milliseconds an update (median and range over the
rounds, each of `--updates`, whose last one is waited for), real tokens a second, the loss of the last update, peak
memory, the micro-batches and the steps that graphs computed, and milliseconds by kind of kernel of further updates
under torch's profiler; `gaps` is the rest. Losses of the arms must agree but for their dropout.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

ARMS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "compiled": ("LAMBERT_BENCH_COMPILE",),
    "triton": ("LAMBERT_TRITON",),
    "graphs": ("LAMBERT_GRAPHS",),
    "triton-graphs": ("LAMBERT_TRITON", "LAMBERT_GRAPHS"),
}
"""The environment variables that are 1 in each arm."""
WORKS = ("base-512-full", "base-512-wikipedia", "8x512-128-full", "modern-base-512-wikipedia")
KINDS = {
    "products": r"gemm|cutlass|nvjet|cublas|xmma|splitk|matmul|linear|addmm|bmm|::mm|native.*(linear|pack)",
    "attention": r"flash|fmha|attention|attn",
    "optimizer": r"lamb|adam|multi_tensor|foreach|optimizer|updates?",
    "norms": r"norm",
    "gelu and gates": r"gelu|gated|silu|tanh",
    "cross entropy": r"cross_entropy|nll|softmax",
    "embeddings": r"index|embed|gather|scatter|add_rows",
    "dropout": r"dropout|bernoulli|random",
    "copies and casts": r"copy|memcpy|memset|fill|zero|cat|::to$|_to_",
    "sums": r"reduce|sum",
}
"""Parts of the names of kernels, tried in this order; the rest is `other`."""
PROFILED = 5
WARM = 8
"""Updates that are not counted: they compile, and record graphs of each size."""


def kind_of(name: str) -> str:
    """The kind of a kernel."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), "other")


def encoder_of(size: str, length: int) -> Any:
    """The encoder of a work."""
    from lambert.model.config import MODERN_SIZES, SIZES, EncoderConfig

    if size == "8x512":
        shape: dict[str, Any] = {"layers": 8, "hidden": 512, "heads": 8, "intermediate": 2048}
    else:
        shape = dict(MODERN_SIZES["base"] if size == "modern-base" else SIZES[size])
    drop = 0.0 if size == "modern-base" else 0.1
    return EncoderConfig(vocabulary=30_522, positions=max(512, length), dropout=drop, attention_dropout=drop, **shape)


def draw_batches(encoder: Any, length: int, lengths: str, tokens: int) -> list[Any]:
    """Four batches of about `tokens` real tokens."""
    from lambert.measure.batches import draw_batch
    from lambert.wings.bench.batches import FITTED, draw_lengths
    from lambert.wings.bench.settings import BenchConfig

    sequences = max(1, round(tokens / (length * FITTED.get(lengths, (1.0,))[0])))
    found = []
    for seed in range(4):
        config = BenchConfig(size="base", length=length, lengths=lengths, sequences=sequences, seed=seed)
        heads = ("mlm", "nsp") if encoder.segment_types == 2 else ("mlm",)
        found.append(draw_batch(encoder, draw_lengths(config), seed, heads))
    return found


def measure(work: str, device_name: str, tokens: int, rounds: int, updates: int) -> dict[str, Any]:
    """The measurements of this process's arm."""
    import torch

    from benchmarks.support.training import as_update, build_optimizer, train_on
    from lambert.core.world import World
    from lambert.engine.compiler import compile_blocks
    from lambert.engine.device import device_named, peak_megabytes
    from lambert.engine.graphs import choose_graphs
    from lambert.model import weights

    size, length, lengths = work.rsplit("-", 2)
    encoder, world = encoder_of(size, int(length)), World(device=device_named(device_name, 0))
    batches = draw_batches(encoder, int(length), lengths, tokens)
    net = weights.draw(encoder, dict.fromkeys(batches[0].targets, 0))
    net.to(world.device)
    if os.environ.get("LAMBERT_BENCH_COMPILE") == "1":
        compile_blocks(net.encoder.blocks)
    said: list[str] = []
    graphs = choose_graphs(world, max(batch.tokens for batch in batches), said.append)
    recorder = _Counting(graphs.recorder) if graphs else None
    graphs = replace(graphs, recorder=recorder) if graphs and recorder else None
    data = itertools.cycle(map(as_update, batches))
    steps = train_on(net, build_optimizer(net), data, world, lr=1e-3, graphs=graphs)
    take = partial(_take, steps)
    take(WARM)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        last = take(updates)
        times.append(1000 * (time.perf_counter() - began) / updates)
    loss = last.loss
    activities = [torch.profiler.ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        began = time.perf_counter()
        take(PROFILED)
        whole = 1000 * (time.perf_counter() - began) / PROFILED
    found: dict[str, float] = {}
    for one in profile.key_averages():
        if world.device.type == "cuda":
            spent = one.self_device_time_total if str(one.device_type).endswith("CUDA") else 0
        else:
            spent = one.self_cpu_time_total
        found[kind_of(one.key)] = found.get(kind_of(one.key), 0.0) + spent / 1000 / PROFILED
    real = statistics.mean(batch.tokens for batch in batches)
    steps.close()
    return {
        "ms": round(statistics.median(times), 2), "range": [round(min(times), 2), round(max(times), 2)],
        "tokens": round(real), "tokens_per_second": round(1000 * real / statistics.median(times)),
        "loss": round(loss, 4), "mb": peak_megabytes(world.device),
        "replayed": recorder.replayed if recorder else 0,
        "said": said, "profiled_ms": round(whole, 2),
        "kinds": {name: round(ms, 2) for name, ms in sorted(found.items())},
        "gaps": round(whole - sum(found.values()), 2),
    }  # fmt: skip


class _Counting:
    """A recorder that counts the replays of all that it recorded."""

    def __init__(self, recorder: Any) -> None:
        self.run, self._recorder, self.replayed = recorder.run, recorder, 0

    def record(self, work: Any) -> Any:
        again = self._recorder.record(work)

        def replay() -> Any:
            self.replayed += 1
            return again()

        return replay


def _take(steps: Any, count: int) -> Any:
    """The last of so many updates, after the device has computed it."""
    last = None
    for _ in range(count):
        last = next(steps)
    assert last is not None
    _ = last.loss  # waits for the device
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--works", nargs="+", default=WORKS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.device, options.tokens, options.rounds, options.updates)))
        return
    for work, arm in itertools.product(options.works, options.arms):
        command = [sys.executable, "-m", "benchmarks.gpu.arms", "--measure", work, "--device", options.device]
        command += ["--tokens", str(options.tokens), "--rounds", str(options.rounds), "--updates", str(options.updates)]
        environment = os.environ | dict.fromkeys(ARMS[arm], "1")
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        row: dict[str, Any] = {"work": work, "arm": arm}
        if done.returncode:
            row["error"] = done.stderr.strip().splitlines()[-3:]
        else:
            row |= json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
