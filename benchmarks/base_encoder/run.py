"""Trains the encoder that the studies of short runs start from: BERT-tiny of 64 positions, in two stages.

    python -m benchmarks.base_encoder.run --work WORK --out MODEL

From nothing, a small encoder learns only the frequencies of words for its first thousands of updates (docs/log.md),
whatever else is varied. So these studies start from this encoder, as MLPerf's BERT starts from a checkpoint. The stages
are twice as long as their recipes. When the plateau ends depends on rounding: another seed is tried where it has not
ended. Hence other machines get other encoders; model/ in this folder is the one that all runs of the studies started
from.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.experiment import BASE, DEMO, lambert, scores

PAST_PLATEAU = 5.0
"""Nats at 64 tokens on the demo's novels. Frequencies of words give 6.2, the plateau on which small encoders stay at
first 5.6, an encoder that uses context 4.2."""


def train(work: Path, threads: int, seeds: Sequence[int] = (42, 43, 44)) -> Path:
    """Returns the run folder of the encoder in `work`, where training continues if it was killed.

    Raises SystemExit if the encoders of all seeds are on the plateau.
    """
    corpus = work / "corpus"
    texts = {"input": DEMO / "data/novels.jsonl.xz", "out": corpus}
    lambert("prepare", DEMO / "recipes/prepare.toml", flags=texts, threads=threads)
    for seed in seeds:
        first, second = work / f"pretrain-32-{seed}", work / f"pretrain-64-{seed}"
        common = {"corpus": corpus, "seed": seed, "train.threads": threads, "train.save-every": 500}
        flags = {**common, "out": first, "train.steps": 6000}
        lambert("pretrain", BASE / "pretrain-32.toml", flags=flags, threads=threads)
        flags = {**common, "out": second, "init": first, "train.steps": 3000}
        lambert("pretrain", BASE / "pretrain-64.toml", flags=flags, threads=threads)
        if scores(second)["mlm"] < PAST_PLATEAU:
            return second
    raise SystemExit(f"The encoders of the seeds {list(seeds)} in {work} are all on the plateau of unigrams.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus and the runs")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model; must be new")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    run = train(args.work, args.threads)
    shutil.copytree(run / "model", args.out, ignore=shutil.ignore_patterns("README.md"))
    print(f"{args.out}: held-out loss {scores(run)['mlm']:.3f}")


if __name__ == "__main__":
    main()
