"""Writes scripts that start a run on the chosen devices. `deploy/` in the source tree has the same scripts with
explanations."""

import math
import re
import shlex
from collections.abc import Sequence

from lambert.core.files import read_file
from lambert.wings.plan.costs.choices import Option
from lambert.wings.plan.settings import PlanConfig

_SPARE = 1.25
"""Ratio of the time limit to the predicted time (our choice)."""

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

_IMAGE, _CLAIM = "registry.example.com/lambert:latest", "lambert"
_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n", "null", "~")
_MOUNTED = "/etc/lambert/recipe.toml"
"""Path of the recipe in a pod."""

_KUBERNETES = """# kubectl apply -f FILE
#
# The pods run `lambert {verb}` in /data, the volume of the claim: the recipe's relative paths are there.
#
#   image: {image_comment}
#   claim: {claim_comment}
apiVersion: v1
kind: ConfigMap
metadata:
  name: lambert-recipe
data:
  recipe.toml: {recipe}
---
apiVersion: v1
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
          image: {image}
          workingDir: /data
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
            - name: recipe
              mountPath: /etc/lambert
              readOnly: true
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: {claim}
        - name: recipe
          configMap:
            name: lambert-recipe
        - name: shared-memory
          emptyDir:
            medium: Memory
"""


def format_slurm_script(choice: Option, config: PlanConfig, verb: str, flags: Sequence[str]) -> str:
    """Returns a script for sbatch, which starts the verb with the recipe and flags that override its settings."""
    minutes = math.ceil(_SPARE * choice.seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    limit = f"{days}-" * bool(days) + f"{rest // 60:02}:{rest % 60:02}:00"
    each, gpu = choice.cluster.each, _on_gpus(choice)
    return _SLURM.format(
        nodes=choice.cluster.nodes, gpus=f"#SBATCH --gpus-per-node={each}\n" if gpu else "",
        cores=choice.cluster.device.cores * each, time=limit, processes="" if gpu else f"--nproc-per-node {each} ",
        command=shlex.join([verb, str(config.recipe), *flags]),
    )  # fmt: skip


def format_kubernetes_script(choice: Option, config: PlanConfig, verb: str, flags: Sequence[str]) -> str:
    """Returns a ConfigMap with the recipe, a Service and a Job for kubectl. A missing image or claim is a placeholder
    that the script marks."""
    arguments = "\n".join(f"            - {_quote(word)}" for word in (verb, _MOUNTED, *flags))
    each, gpu = choice.cluster.each, _on_gpus(choice)
    resource = f"nvidia.com/gpu: {each}" if gpu else f"cpu: {choice.cluster.device.cores * each}"
    return _KUBERNETES.format(
        nodes=choice.cluster.nodes, processes="auto" if gpu else each, resource=resource, arguments=arguments,
        verb=verb, recipe=_format_block(read_file(config.recipe).decode()),
        image=_quote(config.image or _IMAGE), claim=_quote(config.claim or _CLAIM),
        image_comment=config.image or f"Replace {_IMAGE} below, or run `lambert plan --image`",
        claim_comment=config.claim or f"Replace {_CLAIM} below (all pods write to it), or run `lambert plan --claim`",
    )  # fmt: skip


def _on_gpus(choice: Option) -> bool:
    """Returns whether the devices are GPUs; `lambert launch` counts those of a machine itself."""
    return choice.cluster.device.kind == "cuda"


def _format_block(text: str) -> str:
    """Returns a text of several lines as a YAML value, two levels below the top."""
    lines = text.rstrip("\n").split("\n")
    if all(letter.isprintable() or letter == "\t" for line in lines for letter in line):
        return "|2\n" + "\n".join(f"    {line}" if line else "" for line in lines)
    escaped = (letter if letter.isprintable() and letter not in '"\\' else f"\\U{ord(letter):08x}" for letter in text)
    return f'"{"".join(escaped)}"'


def _quote(word: str) -> str:
    """Returns a word as a YAML value, in quotes if it could be read as another value or a number."""
    plain = re.fullmatch(r"[a-zA-Z/-][\w/.=-]*(:\w[\w.-]*)*", word, re.ASCII) and word.casefold() not in _YAML_WORDS
    return word if plain else "'" + word.replace("'", "''") + "'"


SCRIPTS = {"slurm": format_slurm_script, "kubernetes": format_kubernetes_script}
