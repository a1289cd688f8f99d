"""Scripts that start a run on the chosen devices. The source tree has the same ones, with explanations, in deploy/."""

import math
import shlex
from collections.abc import Sequence

from lambert.planning.choices import Choice

_SPARE = 1.25
"""Time limit over predicted time (our choice)."""

_SLURM = """#!/bin/bash
#SBATCH --job-name=lambert
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --cpus-per-task={cores}
#SBATCH --time={time}
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=lambert-%j.log
set -u

srun --ntasks-per-node=1 --kill-on-bad-exit=0 --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" \\
    python -m lambert launch --nnodes "$SLURM_JOB_NUM_NODES" {processes}--timeout 600 {command}
code=$?

if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

_KUBERNETES = """apiVersion: v1
kind: Service
metadata:
  name: lambert
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: lambert
---
apiVersion: batch/v1
kind: Job
metadata:
  name: lambert
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: 20
  podReplacementPolicy: Failed
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: lambert
          operator: In
          values: [2, 3, 5]
      - action: Ignore
        onExitCodes:
          containerName: lambert
          operator: In
          values: [75]
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
  template:
    spec:
      subdomain: lambert
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      containers:
        - name: lambert
          image: registry.example.com/lambert:latest
          command:
            - python
            - -m
            - lambert
            - launch
            - --nnodes={nodes}
            - --nproc-per-node={processes}
            - --endpoint=lambert-0.lambert:29500
            - --timeout=600
{arguments}
          resources:
            limits:
              {resource}
          volumeMounts:
            - name: data
              mountPath: /data
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: lambert
        - name: shared-memory
          emptyDir:
            medium: Memory
"""


def slurm(choice: Choice, command: Sequence[str]) -> str:
    """Returns a script for sbatch. `command` is a verb with its arguments."""
    minutes = math.ceil(_SPARE * choice.seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    limit = f"{days}-" * bool(days) + f"{rest // 60:02}:{rest % 60:02}:00"
    each, gpu = choice.cluster.each, _on_gpus(choice)
    return _SLURM.format(
        nodes=choice.cluster.nodes, gpus=f"#SBATCH --gpus-per-node={each}\n" if gpu else "",
        cores=choice.cluster.device.cores * each, time=limit, processes="" if gpu else f"--nproc-per-node {each} ",
        command=shlex.join(command),
    )  # fmt: skip


def kubernetes(choice: Choice, command: Sequence[str]) -> str:
    """Returns a Service and a Job for kubectl. `command` is a verb with its arguments."""
    arguments = "\n".join(f"            - {_quoted(word)}" for word in command)
    each, gpu = choice.cluster.each, _on_gpus(choice)
    resource = f"nvidia.com/gpu: {each}" if gpu else f"cpu: {choice.cluster.device.cores * each}"
    return _KUBERNETES.format(
        nodes=choice.cluster.nodes, processes="auto" if gpu else each, resource=resource, arguments=arguments
    )


def _on_gpus(choice: Choice) -> bool:
    """Whether the devices are GPUs, of which `lambert launch` counts those of a machine itself."""
    return choice.cluster.device.kind == "cuda"


def _quoted(word: str) -> str:
    plain = all(letter.isalnum() or letter in "/._-=" for letter in word) and not word.replace(".", "").isdigit()
    return word if plain else "'" + word.replace("'", "''") + "'"


SCRIPTS = {"slurm": slurm, "kubernetes": kubernetes}
