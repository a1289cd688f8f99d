"""Two ranks that share one GPU: do they train as one process does, bit by bit, and continue after one is killed?

    python -m benchmarks.gpu.two_ranks --work WORK --out FILE [--device cuda:0] [--backend gloo | nccl]

A small BERT is pre-trained on drawn words with train.deterministic: by one process (`alone`), and by two ranks on
one device, with gradients summed in float32 (`float32`), with the optimizer's state divided between the ranks
(`sharded`), with gradients sent in bfloat16 (`bfloat16`, not deterministic), and in float32 with rank 1 killed by
SIGKILL and all ranks started again (`killed`). A line of JSON for each: whether the weights have the bits of `alone`,
and the largest difference. Exits with 1 if `float32`, `sharded` or `killed` differ. Nothing is timed.

`gloo` carries tensors of a GPU through the host's memory. NCCL lets ranks share a GPU from version 2.30 on, which the
ranks ask for (NCCL_MULTI_RANK_GPU_ENABLE). `--device cpu` proves the script where there is no GPU.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import lambert
from benchmarks.support.experiment import ROOT, record
from benchmarks.support.processes import free_port
from benchmarks.support.restart import prepare_corpus
from lambert.engine.metrics_file import METRICS, last_update
from lambert.model import files

STEPS, KILLED_AT = 24, 12
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "sharded": {"train__shard_optimizer": True},
    "bfloat16": {"exchange__method": "bfloat16", "train__deterministic": False},
    "killed": {},
}
EXACT = "float32", "sharded", "killed"


def train(corpus: Path, out: Path, device: str, **settings: Any) -> None:
    lambert.pretrain(
        corpus=corpus, out=out, model={"layers": 2, "hidden": 64, "heads": 2, "intermediate": 128, "positions": 64},
        packing__sequence_length=64, train__batch_size=16, train__steps=STEPS, train__save_every=4, log__every=1,
        train__micro_tokens=256, train__device=device, **{"train__deterministic": True} | settings,
    )  # fmt: skip


def run_rank(args: argparse.Namespace) -> None:
    """One rank of a case. NCCL's group is Lambert's own; that of gloo for tensors of a GPU is made here."""
    if args.backend == "gloo":
        torch.distributed.init_process_group("gloo" if args.device == "cpu" else "cpu:gloo,cuda:gloo")
    train(args.work / "corpus", args.work / args.case, args.device, **CASES[args.case])


def start(args: argparse.Namespace, case: str) -> list[subprocess.Popen[bytes]]:
    """Starts both ranks."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, "-m", "benchmarks.gpu.two_ranks", "--work", str(args.work), "--case", case]
    command += ["--device", args.device, "--backend", args.backend]
    return [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]


def run_case(args: argparse.Namespace, case: str) -> None:
    """Trains with two ranks; in `killed`, rank 1 dies in between, and the same commands continue."""
    ranks = start(args, case)
    if case == "killed":
        while last_update(args.work / case / METRICS) < KILLED_AT and ranks[1].poll() is None:
            time.sleep(0.02)
        ranks[1].send_signal(signal.SIGKILL)
        codes = [rank.wait() for rank in ranks]
        if codes[1] != -signal.SIGKILL:
            raise SystemExit(f"killed: rank 1 had ended before it was killed; exit codes {codes}")
        print(f"rank 1 was killed; exit codes {codes}", file=sys.stderr)
        ranks = start(args, case)
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit(f"{case}: exit codes {codes}")


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(out / "model" / files.WEIGHTS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--case", choices=[*CASES], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work = args.work.absolute()
    if args.case:
        return run_rank(args)
    args.work.mkdir(parents=True, exist_ok=True)
    prepare_corpus(args.work)
    train(args.work / "corpus", args.work / "alone", args.device)
    expected, failed = weights_of(args.work / "alone"), False
    for case in CASES:
        run_case(args, case)
        found = weights_of(args.work / case)
        largest = max(float((found[name] - tensor).abs().max()) for name, tensor in expected.items())
        row = {"case": case, "device": args.device, "backend": args.backend, "equal": largest == 0, "largest": largest}
        record(args.out, row)
        failed |= case in EXACT and largest > 0
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
