"""Whole runs: `lambert pretrain` as a user starts it, beside loops of transformers on the very same sequences.

Each side is a process of its own in every round. Its speed is taken from the end of its first update to the end of its
last one; the time before that, in which it starts, reads, compiles and warms up, is reported separately.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lambert.core.batch import Ints
from lambert.core.errors import MachineError
from lambert.core.registry import Kind, lookup
from lambert.core.settings import as_dict
from lambert.core.shards import Split
from lambert.core.world import World
from lambert.data.batch_sizes import BatchSizes
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource
from lambert.data.stream import places
from lambert.engine import process
from lambert.engine.metrics_file import METRICS
from lambert.measure import batches as drawn
from lambert.measure.ceilings import Rates, Shape
from lambert.measure.training import need_compiler
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.planning import operations as flops
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.verb import record_of
from lambert.verbs.settings.pretrain import PretrainConfig
from lambert.wings.bench import batches, environments
from lambert.wings.bench.environments import Trial
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.side_process import CEILINGS, SideProcess
from lambert.wings.bench.work import OWN, compare_rounds, describe_machine, import_peer

TRIED = (2048, 4096, 8192)
"""Tokens of a peer's micro-batches, padding included, that are tried before the rounds."""
TRIAL_UPDATES = 3
HELDOUT = 8
"""Number of held-out sequences that the run scores after its last update, which is not measured."""
SEQUENCES, MODEL = "sequences.npz", "model.json"
LR = {"lamb": 1e-3, "adamw": 1e-4}
"""Learning rates of the runs, without warm-up."""
_WATCH = """
import json, os, sys, threading, time
began = time.time()
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, 0, 0)])
threading.Thread(target=lambda: (sys.stdin.read(), os.kill(child, 9)), daemon=True).start()
_, status, used = os.wait4(child, 0)
with open(sys.argv[1], "w") as file:
    json.dump([began, used.ru_maxrss, used.ru_utime + used.ru_stime], file)
os._exit(os.waitstatus_to_exitcode(status) % 256)
"""
"""A small process between this one and the command. A process inherits the peak of the one that starts it as its own
first peak, so a command that this process started would never take less memory than this process. It ends the command
when its standard input ends, so the command never outlives this process."""
Command = Callable[[BenchConfig, Path, Path, int, int], list[str]]
"""Returns the command of a peer from the settings, the folder with SEQUENCES and MODEL, the file to which it appends a
line of JSON after each update ("time" in seconds since 1970, "loss"), the tokens of its micro-batches and its number of
updates."""


@dataclass(frozen=True)
class Sequences:
    """The sequences of all updates, U updates of S sequences, and the operations of the model on them."""

    encoder: EncoderConfig
    lengths_US: Ints
    operations: int
    """Operations of the updates after the first one."""

    @property
    def tokens(self) -> int:
        """Tokens of the updates after the first one."""
        return int(self.lengths_US[1:].sum())


@dataclass(frozen=True, slots=True)
class Process:
    """A command that has ended."""

    began: float
    """Seconds since 1970."""
    memory_mb: int
    """Peak of its resident memory."""
    processor_seconds: float
    """Processor time of all its threads, in user and kernel mode."""


@dataclass
class RunTimes:
    """What the rounds of a side took."""

    seconds: list[float] = field(default_factory=list)
    """Seconds from the end of the first update to the end of the last one."""
    starts: list[float] = field(default_factory=list)
    """Seconds from the start of the command to the end of the first update."""
    processor_seconds: list[float] = field(default_factory=list)
    """Processor time of the whole process."""
    memory_mb: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    """Losses of the first and of the last update."""


