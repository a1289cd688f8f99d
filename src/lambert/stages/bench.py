"""`lambert bench`: how fast a training step is here, what share of this device's ceiling, and beside a peer."""

import json
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.core.errors import MachineError, UsageError
from lambert.core.registry import choose, lookup
from lambert.engine.device import product_ceiling
from lambert.engine.dist import World
from lambert.engine.precision import PRECISIONS, Precision
from lambert.model import flops, weights
from lambert.model.config import EncoderConfig
from lambert.model.encoder import SIZES

MASKED = 0.15
FILL = 0.46  # mean length of Wikipedia articles cut to 512 tokens, as a share of 512
MEDIAN, SPREAD = 0.38, 0.75  # of a lognormal, as a share of the longest and in its logarithm, that comes near FILL
VOCABULARY = 30_522
MASK, FIRST_WORD = 103, 1000  # ids of BERT's uncased English vocabulary: [MASK], and the first behind unused pieces


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """A pre-training step (forward, backward, loss; 15% masked, next sentences) on sequences of realistic lengths."""

    size: str = "mini"
    """tiny, mini, small, medium, base or large."""
    sequences: int = 8
    """Sequences a step."""
    length: int = 512
    """Tokens that the longest sequence may have."""
    lengths: Literal["wikipedia", "full"] = "wikipedia"
    """Lognormal lengths that fill 46% of `length`, as Wikipedia articles do at 512, or all of them full."""
    precision: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Of the matrix products, on both sides."""
    dropout: float = 0.0
    """Of states and attention weights, on both sides."""
    optimizer: bool = False
    """Include a step of fused AdamW, on both sides."""
    peer: str = ""
    """Measure beside it, in turn: transformers (BertForPreTraining, sdpa attention, padded to `length`)."""
    rounds: int = 7
    """Steps measured of each side, A B A B; figures are medians."""
    threads: int = 0
    """Threads of the processor; 0: as torch chooses."""
    seed: int = 0
    """Of lengths and tokens."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print one JSON object."""
    only_memory: str = ""
    """Take two steps of this side ("lambert" or the peer's name) and print this process's peak memory in MB."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.sequences < 1 or self.length < 16:
            raise UsageError("bench needs rounds and sequences of at least 1, and a length of at least 16.")


Step = Callable[[], float]
"""Takes a training step and gives its loss."""


def run(config: BenchConfig) -> None:
    """Prints a table, or one JSON object."""
    if config.threads:
        torch.set_num_threads(config.threads)
    shape = choose(SIZES, config.size, "size")
    encoder = EncoderConfig(
        vocabulary=VOCABULARY,
        positions=max(512, config.length),
        dropout=config.dropout,
        attention_dropout=config.dropout,
        **shape,
    )
    world = World.detect(config.device)
    lengths_S = drawn_lengths(config)
    batch = drawn_batch(encoder, lengths_S, config.seed).to(world.device)
    sides = {"lambert": lambda: _own_step(config, encoder, batch, world)}
    if config.peer:
        peer = lookup(PEERS, config.peer, "peer")
        sides[config.peer] = lambda: peer(config, encoder, batch, world)
    if config.only_memory:
        step = choose(sides, config.only_memory, "only_memory")()
        step(), step()
        print(_peak_mb(world))
        return
    result = measured(config, sides, batch, flops.training(encoder, lengths_S, _counts(batch)), world)
    print(json.dumps(result) if config.json else _table(config, result, batch))


def measured(
    config: BenchConfig, sides: dict[str, Callable[[], Step]], batch: Batch, work: int, world: World
) -> dict[str, Any]:
    """All figures of an interleaved run: `work` is the operations of one step on real tokens."""
    torch.manual_seed(config.seed)
    dtype = PRECISIONS[config.precision]
    steps = {name: side() for name, side in sides.items()}
    losses = {name: step() for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    best = product_ceiling(world.device, dtype)
    for _ in range(config.rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
        best = max(best, product_ceiling(world.device, dtype, repeats=1))
    result: dict[str, Any] = {
        "settings": asdict(config),
        "lengths": batch.bounds_S1.diff().tolist(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "device": str(world.device),
        "ceiling_gflops": round(best / 1e9, 1),
    }
    padded = batch.sequences * config.length
    for name, taken in times.items():
        median = statistics.median(taken)
        result[name] = {
            "sequences_per_second": round(batch.sequences / median, 2),
            "tokens_per_second": round(batch.tokens / median, 1),
            "padded_tokens_per_second": round(padded / median, 1),
            "share_of_ceiling": round(work / median / best, 3),
            "memory_mb": _memory_of(config, name),
            "first_loss": round(losses[name], 4),
            "seconds": [round(value, 4) for value in taken],
        }
    if config.peer:
        ratios = [theirs / ours for ours, theirs in zip(times["lambert"], times[config.peer], strict=True)]
        result["ratio"] = round(statistics.median(ratios), 2)
        result["ratio_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return result


def drawn_lengths(config: BenchConfig) -> Ints:
    """Lengths [S], in tokens; lognormal ones are drawn until their mean is within 2% of FILL, or as near as it gets."""
    if config.lengths == "full":
        return np.full(config.sequences, config.length, dtype=np.int64)
    draw = np.random.default_rng(config.seed)
    shortest, tolerance = max(1, config.length // 32), max(0.02, 0.5 / (config.length * config.sequences))
    while True:
        drawn = np.exp(draw.normal(np.log(MEDIAN * config.length), SPREAD, config.sequences))
        sizes_S = np.clip(drawn, shortest, config.length).astype(np.int64)
        if abs(sizes_S.mean() / config.length - FILL) <= tolerance:
            return sizes_S


def drawn_batch(encoder: EncoderConfig, lengths_S: Ints, seed: int) -> Batch:
    """Random ids in two segments, with masked and next-sentence targets."""
    draw = np.random.default_rng(seed)
    tokens = int(lengths_S.sum())
    ids_T = draw.integers(FIRST_WORD, encoder.vocabulary, tokens)
    ends_T = np.repeat(np.cumsum(lengths_S), lengths_S)
    types_T = (ends_T - np.arange(tokens) <= np.repeat(lengths_S, lengths_S) // 2).astype(np.int64)
    at_N = np.sort(draw.permutation(tokens)[: round(MASKED * tokens)])
    labels_N = torch.from_numpy(ids_T[at_N])
    ids_T[at_N] = MASK
    targets = {
        "mlm": Target(torch.from_numpy(at_N), labels_N),
        "nsp": Target(torch.arange(len(lengths_S)), torch.from_numpy(draw.integers(0, 2, len(lengths_S)))),
    }
    return flat_batch(ids_T, types_T, lengths_S, targets)


def _counts(batch: Batch) -> dict[str, int]:
    return {name: target.count for name, target in batch.targets.items()}


def _own_step(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World) -> Step:
    model = weights.fresh(encoder, {"mlm": 0, "nsp": 0}).to(world.device).train()
    counts_K = torch.tensor([float(count) for count in _counts(batch).values()], device=world.device)

    def loss() -> Tensor:
        mean: Tensor = (model(batch) / counts_K).sum()
        return mean

    return _training_step(config, model, loss, world)


def _transformers_step(config: BenchConfig, encoder: EncoderConfig, batch: Batch, world: World) -> Step:
    try:
        import transformers
    except ImportError as error:
        raise UsageError("peer = transformers needs it: pip install 'lambert-bert[hf]'.") from error
    settings = transformers.BertConfig(
        vocab_size=encoder.vocabulary,
        hidden_size=encoder.hidden,
        num_hidden_layers=encoder.layers,
        num_attention_heads=encoder.heads,
        intermediate_size=encoder.intermediate,
        max_position_embeddings=encoder.positions,
        hidden_dropout_prob=encoder.dropout,
        attention_probs_dropout_prob=encoder.attention_dropout,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(settings).train()
    model.load_state_dict(weights.state(weights.fresh(encoder, {"mlm": 0, "nsp": 0})), strict=False)
    model.to(world.device)
    inputs = _padded(batch, config.length)
    return _training_step(config, model, lambda: model(**inputs).loss, world)


PEERS: dict[str, Callable[[BenchConfig, EncoderConfig, Batch, World], Step]] = {"transformers": _transformers_step}


def _padded(batch: Batch, width: int) -> dict[str, Tensor]:
    """The same sequences in rows of `width`, with an attention mask and -100 where nothing is predicted."""
    lengths_S = batch.bounds_S1.diff().long()
    inside = torch.arange(width, device=lengths_S.device) < lengths_S[:, None]

    def rows(values_T: Tensor, empty: int) -> Tensor:
        return torch.full(inside.shape, empty, device=values_T.device).masked_scatter(inside, values_T)

    mlm = batch.targets["mlm"]
    labels_T = torch.full_like(batch.ids_T, -100)
    labels_T[mlm.at_N] = mlm.labels_N
    return {
        "input_ids": rows(batch.ids_T, 0),
        "token_type_ids": rows(batch.types_T, 0),
        "attention_mask": inside.long(),
        "labels": rows(labels_T, -100),
        "next_sentence_label": batch.targets["nsp"].labels_N,
    }


def _training_step(config: BenchConfig, net: nn.Module, loss_of: Callable[[], Tensor], world: World) -> Step:
    precision = Precision(config.precision, world.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True) if config.optimizer else None

    def step() -> float:
        with precision.autocast():
            loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        net.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _memory_of(config: BenchConfig, side: str) -> int:
    """Peak memory of a process of its own, in MB: this one holds all sides."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(replace(config, only_memory=side)).items()]
    command = [sys.executable, "-m", "lambert", "bench", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed, perhaps for memory"])[-1]
        raise MachineError(f"The memory of {side} could not be measured: {last}. Lower --sequences or --length.")
    return int(done.stdout)


def _peak_mb(world: World) -> int:
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device) // 2**20
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin with the peak of the process that started this one
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 2**20)


def _table(config: BenchConfig, result: dict[str, Any], batch: Batch) -> str:
    fill = batch.tokens / batch.sequences / config.length
    lines = [
        f"{config.size}, {batch.sequences} sequences of up to {config.length} tokens, {fill:.0%} full, "
        f"{config.precision}, dropout {config.dropout:g}, median of {config.rounds}",
        f"{'':14}{'sequences/s':>12}{'real tokens/s':>15}{'of the ceiling':>16}{'memory':>10}",
    ]
    for name in ("lambert", config.peer) if config.peer else ("lambert",):
        side = result[name]
        lines.append(
            f"{name:14}{side['sequences_per_second']:12,.2f}{side['tokens_per_second']:15,.0f}"
            f"{side['share_of_ceiling']:16.1%}{side['memory_mb']:7,} MB"
        )
    if config.peer:
        low, high = result["ratio_range"]
        lines.append(f"{result['ratio']} times {config.peer} (round by round {low} to {high})")
    lines.append(
        f"ceiling: {result['ceiling_gflops']:,} GFLOP/s, the best {config.precision} matrix product on "
        f"{result['device']}, {result['threads']} threads, measured between the rounds"
    )
    return "\n".join(lines)
