"""The service as an application of Ray Serve: the same routes and the same engine in replicas on several machines.

    serve run lambert.wings.serve.ray_serve:application model=/shared/runs/mine precision=bfloat16 replicas=4 cpus=8

Arguments are the settings of `lambert serve` as NAME=VALUE (several models are separated by commas), and:

replicas  number of replicas, or MIN-MAX to follow the number of requests
cpus      cores of a replica, whose threads compute batches
gpus      GPUs of a replica
"""

from collections.abc import Callable, Mapping
from typing import Any

from lambert.commands import parse
from lambert.core.errors import UsageError
from lambert.wings.serve.config import ServeConfig

_LISTS = ("model", "hosts", "code")
MOST_REQUESTS = 256
"""Maximum number of requests that a replica accepts at the same time. It computes them together, so many are better
than few."""


def application(arguments: Mapping[str, str]) -> Any:
    """Returns the application for `serve run` and `ray.serve.run`. Raises UsageError for a wrong argument."""
    try:
        from ray import serve
    except ImportError as error:
        raise UsageError(f"Ray Serve needs {error.name}: pip install 'lambert-bert[ray-serve]'.") from error
    given = dict(arguments)
    replicas, cpus, gpus = given.pop("replicas", "1"), int(given.pop("cpus", "1")), float(given.pop("gpus", "0"))
    config = settings(given)
    least, _, most = replicas.partition("-")
    scale: dict[str, Any] = {"num_replicas": int(least)}
    if most:
        limits = {"min_replicas": int(least), "max_replicas": int(most), "target_ongoing_requests": MOST_REQUESTS // 4}
        scale = {"autoscaling_config": limits}

    @serve.deployment(
        name="Lambert",
        max_ongoing_requests=MOST_REQUESTS,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        **scale,
    )
    @serve.ingress(_builder(config, cpus))
    class Lambert:
        """A replica."""

    deployment: Any = Lambert
    return deployment.bind()


def settings(arguments: Mapping[str, str]) -> ServeConfig:
    """Returns the settings of a replica. It accepts any host, because Ray's proxies listen."""
    given = {"hosts": "*", **arguments}
    values = {name: text.split(",") if name in _LISTS else [text] for name, text in given.items()}
    config: ServeConfig = parse.settings(
        ["serve", *(f"--{name}={value}" for name, several in values.items() for value in several)]
    )
    return config


def _builder(config: ServeConfig, cpus: int) -> Callable[[], Any]:
    def build() -> Any:
        import torch

        from lambert.wings.serve.server import load

        torch.set_num_threads(cpus)
        return load(config).app

    return build
