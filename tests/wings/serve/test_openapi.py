"""The OpenAPI description is true: requests made from it, right and wrong ones, get only answers that it documents."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import HANGS

from tests.support.services import Service, serving

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(HANGS)
EXAMPLES = 12
OF_THE_MODEL = ("/predict", "/embed", "/v1/embeddings")
"""Routes where right bodies depend on the model: the keys that it reads, its prompts, and the width of its vectors."""


@pytest.fixture(scope="module")
def service(tuned: Callable[[str], Path]) -> Iterator[Service]:
    models = [f"{task}={tuned(task)}" for task in ("classify", "squad")]
    with serving(*models, precision="float32") as running:
        yield running
        assert running.end() == (0, "")


@pytest.fixture(scope="module")
def described(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.ask("/openapi.json")[1]
    return found


def test_routes_are_described(described: dict[str, Any]) -> None:
    routes = {(path, method): route for path, item in described["paths"].items() for method, route in item.items()}
    assert routes.keys() == {
        *((path, "post") for path in ("/predict", "/embed", "/similarity", "/rerank", "/v1/embeddings")),
        *((path, "get") for path in ("/models", "/v1/models", "/healthz", "/readyz", "/metrics")),
    }
    assert len({route["operationId"] for route in routes.values()}) == len(routes)
    tags = {tag["name"] for tag in described["tags"]}
    for (path, method), route in routes.items():
        assert route["tags"][0] in tags, path
        assert route["description"], path
        for status, answer in route["responses"].items():
            assert answer["description"] not in ("", "Validation Error"), (path, status)
        if method == "post":
            assert {"200", "400", "401", "404", "408", "413", "415", "422", "429", "503"} <= route["responses"].keys()


def test_examples_of_bodies_are_answered(described: dict[str, Any], service: Service) -> None:
    for path, item in described["paths"].items():
        if "post" not in item:
            continue
        name = item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schema = described["components"]["schemas"][name]
        body = schema.get("example") or {
            field: value["examples"][0] for field, value in schema["properties"].items() if value.get("examples")
        }
        status, answer = service.ask(path, body)
        assert status == 200, (path, body, answer)


@pytest.mark.slow
def test_requests_made_from_the_description(described: dict[str, Any], service: Service) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=service.url)
    seen: set[tuple[str, int]] = set()

    def checked(operation: Any, mode: Any) -> None:
        excluded = [positive_data_acceptance] if operation.path in OF_THE_MODEL else []

        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            seen.add((case.path, case.call_and_validate(excluded_checks=excluded).status_code))

        check()

    for result in schema.get_all_operations():
        operation = result.ok()

        for mode in schemathesis.GenerationMode if operation.body else [schemathesis.GenerationMode.POSITIVE]:
            checked(operation, mode)
    statuses = {status for _, status in seen}
    assert {200, 422} <= statuses
    assert max(statuses) < 500
