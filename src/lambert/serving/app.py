"""The HTTP application: routes, errors, and what they say of the service."""

import base64
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from lambert import __version__
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.inference.scheduler import ExpiredError, OverloadedError
from lambert.serving.answering import Answering
from lambert.serving.bodies import (
    EmbedBody,
    Embeddings,
    Failure,
    OpenAIEmbeddingsBody,
    PredictBody,
    Predictions,
    Ranking,
    RerankBody,
    Similarities,
    SimilarityBody,
)
from lambert.serving.config import ServeConfig
from lambert.serving.models import Models, Served
from lambert.serving.page import page

Vectors = npt.NDArray[np.float32]
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "The body is not JSON, or the Host header is foreign."},
    401: {"model": Failure, "description": "The API key is missing or wrong."},
    404: {"model": Failure, "description": "There is no model of this name."},
    408: {"model": Failure, "description": "The body did not arrive in time."},
    413: {"model": Failure, "description": "The body or the number of texts is too large."},
    415: {"model": Failure, "description": "The content type is not application/json."},
    422: {"model": Failure, "description": "A field is missing, unknown or wrong."},
    429: {"model": Failure, "description": "Too much work is waiting; Retry-After says when to try again."},
    503: {"model": Failure, "description": "The request could not be computed in time, or the service is ending."},
}


