"""The service in replicas of Ray Serve, one of which is killed under load."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lambert as library
from lambert.core.errors import UsageError
from lambert.wings.serve.ray_serve import application, settings

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")
PORT = 18_734
TEXTS = ["the king found a river near the old road", "a bird"]


def ask(text: str) -> tuple[int, Any]:
    body = json.dumps({"inputs": text}).encode()
    url = f"http://127.0.0.1:{PORT}/predict"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


@pytest.fixture(scope="module")
def folder(tuned: Callable[[str], Path]) -> Iterator[Path]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(application({"model": str(tuned("classify")), "precision": "float32", "replicas": "2"}), name="lambert")
    yield tuned("classify")
    serve.shutdown()
    ray.shutdown()


def test_answers_are_those_of_the_library(folder: Path) -> None:
    expected = library.load(folder)(TEXTS)
    for text, answer in zip(TEXTS, expected, strict=True):
        status, body = ask(text)
        assert status == 200
        assert body["outputs"][0]["label"] == answer["label"]
        assert body["outputs"][0]["probability"] == pytest.approx(answer["probability"], abs=1e-6)


def test_a_killed_replica_is_replaced_while_the_other_one_answers(folder: Path) -> None:
    found: Counter[int] = Counter()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            found[ask(TEXTS[0])[0]] += 1

    clients = [threading.Thread(target=load) for _ in range(4)]
    for client in clients:
        client.start()
    time.sleep(2)
    replicas = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "Lambert" in actor["name"]]
    assert len(replicas) == 2
    ray.kill(ray.get_actor(replicas[0]["name"], namespace=replicas[0]["namespace"]))
    time.sleep(2)
    at_kill = found[200]
    deadline = time.monotonic() + 60
    while serve.status().applications["lambert"].deployments["Lambert"].replica_states != {"RUNNING": 2}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(1)
    stop.set()
    for client in clients:
        client.join()
    assert found[200] > at_kill  # the other replica answers
    assert sum(found.values()) - found[200] <= len(clients)  # at most what the killed one was computing
    names = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if "Lambert" in actor["name"]}
    assert replicas[0]["name"] not in names


@pytest.mark.parametrize(
    ("given", "gist"),
    [
        ({}, "--model"),
        ({"model": "a", "seconds": "x"}, "--seconds must be a number"),
        ({"model": "a", "precison": "int8"}, "--precision"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, str], gist: str) -> None:
    with pytest.raises(UsageError, match=gist):
        settings(given)
