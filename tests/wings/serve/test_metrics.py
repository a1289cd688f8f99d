"""What /metrics counts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.services import Service, serving

pytest.importorskip("fastapi")
TEXTS = ["the king found a river near the old road", "a bird"]


@pytest.fixture(scope="module")
def service(tuned: Callable[[str], Path]) -> Iterator[Service]:
    with serving(f"topics={tuned('classify')}", precision="float32") as running:
        yield running


def test_requests_batches_and_tokens_are_counted(service: Service) -> None:
    before = service.metrics()
    assert service.ask("/predict", {"inputs": TEXTS})[0] == 200
    usage = service.ask("/v1/embeddings", {"input": TEXTS})[1]["usage"]
    # An answer is counted when it has been sent, so a client may have it a moment before.
    tokens = before["lambert_tokens_total"] + 2 * usage["total_tokens"]
    service.wait_for("lambert_tokens_total", lambda total: total == tokens)
    service.wait_for("lambert_requests_in_flight", lambda count: count == 1)  # the one that asks
    found = service.metrics()
    assert found['lambert_requests_total{model="topics",path="/predict",status="200"}'] == 1
    assert found['lambert_request_seconds_count{model="topics",path="/predict"}'] == 1
    assert 0 < found['lambert_request_seconds_sum{model="topics",path="/predict"}'] < 30
    assert found["lambert_sequences_total"] - before["lambert_sequences_total"] == 4
    batches = found["lambert_batch_tokens_count"] - before["lambert_batch_tokens_count"]
    assert 2 <= batches <= 4
    assert found["lambert_batch_tokens_sum"] == found["lambert_tokens_total"]
    assert found["lambert_queue_seconds_count"] - before["lambert_queue_seconds_count"] == 2
    assert found["lambert_waiting_tokens"] == 0
    assert found["lambert_tokens_per_second"] > 0
    version = service.ask("/models")[1][0]["version"]
    info = f'lambert_model_info{{name="topics",precision="float32",task="classify",version="{version}"}}'
    assert found[info] == 1


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "reason"),
    [
        ("/predict", {"inputs": TEXTS, "model": "other"}, {}, 404, "model"),
        ("/predict", {"inputs": ["a"] * 2000}, {}, 413, "items"),
        ("/predict", b"{", {}, 400, "json"),
        ("/predict", {}, {}, 422, "fields"),
        ("/predict", {"inputs": "a"}, {"Content-Type": "text/plain"}, 415, "content_type"),
        ("/predict", {"inputs": "a"}, {"Host": "evil.example"}, 400, "host"),
        ("/predict", b" " * 8_100_000, {}, 413, "body"),
        ("/" + "x" * 50, {}, {}, 404, "path"),
        ("/healthz", {}, {}, 405, "method"),
    ],
)  # fmt: skip
def test_refusals_are_counted_by_reason(
    path: str, body: object, headers: dict[str, str], status: int, reason: str, service: Service
) -> None:
    name = f'lambert_refusals_total{{reason="{reason}"}}'
    before = service.metrics().get(name, 0)
    assert service.ask(path, body, headers)[0] == status
    service.wait_for(name, lambda count: count == before + 1)
    found = service.metrics()
    assert not [name for name in found if "xxx" in name or "other-model" in name]  # no label is a client's text
    assert {name.split('path="')[1].split('"')[0] for name in found if 'path="' in name} <= {
        "/predict", "/v1/embeddings", "/models", "/metrics", "/healthz", "other",
    }  # fmt: skip