def application(config: ServeConfig, models: Models, answering: Answering) -> FastAPI:
    """Returns the ASGI application of a service."""
    app = FastAPI(
        title="Lambert", version=__version__, docs_url=None, redoc_url=None,
        description="Predictions and vectors of encoders.",
    )  # fmt: skip
    app.state.ready = True
    _add_errors(app)

    def listed(values: Any, field: str) -> list[Any]:
        several = values if isinstance(values, list) else [values]
        if not several:
            raise _Refused(422, "Give at least one text.", field)
        if len(several) > config.max_items:
            raise _Refused(413, f"{len(several):,} texts are more than {config.max_items:,}: send fewer.", field)
        return several

    def served(name: str | None) -> Served:
        try:
            return models.get(name)
        except UsageError as error:
            raise _Refused(404, str(error), "model") from error

    async def vectors(chosen: Served, texts: Sequence[str], field: str, prompt: str | None = None) -> Vectors:
        for number, text in enumerate(texts):
            _check_text(text, field if len(texts) == 1 else f"{field}[{number}]")
        embed = chosen.model.embed
        before = {"query": embed.prompt, "document": embed.prompt_b}.get(prompt or "query", "")
        found = await answering.answer(lambda: chosen.model.vectors(texts, prompt=before))
        if not np.isfinite(found).all():
            raise _Refused(422, "The model computes no finite vector for a text.", field)
        return found

    @app.post("/predict", responses=REFUSALS)
    async def predict(body: PredictBody) -> Predictions:
        """Predictions of the model's task, as `lambert predict` writes them."""
        chosen, inputs = served(body.model), listed(body.inputs, "inputs")
        if not chosen.task:
            raise _Refused(422, "This model has no head for a task: use /embed.", "model")
        found = await answering.predictions(chosen.model, inputs)
        if not isinstance(body.inputs, list) and "error" in found[0]:
            raise _Refused(422, found[0]["error"], "inputs")
        return Predictions(model=chosen.name, version=chosen.version, outputs=found)

    @app.post("/embed", responses=REFUSALS)
    async def embed(body: EmbedBody) -> Embeddings:
        """A vector for each text."""
        chosen, texts = served(body.model), listed(body.inputs, "inputs")
        found = await vectors(chosen, texts, "inputs", body.prompt)
        return Embeddings(model=chosen.name, version=chosen.version, embeddings=found.tolist())

    @app.post("/similarity", responses=REFUSALS)
    async def similarity(body: SimilarityBody) -> Similarities:
        """The cosine of each sentence and the source."""
        chosen, sentences = served(body.model), listed(body.sentences, "sentences")
        _check_text(body.source, "source")
        found = _cosines(await vectors(chosen, [*sentences, body.source], "sentences"))
        return Similarities(model=chosen.name, version=chosen.version, similarities=found.tolist())

    @app.post("/rerank", responses=REFUSALS)
    async def rerank(body: RerankBody) -> Ranking:
        """Documents ordered by a model that scores pairs of texts, or else by the cosines of vectors."""
        chosen, documents = served(body.model), listed(body.documents, "documents")
        _check_text(body.query, "query")
        if chosen.pair_columns:
            first, second = chosen.pair_columns
            rows = [{first: body.query, second: document} for document in documents]
            answers = await answering.predictions(chosen.model, rows)
            wrong = next((number for number, answer in enumerate(answers) if "error" in answer), None)
            if wrong is not None:
                raise _Refused(422, answers[wrong]["error"], f"documents[{wrong}]")
            scores = [chosen.relevance(answer) for answer in answers]
        else:
            queries = await vectors(chosen, [body.query], "query", "query")
            found = await vectors(chosen, documents, "documents", "document")
            scores = _cosines(np.concatenate([found, queries])).tolist()
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
        results = [{"index": number, "score": scores[number]} for number in order]
        return Ranking.model_validate({"model": chosen.name, "version": chosen.version, "results": results})

    @app.post("/v1/embeddings", responses=REFUSALS)
    async def openai_embeddings(body: OpenAIEmbeddingsBody) -> dict[str, Any]:
        """Vectors in the format of OpenAI's API."""
        chosen, texts = served(body.model), listed(body.input, "input")
        found = await vectors(chosen, texts, "input")
        if body.dimensions is not None:
            found = found[:, : body.dimensions]
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        tokens = sum(len(encoding.ids) for encoding in chosen.model.tokenizer.encode_batch_fast(texts))
        return {
            "object": "list", "model": chosen.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "data": [
                {"object": "embedding", "index": number, "embedding": _encoded(vector_D, body.encoding_format)}
                for number, vector_D in enumerate(found)
            ],
        }  # fmt: skip

    @app.get("/models")
    async def cards() -> list[dict[str, Any]]:
        """What each model is: task, labels, inputs, version."""
        return [served.card() for served in models]

    @app.get("/healthz")
    async def alive() -> dict[str, str]:
        """Answers as long as the process lives."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"model": Failure}})
    async def ready() -> dict[str, str]:
        """Answers 200 while the service takes requests."""
        if not app.state.ready:
            raise _Refused(503, "The service is ending.", None)
        return {"status": "ready"}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def read_page() -> HTMLResponse:
        found = page()
        return HTMLResponse(found.html, headers=found.headers)

    return app


class _Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str, field: str | None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field


def _failure(
    status: int, message: str, field: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    content = {"error": message, "field": field} if field else {"error": message}
    return JSONResponse(content, status, headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(_Refused)
    async def refused(request: Request, error: _Refused) -> JSONResponse:
        return _failure(error.status, error.message, error.field)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _failure(400, "The body is not JSON, or is nested too deeply.")
        field = re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, first["loc"][1:])))
        # Neither message nor place repeat the input, which may contain what no encoding has.
        return _failure(422, _ascii(first["msg"]), _ascii(field))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        message = "The body is not JSON, or is nested too deeply." if error.status_code == 400 else str(error.detail)
        return _failure(error.status_code, message, headers=dict(error.headers or {}))

    @app.exception_handler(OverloadedError)
    async def overloaded(request: Request, error: OverloadedError) -> JSONResponse:
        return _failure(429, str(error), headers={"Retry-After": str(max(1, round(error.seconds)))})

    @app.exception_handler(ExpiredError)
    async def expired(request: Request, error: ExpiredError) -> JSONResponse:
        return _failure(503, str(error), headers={"Retry-After": "1"})

    @app.exception_handler(LambertError)
    async def wrong(request: Request, error: LambertError) -> JSONResponse:
        return _failure(422 if isinstance(error, DataError | UsageError) else 503, str(error))


def _check_text(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refused(422, "The text contains half of a surrogate pair, which is not a character.", field) from error


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _cosines(vectors_ND: Vectors) -> npt.NDArray[np.float64]:
    """Returns the cosines of all vectors but the last with the last one."""
    wide = vectors_ND.astype(np.float64)
    wide /= np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    found: npt.NDArray[np.float64] = wide[:-1] @ wide[-1]
    return found


def _encoded(vector_D: Vectors, form: str) -> list[float] | str:
    return vector_D.tolist() if form == "float" else base64.b64encode(vector_D.astype("<f4").tobytes()).decode()