def measure(config: BenchConfig, world: World) -> dict[str, Any]:
    """Returns everything that is measured, as plain values. Raises UsageError if a setting is missing or unknown,
    DataError if the corpus is not one, MachineError if a side fails."""
    config = replace(config, device=str(world.device), threads=torch.get_num_threads())
    kind = Kind((BenchConfig, Path, Path, int, int))
    commands = {name: lookup(PEERS, name, "peer", kind) for name in config.peers()}
    for name in commands:
        if name in PEERS:
            import_peer("transformers", name, "lambert-bert[hf]")
        if name.endswith("-compiled"):
            need_compiler(f"peer = {name}", world.device)
    with tempfile.TemporaryDirectory(prefix="lambert-bench-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        data = write(config, folder)
        sides = {name: RunTimes() for name in (OWN, *commands)}
        chosen = {name: find_micro_tokens(config, name, command, folder) for name, command in commands.items()}
        trials = {name: _trial(config, name, command, chosen[name], folder) for name, command in commands.items()}
        trials[OWN] = Trial(process.variables())  # `lambert pretrain` gives them to itself
        with SideProcess(config, CEILINGS, environments.of(process.variables())) as measuring:
            rates = measuring.ceilings()
            for _ in range(config.rounds):
                _lambert(config, sides[OWN], folder, data)
                for name, command in commands.items():
                    _peer(config, name, command, chosen[name], sides[name], folder, trials[name].variables)
                rates = measuring.ceilings()
    return _result(config, data, sides, chosen, trials, rates)


def ceiling_shapes(config: BenchConfig) -> tuple[Shape, ...]:
    """Returns the matrix products in whose shapes the ceiling of a run is measured."""
    return drawn.with_gradients(drawn.layer_shapes(batches.encoder_of(config), TRIED[0]))


def write(config: BenchConfig, folder: Path) -> Sequences:
    """Writes the sequences of a run with these settings, and its model, for the peers."""
    assert config.corpus is not None  # by BenchConfig
    split, specials = Split(config.corpus), roles.specials(tokenizers.load(config.corpus), str(config.corpus))
    packing = PackingConfig(mode=config.packing, sequence_length=config.length)
    source = CorpusSource(split, packing, MaskingConfig(whole_word=config.whole_word), specials, config.seed)
    sizes = BatchSizes(config.sequences)
    updates = [source.collate(*places(source, sizes, config.seed, n)) for n in range(config.updates)]
    masked = [batch.targets["mlm"] for batch in updates]
    starts_U = np.cumsum([0, *(batch.tokens for batch in updates[:-1])])
    lengths_US = np.stack([batch.bounds_S1.diff().numpy() for batch in updates]).astype(np.int64)
    labels = [batch.targets["nsp"].labels_N.numpy() for batch in updates if "nsp" in batch.targets]
    np.savez(
        folder / SEQUENCES,
        ids_T=np.concatenate([batch.ids_T.numpy() for batch in updates]),
        types_T=np.concatenate([batch.types_T.numpy() for batch in updates]),
        lengths_US=lengths_US,
        at_N=np.concatenate([start + target.at_N.numpy() for start, target in zip(starts_U, masked, strict=True)]),
        labels_N=np.concatenate([target.labels_N.numpy() for target in masked]),
        nsp_US=np.stack(labels) if labels else np.zeros((0, 0), dtype=np.int64),
    )
    encoder = replace(batches.encoder_of(config), vocabulary=specials.vocabulary)
    described = {"model_type": encoder.block} | family_of(encoder).keys.to_json(encoder)
    (folder / MODEL).write_text(json.dumps(described), encoding="utf-8")
    operations = sum(
        flops.count_training(encoder, batch.bounds_S1.diff().tolist(), drawn.counts(batch)) for batch in updates[1:]
    )
    return Sequences(encoder, lengths_US, operations)


def find_micro_tokens(config: BenchConfig, name: str, command: Command, folder: Path) -> int:
    """Returns the tokens of a peer's micro-batches: the setting, or the fastest of TRIED over a few updates."""
    update = config.length * config.sequences
    tried = [tokens for tokens in TRIED if tokens < 2 * update] or [TRIED[0]]
    if config.micro_tokens or len(tried) == 1:
        return config.micro_tokens or tried[0]
    found = {}
    for tokens in tried:
        trial = RunTimes()
        _peer(replace(config, updates=min(TRIAL_UPDATES, config.updates)), name, command, tokens, trial, folder, {})
        found[tokens] = trial.seconds[0]
    return min(found, key=found.__getitem__)


def own_command(config: BenchConfig, encoder: EncoderConfig, out: Path) -> list[str]:
    """Returns the command of Lambert's side."""
    settings = {
        "corpus": config.corpus, "out": out, "seed": config.seed, "model.block": encoder.block,
        "model.norm-eps": encoder.norm_eps, "model.layers": encoder.layers,
        "model.hidden": encoder.hidden, "model.heads": encoder.heads, "model.intermediate": encoder.intermediate,
        "model.positions": encoder.positions, "model.dropout": encoder.dropout,
        "model.attention-dropout": encoder.attention_dropout, "packing.mode": config.packing,
        "packing.sequence-length": config.length, "masking.whole-word": str(config.whole_word).lower(),
        "optim.name": config.optim, "optim.lr": LR[config.optim], "train.batch-size": config.sequences,
        "train.steps": config.updates, "train.precision": config.precision, "train.device": config.device,
        "train.threads": config.threads, "train.evaluate-sequences": HELDOUT, "log.every": 1,
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-P", "-m", "lambert", record_of(PretrainConfig).name, *flags]


def _trial(config: BenchConfig, name: str, command: Command, tokens: int, folder: Path) -> Trial:
    """Returns the environment in which a third of the updates of a peer take the least time."""
    part = replace(config, updates=min(config.updates, max(TRIAL_UPDATES, config.updates // 3)))

    def seconds(variables: environments.Variables) -> float:
        trial = RunTimes()
        _peer(part, name, command, tokens, trial, folder, variables)
        return trial.seconds[0]

    return environments.find_fastest(seconds, environments.candidates(config.device))


def run_process(name: str, command: list[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Runs the command in this environment to its end, with its output in files of `folder`. Raises MachineError with
    its last line if it fails; `name` is for this error."""
    used, output = folder / "used.json", folder / "output.txt"
    watched = [sys.executable, "-I", "-S", "-c", _WATCH, str(used), *command]
    with (
        output.open("wb") as file,
        subprocess.Popen(
            watched, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        code = process.wait()
    if code:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise MachineError(f"{name} ended with code {code}: {(lines or ['killed, perhaps for memory'])[-1].strip()}")
    began, memory, processor = json.loads(used.read_text())
    return Process(began, memory // (2**20 if sys.platform == "darwin" else 1024), processor)


def _lambert(config: BenchConfig, side: RunTimes, folder: Path, data: Sequences) -> None:
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        out = Path(temporary) / "run"
        done = run_process(OWN, own_command(config, data.encoder, out), folder, environments.of({}))
        rows = [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "loss" in row]
    if rows[-1]["tokens"] != data.lengths_US.sum():
        raise MachineError(f"{OWN} trained on {rows[-1]['tokens']:,} tokens instead of {data.lengths_US.sum():,}.")
    _add(side, rows, done)


def _peer(
    config: BenchConfig,
    name: str,
    command: Command,
    tokens: int,
    side: RunTimes,
    folder: Path,
    variables: environments.Variables,
) -> None:
    out = folder / "updates.jsonl"
    out.unlink(missing_ok=True)
    whole = command(config, folder, out, tokens, config.updates)
    done = run_process(name, whole, folder, environments.of(variables))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    _add(side, rows, done)


def _add(side: RunTimes, rows: list[dict[str, Any]], done: Process) -> None:
    side.seconds.append(rows[-1]["time"] - rows[0]["time"])
    side.starts.append(rows[0]["time"] - done.began)
    side.processor_seconds.append(done.processor_seconds)
    side.memory_mb = max(side.memory_mb, done.memory_mb)
    side.losses = rows[0]["loss"], rows[-1]["loss"]


def _transformers(
    config: BenchConfig, folder: Path, out: Path, tokens: int, updates: int, *, form: str, compile: bool = False
) -> list[str]:
    settings = {
        "out": out, "form": form, "micro-tokens": tokens, "length": config.length, "updates": updates,
        "lr": LR["adamw"], "seed": config.seed, "threads": config.threads, "device": config.device,
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += ["--bfloat16"] * (config.precision == "bfloat16") + ["--compile"] * compile
    # By its path: importing it as a module would import Lambert first.
    return [sys.executable, "-P", str(Path(__file__).with_name("peer_run.py")), str(folder), *flags]


PEERS: Mapping[str, Command] = {
    "transformers": partial(_transformers, form="stock"),
    "transformers-expert": partial(_transformers, form="expert"),
    "transformers-expert-compiled": partial(_transformers, form="expert", compile=True),
}
"""By name of a peer: its command."""


def _result(
    config: BenchConfig,
    data: Sequences,
    sides: Mapping[str, RunTimes],
    chosen: Mapping[str, int],
    trials: Mapping[str, Trial],
    rates: Rates,
) -> dict[str, Any]:
    own, updates = sides[OWN], config.updates - 1
    found: dict[str, dict[str, Any]] = {}
    for name, side in sides.items():
        seconds = statistics.median(side.seconds)
        found[name] = {
            "sequences_per_second": round(updates * config.sequences / seconds, 2),
            "tokens_per_second": round(data.tokens / seconds, 1),
            "share_of_ceiling": round(data.operations / seconds / rates.product, 3),
            "share_of_shaped_ceiling": round(data.operations / seconds / rates.shaped, 3),
            "start_seconds": round(statistics.median(side.starts), 2),
            "memory_mb": side.memory_mb,
            "losses": [round(loss, 4) for loss in side.losses],
            "seconds": [round(value, 3) for value in side.seconds],
            "starts": [round(value, 3) for value in side.starts],
            "processor_seconds": [round(value, 2) for value in side.processor_seconds],
            **trials[name].as_json(),
        }
        if name != OWN:
            found[name] |= {"micro_tokens": chosen[name], **compare_rounds(own.seconds, side.seconds)}
    return {
        "settings": as_dict(config),
        "unit": "tokens",
        "tokens": data.tokens,
        "sequences": updates * config.sequences,
        "fill": round(data.tokens / (updates * config.sequences * config.length), 4),
        "gflop": round(data.operations / 1e9, 3),
        **describe_machine(config, rates),
        "sides": found,
    }
