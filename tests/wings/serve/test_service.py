"""The service answers as the library does, and says what is wrong with a request."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lambert as library
from tests.support.services import Service, serving

pytest.importorskip("fastapi")
TEXTS = ["the king found a river near the old road", "a bird", "under the bright house the window walked slowly"]
Tuned = Callable[[str], Path]


@pytest.fixture(scope="module")
def service(tuned: Tuned) -> Iterator[Service]:
    models = [f"{task}={tuned(task)}" for task in ("classify", "squad", "tag")]
    with serving(*models, precision="float32") as running:
        yield running


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_predictions_are_those_of_the_library(task: str, service: Service, tuned: Tuned) -> None:
    status, body = service.ask("/predict", {"inputs": TEXTS, "model": task})
    assert status == 200
    expected = library.load(tuned(task))(TEXTS)
    assert json.dumps(body["outputs"]) == json.dumps(expected) or task == "classify"
    assert [row.get("label") for row in body["outputs"]] == [row.get("label") for row in expected]
    assert service.ask("/predict", {"inputs": TEXTS[1], "model": task})[1]["outputs"][0].keys() == expected[1].keys()


def test_one_bad_input_is_one_error(service: Service) -> None:
    good = {"question": "who", "context": TEXTS[0]}
    status, body = service.ask("/predict", {"inputs": [good, {"question": "who"}, good], "model": "squad"})
    assert status == 200
    assert [*body["outputs"][1]] == ["error"]
    assert body["outputs"][1]["error"].startswith("inputs[1]: 'context' is missing")
    assert body["outputs"][0] == body["outputs"][2]
    status, body = service.ask("/predict", {"inputs": {"question": "who"}, "model": "squad"})
    assert (status, body["field"]) == (422, "inputs")


def test_vectors_are_those_of_the_library(service: Service, tuned: Tuned) -> None:
    expected = library.load(tuned("classify")).encode(TEXTS)
    found = service.ask("/embed", {"inputs": TEXTS})[1]["embeddings"]
    assert np.allclose(found, expected, atol=1e-5)
    data = service.ask("/v1/embeddings", {"input": TEXTS, "dimensions": 4, "user": "me"})[1]["data"]
    cut = expected[:, :4] / np.linalg.norm(expected[:, :4], axis=1, keepdims=True)
    assert np.allclose([row["embedding"] for row in data], cut, atol=1e-5)
    cosines = service.ask("/similarity", {"source": TEXTS[0], "sentences": TEXTS})[1]["similarities"]
    assert cosines[0] == pytest.approx(1, abs=1e-6)
    ranking = service.ask("/rerank", {"query": TEXTS[0], "documents": TEXTS, "top_n": 2})[1]["results"]
    assert [row["index"] for row in ranking] == [0, int(np.argsort(cosines)[-2])]


@pytest.mark.parametrize(
    ("path", "body", "status", "gist"),
    [
        ("/predict", b"{", 400, "not JSON"),
        ("/predict", b"\xff\xfe", 400, "not JSON"),
        ("/predict", b"[" * 100_000, 400, "not JSON"),
        ("/predict", b"", 400, "The body is empty: send JSON."),
        ("/predict", b'{"inputs": "a",\n"top": }', 400, "The body is not JSON: see line 2, column 8."),
        ("/predict", b"\xff\xfe", 400, "not JSON in UTF-8"),
        ("/predict", b'{"top": NaN}', 400, "The body has NaN, which is not JSON"),
        ("/predict", b"[]", 422, "The body must be a JSON object."),
        ("/predict", {}, 422, "'inputs' is missing."),
        ("/predict", {"input": "a"}, 422, "'input' is unknown. Did you mean 'inputs'?"),
        ("/predict", {"inputs": []}, 422, "'inputs' is an empty list: send at least 1."),
        ("/predict", {"inputs": ["a", 5]}, 422, "'inputs[1]' must be a text or an object."),
        ("/predict", {"inputs": ["a", None]}, 422, "'inputs[1]' must be a text or an object."),
        ("/embed", {"inputs": ["a", 5]}, 422, "'inputs[1]' must be a text."),
        ("/embed", {"inputs": "a", "prompt": "x"}, 422, "The model's prompts are: query, document."),
        ("/predict", {"inputs": "a", "top": 0}, 422, "'top' must be at least 1."),
        ("/predict", {"inputs": "a", "top": "many"}, 422, "'top' must be a whole number."),
        ("/predict", {"inputs": "a", "model": "x" * 1000}, 422, "'model' has more than 128 characters."),
        ("/predict", {"inputs": ["a"] * 2000}, 413, "send fewer"),
        ("/predict", {"inputs": "a", "nothing": 1}, 422, "nothing"),
        ("/predict", {"inputs": "a", "model": "other"}, 404, "classify, squad, tag"),
        ("/predict", {"inputs": 3}, 422, "'inputs' must be a text or an object or a list."),
        ("/embed", {"inputs": ["a", "\ud800"]}, 422, "inputs[1]"),
        ("/embed", b'{"inputs": "' + b"a" * 9_000_000 + b'"}', 413, "bytes"),
        ("/nowhere", {}, 404, "There is no such path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(path: str, body: object, status: int, gist: str, service: Service) -> None:
    found, content = service.ask(path, body)
    assert (found, gist in json.dumps(content)) == (status, True), content


def test_the_method_to_send_is_said(service: Service) -> None:
    status, answer = service.ask("/predict")
    assert (status, answer["error"]) == (405, "This path does not accept this method: use POST.")


def test_a_foreign_host_or_content_type_is_refused(service: Service) -> None:
    assert service.ask("/healthz", headers={"Host": "evil.example"})[0] == 400
    assert service.ask("/healthz", headers={"Host": "localhost:80"})[0] == 200
    assert service.ask("/embed", {"inputs": "a"}, {"Content-Type": "text/plain"})[0] == 415


def test_a_field_in_the_url_is_refused(service: Service) -> None:
    status, answer = service.ask("/predict?top=1", {"inputs": {"text": "a"}})
    assert (status, answer["error"]) == (422, "top is in the URL, where it is not read: send it in the JSON body.")
    assert service.ask("/predict?api-version=1", {"inputs": {"text": "a"}})[0] == 200


def test_a_key_protects_texts_only(tuned: Tuned) -> None:
    with serving(tuned("classify"), env={"LAMBERT_API_KEY": "secret\n"}) as service:
        assert service.ask("/healthz")[0] == 200
        assert service.ask("/embed", {"inputs": "a"})[0] == 401
        assert service.ask("/embed", {"inputs": "a"}, {"Authorization": "Bearer wrong"})[0] == 401
        assert service.ask("/embed", {"inputs": "a"}, {"Authorization": "secret"})[0] == 401
        for path in ("/models", "/v1/models", "/nowhere"):
            assert service.ask(path)[0] == 401
        assert service.ask("/embed", {"inputs": "a"}, {"Authorization": "Bearer secret"})[0] == 200
        assert service.ask("/embed", {"inputs": "a"}, {"Authorization": "bearer  secret"})[0] == 200
        assert service.end()[0] == 0
