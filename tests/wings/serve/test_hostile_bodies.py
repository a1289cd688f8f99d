"""Bodies that nobody should send: each gets an answer that says what is wrong, soon, and the service goes on."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import HANGS

from tests.support.services import Service, serving

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(HANGS)
POSTS = ("/predict", "/embed", "/similarity", "/rerank", "/v1/embeddings")
FIELDS = {"/predict": "inputs", "/embed": "inputs", "/similarity": "sentences", "/rerank": "documents",
          "/v1/embeddings": "input"}  # fmt: skip
REST = {"/similarity": {"source": "a"}, "/rerank": {"query": "a"}}


@pytest.fixture(scope="module")
def service(tuned: Callable[[str], Path]) -> Iterator[Service]:
    models = [f"{task}={tuned(task)}" for task in ("classify", "squad", "tag")]
    with serving(*models, precision="float32", seconds=600) as running:  # so that a slow machine refuses no body
        yield running
        assert running.end() == (0, "")


def body(path: str, texts: Any) -> dict[str, Any]:
    return {FIELDS[path]: texts, **REST.get(path, {})}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", {400}),
        (b"null", {422}),
        (b"\x00\x01\x02\xff" * 1000, {400}),
        (b"\xef\xbb\xbf{}", {400}),
        (b'{"inputs": "\xff\xfe"}', {400}),
        (b"[" * 1_000_000, {400}),
        (b'{"a":' * 100_000, {400}),
        (b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}", {422}),
        (b"1" * 10_000, {400}),
        (b"1" * 4000, {422}),
        (b"1e999", {422}),
        (b"NaN", {400}),
        (b'{"inputs": -Infinity}', {400}),
        (b'"text"', {422}),
        (b'{"inputs": [' + b"1," * 3_000_000 + b"1]}", {413}),
        (b'{"x": {' + b",".join(b'"%d": {}' % number for number in range(100_000)) + b"}}", {422}),
        (b"{" + b",".join(b'"%d": 1' % number for number in range(100_000)) + b"}", {422}),
        (b'{"\\ud800": "a"}', {422}),
        (b'{"inputs": {"\\udfff": "a"}}', {422}),
        (b'{"inputs": {"a": ["b", {"c": "\\ud83d"}]}}', {422}),
    ],
)  # fmt: skip
def test_what_is_not_a_body(path: str, sent: bytes, statuses: set[int], service: Service) -> None:
    status, answer = service.ask(path, sent)
    assert status in statuses, answer
    assert len(json.dumps(answer)) < 600


@pytest.mark.parametrize("path", POSTS)
def test_texts_of_every_kind(path: str, service: Service) -> None:
    texts = ["", " ", "\x00", "\x00\x01\x1f\x7f", "\u202e\ufeff\uffff", "\U0001f600" * 50, "e\u0301" * 100,
             "a" * 100_000, "\n" * 10_000, "[MASK][CLS][SEP][PAD]", "<|endoftext|>", "\u0f3c" * 3000]  # fmt: skip
    status, answer = service.ask(path, body(path, texts))
    assert status == 200, answer
    assert "NaN" not in json.dumps(answer)
    for half in ("\ud800", "a\udfffb"):
        status, answer = service.ask(path, body(path, ["a", half]))
        assert (status, answer["field"]) == (422, f"{FIELDS[path]}[1]")
        assert half not in json.dumps(answer, ensure_ascii=False)


@pytest.mark.parametrize("path", POSTS)
def test_too_many_and_unknown(path: str, service: Service) -> None:
    assert service.ask(path, body(path, ["a"] * 100_000))[0] == 413
    assert service.ask(path, body(path, []))[0] == 422
    assert service.ask(path, body(path, [None]))[0] == 422
    assert service.ask(path, {**body(path, "a"), "model": "x" * 1000})[0] == 422
    assert service.ask(path, {**body(path, "a"), "model": 3})[0] == 422
    status, answer = service.ask(path, {**body(path, ["a"]), "nothing\u2028": 1})
    assert (status, answer.get("field")) == ((200, None) if path == "/v1/embeddings" else (422, "nothing\u2028"))


def test_numbers_are_checked(service: Service) -> None:
    for top in (0, -1, 1.5, "x", math.pi, True, False, "1"):
        assert service.ask("/rerank", {"query": "a", "documents": ["a"], "top_n": top})[0] == 422
    for path, field, rest in [
        ("/predict", "top", {"inputs": "a", "model": "classify"}), ("/v1/embeddings", "dimensions", {"input": "a"}),
    ]:  # fmt: skip
        assert service.ask(path, {**rest, field: True}) == (422, {"error": f"'{field}' must be a whole number.",
                                                                  "field": field})  # fmt: skip
    assert service.ask("/predict", {"inputs": "a", "model": "classify", "top": 1})[0] == 200
    assert service.ask("/rerank", {"query": "a", "documents": ["a"], "top_n": 10**30})[0] == 200
    for dimensions in (0, -1, 10**30, 33):
        assert service.ask("/v1/embeddings", {"input": "a", "dimensions": dimensions})[0] == 422
    for ids in ([1, 2], [[1, 2], [3]], ["a", [1]], ["a", 1], [True]):
        status, answer = service.ask("/v1/embeddings", {"input": ids, "encoding_format": "base64"})
        assert (status, answer["field"]) == (422, "input")
        assert "token ids" in answer["error"]
        assert "check_embedding_ctx_length=False" in answer["error"]


def test_the_last_of_two_equal_keys_counts(service: Service) -> None:
    status, answer = service.ask("/embed", b'{"inputs": 3, "inputs": ["a", "b"]}')
    assert (status, len(answer["embeddings"])) == (200, 2)


def test_inputs_longer_than_the_model(service: Service) -> None:
    context = "the king found a river . " * 2000
    asked = {"question": "where " * 500, "context": context}
    status, answer = service.ask(
        "/predict", {"inputs": [asked, {"question": "who", "context": "a king"}], "model": "squad"}
    )
    assert status == 200
    assert "error" not in answer["outputs"][1]
    assert service.ask("/predict", {"inputs": context, "model": "tag"})[0] == 200
    assert service.ask("/predict", {"inputs": {"text": context}, "model": "classify"})[0] == 200
    for wrong in ({"question": 3, "context": []}, {"question": None}, {"context": {"a": "b"}, "question": "a"}):
        assert service.ask("/predict", {"inputs": wrong, "model": "squad"})[0] == 422


@pytest.mark.parametrize("path", POSTS)
def test_a_megabyte_of_text_stops_nobody(path: str, service: Service) -> None:
    answers, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            assert service.ask("/healthz")[0] == 200
            answers[0] += not stop.is_set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    status, answer = service.ask(path, body(path, ["the king found a river " * 45_000] * 3))
    stop.set()
    watcher.join()
    assert status == 200, answer
    assert answers[0] > 1
