"""A student of three layers, with and without a teacher: scores over seeds, size, and speed of prediction.

    python -m benchmarks.distillation.run --init MINILM --glue GLUE --out OUT [--limit 64] [--seeds 3]

For each task (SST-2, and MRPC with its test file) MINILM, a model folder of six layers, is fine-tuned on a part of the
training rows, taken evenly (3,000 and 1,200, or `--limit`). The result is the teacher. Then for each seed a student
with three evenly spaced layers of MINILM is fine-tuned on the same rows, for the same number of epochs:

    labels      without a teacher
    soft        with the teacher's predictions (distil.share 0.9, distil.temperature 2)
    relations   with the labels and the self-attention relations of the teacher's last layer
    both        with the teacher's predictions and its relations; only with --arms
    texts       with the teacher's predictions, on these rows and `--texts` more, whose labels are not read: the teacher
                predicts them

All runs are whole commands. GLUE is a folder with SST-2/ and MRPC/, whose files may be compressed (.gz). Prints a line
of JSON for each run, and at the end a table: mean and standard deviation of the headline score over seeds, size of the
weights, median seconds of a whole run, and examples predicted per second on the dev file, in the same precision.
`--out` must be new. The default has 26 runs.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.support.experiment import command
from benchmarks.support.fine_tuning import read_plain, read_training_time, take_evenly, thin
from benchmarks.support.processes import measure

FILES = {
    "sst2": ("SST-2", "train.tsv", "dev.tsv", "accuracy"),
    "mrpc": ("MRPC", "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "accuracy"),
}
"""Of each task: its folder, the training and dev files, and the score in the table."""
ROWS = {"sst2": 3000, "mrpc": 1200}
"""Training rows of each task without `--limit`; about equally many tokens."""
ARMS: dict[str, dict[str, float]] = {
    "labels": {},
    "soft": {"distil.share": 0.9},
    "relations": {"distil.share": 0, "distil.relations": 1},
    "both": {"distil.share": 0.9, "distil.relations": 1},
    "texts": {"distil.share": 0.9},
}
"""Settings of the students; `labels` has no teacher."""
PREDICT = """
import json, pathlib, sys, time, lambert
model = lambert.load(sys.argv[1], precision=sys.argv[3])
data = model.read(pathlib.Path(sys.argv[2]))
rates = []
for _ in range(4):
    began = time.perf_counter()
    for _ in model.outputs(data):
        pass
    rates.append(data.examples / (time.perf_counter() - began))
print(json.dumps({"examples_per_second": sorted(rates[1:])[1]}))
"""


def table_of(glue: Path, task: str, out: Path, limit: int) -> tuple[Path, Path]:
    """The training rows and the dev file of a task, as TSV files in the folder `out`."""
    folder, *names, _ = FILES[task]
    out.mkdir(parents=True)
    found = []
    for name, split in zip(names, ("all", "dev"), strict=True):
        (path := out / f"{split}.tsv").write_bytes(read_plain(glue / folder / name))
        found.append(path)
    return thin(found[0], limit, out / "train.tsv"), found[1]


def fine_tune(
    args: argparse.Namespace, task: str, data: tuple[Path, Path], out: Path, **flags: object
) -> dict[str, Any]:
    """A whole fine-tuning run."""
    given: dict[str, object] = {
        "init": args.init, "data": data[0], "dev": data[1], "out": out, "task.name": f"glue/{task}",
        "task.max-length": 128, "optim.lr": args.lr, "train.epochs": args.epochs, "train.precision": args.precision,
        "train.threads": args.threads, "log.every": 1, "train.save-every": 0, **flags,
    }  # fmt: skip
    found = measure(command("finetune", flags=given))
    seconds, _ = read_training_time(out)
    score, scores = FILES[task][3], json.loads((out / "scores.json").read_text())
    size = (out / "model" / "model.safetensors").stat().st_size
    return {**found, "seconds": round(seconds, 2), "file_mb": round(size / 1e6, 1), score: scores[score]}


def with_more_texts(args: argparse.Namespace, task: str, data: tuple[Path, Path], teacher: Path) -> tuple[Path, Path]:
    """The data of a task with more training rows, whose labels are those that the teacher predicts."""
    label = {"sst2": "label", "mrpc": "Quality"}[task]
    header, *known = data[0].read_text(encoding="utf-8-sig").splitlines()
    names = header.split("\t")
    every = (data[0].parent / "all.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]
    others = sorted({*every} - {*known})
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in take_evenly(others, args.texts)]
    asked = "".join(json.dumps({**row, label: None}) + "\n" for row in rows)
    predict = command("predict", flags={"model": teacher, "inference.precision": args.precision})
    done = subprocess.run(predict, input=asked, check=True, stdout=subprocess.PIPE, text=True)
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        row[label] = json.loads(line)["label"]
    kept = [dict(zip(names, line.split("\t"), strict=True)) for line in known]
    numbers = {"0": "negative", "1": "positive"} if task == "sst2" else {"0": "not_equivalent", "1": "equivalent"}
    for row in kept:
        row[label] = numbers[row[label]]
    lines = ["\t".join(row[name] for name in names) for row in (*kept, *rows)]
    (path := data[0].parent / "texts.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path, data[1]


def speed(args: argparse.Namespace, run: Path, dev: Path) -> float:
    """Examples per second of a model, without reading and tokenising."""
    found = measure([sys.executable, "-c", PREDICT, str(run), str(dev), args.precision])
    rate: float = found["examples_per_second"]
    return rate


def compare_arms(args: argparse.Namespace, task: str) -> list[dict[str, Any]]:
    """Runs the teacher and all students of a task. Returns the rows of the table."""
    data = table_of(args.glue, task, args.out / task / "data", args.limit or ROWS[task])
    folder, score = args.out / task, FILES[task][3]
    rows = []
    for side in ("teacher", *args.arms):
        results = []
        for seed in range(1, 2 if side == "teacher" else args.seeds + 1):
            flags: dict[str, object] = {"seed": seed}
            if side != "teacher":
                flags |= {"distil.student-layers": args.layers, **ARMS[side]}
                flags |= {"distil.teacher": folder / "teacher-1"} if ARMS[side] else {}
            used = with_more_texts(args, task, data, folder / "teacher-1") if side == "texts" else data
            results.append(fine_tune(args, task, used, folder / f"{side}-{seed}", **flags))
            print(json.dumps({"task": task, "side": side, "seed": seed, **results[-1]}), flush=True)
        values = [result[score] for result in results]
        rows.append(
            {
                "task": task, "side": side, "score": score, "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else 0.0, "seeds": len(values),
                "file_mb": results[0]["file_mb"],
                "seconds": statistics.median(result["process_seconds"] for result in results),
                "examples_per_second": speed(args, folder / f"{side}-1", data[1]),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("init", "glue", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=FILES, default=[*FILES])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["labels", "soft", "relations", "texts"])
    parser.add_argument("--texts", type=int, default=9000, help="more texts of the arm texts")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=8e-5)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    rows = [row for task in args.tasks for row in compare_arms(args, task)]
    print("| task | model | score | seeds | file | a run | examples/s |\n|---|---|---|---|---|---|---|")
    for row in rows:
        scored = f"{row['score']} {100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}"
        rest = f"{row['file_mb']:.0f} MB | {row['seconds']:.0f} s | {row['examples_per_second']:.0f}"
        print(f"| {row['task']} | {row['side']} | {scored} | {row['seeds']} | {rest} |")


if __name__ == "__main__":
    main()
