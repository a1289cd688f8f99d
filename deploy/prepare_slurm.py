"""Prepares a corpus on a Slurm cluster: a job array for each step, then the corpus in this process.

    python deploy/prepare_slurm.py --partition cpu --time 08:00:00 --tasks 1280 --at-once 640 \\
        --input /shared/texts --out /shared/corpus --steps extract,clean,tokens --clean normalise

Run it where the environment of Lambert is active, on a login node or in a job of its own; all other arguments are those
of `lambert prepare`. It waits for each array. The same command continues after a failure. The environment, the inputs
and the work folder must have the same paths on all nodes.
"""

import argparse
import functools
import shlex
import sys
from pathlib import Path

from datatrove.executor import SlurmPipelineExecutor

import lambert
from lambert.commands import parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", required=True)
    parser.add_argument("--time", default="08:00:00", help="time limit of a task")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks of a step, each with one core")
    parser.add_argument("--at-once", type=int, default=-1, help="tasks that run at once; -1: no limit")
    parser.add_argument("--memory", type=int, default=2, help="GB of memory of a task")
    options, others = parser.parse_known_args()
    executor = functools.partial(
        SlurmPipelineExecutor, partition=options.partition, time=options.time, workers=options.at_once,
        mem_per_cpu_gb=options.memory, job_name="lambert-prepare", qos="", mail_type="NONE",
        env_command=f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        sbatch_args={"wait": ""},  # so that the executor returns when its tasks have ended
    )  # fmt: skip
    config = parse.settings(["prepare", *others])
    if config is not None:
        lambert.prepare_on_cluster(config, executor, options.tasks)


if __name__ == "__main__":
    try:
        main()
    except lambert.LambertError as error:
        sys.exit(f"error: {error}")
