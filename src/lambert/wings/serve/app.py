"""The HTTP application: its routes."""

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.datastructures import State

from lambert.core.errors import UsageError
from lambert.core.version import __version__
from lambert.wings.serve import bodies
from lambert.wings.serve.answering import Answering, count_characters
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.json_bodies import JsonRoute, encode_list
from lambert.wings.serve.metrics import CONTENT_TYPE, Metrics
from lambert.wings.serve.models import Models, Served
from lambert.wings.serve.page import page
from lambert.wings.serve.refusals import OF_TEXTS, Refusal, add_handlers, document

Vectors = npt.NDArray[np.float32]
TAGS = [
    {"name": "texts", "description": "Predictions and vectors."},
    {"name": "openai", "description": "The same vectors for clients of OpenAI's API."},
    {"name": "service", "description": "Models, health and metrics."},
]


def create_application(config: ServeConfig, models: Models, answering: Answering, metrics: Metrics) -> FastAPI:
    """Returns the ASGI application of a service."""
    app = FastAPI(
        title="Lambert", version=__version__, docs_url=None, redoc_url=None, openapi_tags=TAGS, redirect_slashes=False,
        description="Predictions and vectors of encoders.", generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    app.state.ready = True
    app.router.route_class = partial(JsonRoute, answering, config.max_items)  # type: ignore[assignment]
    add_handlers(app, metrics)
    routes = _Routes(models, answering, metrics, app.state)
    app.post("/predict", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Predictions)(routes.predict)
    app.post("/embed", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Embeddings)(routes.embed)
    app.post("/similarity", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Similarities)(routes.similarity)
    app.post("/rerank", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Ranking)(routes.rerank)
    app.post(
        "/v1/embeddings", responses=OF_TEXTS, tags=["openai"], response_model=bodies.OpenAIEmbeddings,
    )(routes.openai_embeddings)  # fmt: skip
    refusals = document(400, 401, 429)
    app.get("/v1/models", tags=["openai"], responses=refusals)(routes.openai_models)
    app.get("/models", tags=["service"], responses=refusals, response_model_exclude_unset=True)(routes.list_models)
    app.get("/healthz", tags=["service"], responses=document(400))(routes.alive)
    app.get("/readyz", tags=["service"], responses=document(400, 503))(routes.ready)
    prometheus = {"description": "Metrics for Prometheus.", "content": {"text/plain": {}}}
    app.get(
        "/metrics", tags=["service"], response_class=Response, responses={**document(400), 200: prometheus},
    )(routes.read_metrics)  # fmt: skip
    app.get("/", response_class=HTMLResponse, include_in_schema=False)(routes.read_page)
    return app


class _Routes:
    """The functions of the routes. `state.ready` is whether the service takes requests."""

    def __init__(self, models: Models, answering: Answering, metrics: Metrics, state: State) -> None:
        self._models, self._answering, self._metrics, self._state = models, answering, metrics, state

    def _select_model(self, request: Request, name: str | None) -> Served:
        try:
            chosen = self._models.get(name)
        except UsageError as error:
            raise Refusal(404, "model", str(error), "model") from error
        request.state.model = chosen.name
        return chosen

    async def _embed_texts(
        self, chosen: Served, texts: Sequence[str], field: str, prompt: str = ""
    ) -> tuple[Vectors, int]:
        """Returns the vectors [texts, D], with the prompt of this name or the default prompt, and the number of their
        tokens."""
        if prompt and prompt not in chosen.prompts:
            raise Refusal(422, "fields", f"The model's prompts are: {', '.join(chosen.prompts)}.", "prompt")
        found, tokens = await self._answering.answer(
            lambda: chosen.model.vectors(texts, prompt_name=prompt), count_characters(texts)
        )
        if not np.isfinite(found).all():
            raise Refusal(422, "text", "The model computes no finite vector for a text.", field)
        return found, tokens

    async def predict(self, request: Request, body: bodies.PredictBody) -> Response:
        """Predictions of the model's task, as `lambert predict` writes them."""
        chosen, inputs = self._select_model(request, body.model), _as_list(body.inputs)
        if not chosen.task:
            raise Refusal(422, "task", "This model has no head for a task: use /embed.", "model")
        found = await self._answering.predictions(chosen.model, inputs, body.top or 0)
        if not isinstance(body.inputs, list) and "error" in found[0]:
            raise Refusal(422, "text", found[0]["error"], "inputs")
        return await self._answering.call(
            lambda: encode_list(_identify(chosen), "outputs", found), count_characters(inputs)
        )

    async def embed(self, request: Request, body: bodies.EmbedBody) -> Response:
        """A vector for each text."""
        chosen, texts = self._select_model(request, body.model), _as_list(body.inputs)
        found, _ = await self._embed_texts(chosen, texts, "inputs", body.prompt or "")
        rows = (vector_D.tolist() for vector_D in found)
        return await self._answering.call(lambda: encode_list(_identify(chosen), "embeddings", rows), found.size)

    async def similarity(self, request: Request, body: bodies.SimilarityBody) -> Response:
        """The cosine of each sentence and the source."""
        chosen, sentences = self._select_model(request, body.model), _as_list(body.sentences)
        found, _ = await self._embed_texts(chosen, [*sentences, body.source], "sentences")
        return encode_list(_identify(chosen), "similarities", _compute_cosines(found))

    async def rerank(self, request: Request, body: bodies.RerankBody) -> Response:
        """Documents ordered by a model that scores pairs of texts, or by the cosines of vectors."""
        chosen, documents = self._select_model(request, body.model), _as_list(body.documents)
        if chosen.pair_columns:
            first, second = chosen.pair_columns
            rows = [{first: body.query, second: document} for document in documents]
            answers = await self._answering.predictions(chosen.model, rows)
            wrong = next((number for number, answer in enumerate(answers) if "error" in answer), None)
            if wrong is not None:
                raise Refusal(422, "text", answers[wrong]["error"], f"documents[{wrong}]")
            scores = [chosen.model.task.relevance(answer) for answer in answers]
        else:
            query, _ = await self._embed_texts(chosen, [body.query], "query", "query")
            found, _ = await self._embed_texts(chosen, documents, "documents", "document")
            scores = _compute_cosines(np.concatenate([found, query]))
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
        return encode_list(
            _identify(chosen), "results", [{"index": number, "score": scores[number]} for number in order]
        )

    async def openai_embeddings(self, request: Request, body: bodies.OpenAIEmbeddingsBody) -> Response:
        """Vectors in the format of OpenAI's API."""
        chosen, texts = self._select_model(request, body.model), _as_list(body.input)
        width = chosen.model.dimensions
        if body.dimensions is not None and body.dimensions > width:
            raise Refusal(422, "fields", f"The model's vectors have {width} components.", "dimensions")
        found, tokens = await self._embed_texts(chosen, texts, "input")
        if body.dimensions is not None:
            found = found[:, : body.dimensions]
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        head = {"object": "list", "model": chosen.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        data = (
            {"object": "embedding", "index": number, "embedding": _encode(vector_D, body.encoding_format)}
            for number, vector_D in enumerate(found)
        )
        return await self._answering.call(lambda: encode_list(head, "data", data), found.size)

    async def openai_models(self) -> bodies.OpenAIModels:
        """The models in the format of OpenAI's API."""
        rows = [
            {"id": served.name, "object": "model", "created": served.since, "owned_by": "lambert"}
            for served in self._models
        ]
        return bodies.OpenAIModels.model_validate({"object": "list", "data": rows})

    async def list_models(self) -> list[bodies.Card]:
        """Description of each model: task, labels, inputs, version."""
        return [bodies.Card.model_validate(served.card()) for served in self._models]

    async def alive(self) -> bodies.Status:
        """Returns 200 while the process runs."""
        return bodies.Status(status="ok")

    async def ready(self) -> bodies.Status:
        """Returns 200 while the service accepts requests, and 503 while it shuts down."""
        if not self._state.ready:
            raise Refusal(503, "ending", "The service is ending.", retry=1)
        return bodies.Status(status="ready")

    async def read_metrics(self) -> Response:
        """Counts and times in the text format of Prometheus."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def read_page(self) -> HTMLResponse:
        found = page()
        return HTMLResponse(found.html, headers=found.headers)


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _identify(served: Served) -> dict[str, Any]:
    return {"model": served.name, "version": served.version}


def _compute_cosines(vectors_ND: Vectors) -> list[float]:
    """Returns the cosines of all other vectors with the last one."""
    wide = vectors_ND.astype(np.float64)
    wide /= np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    found: list[float] = (wide[:-1] @ wide[-1]).tolist()
    return found


def _encode(vector_D: Vectors, form: str | None) -> list[float] | str:
    return base64.b64encode(vector_D.astype("<f4").tobytes()).decode() if form == "base64" else vector_D.tolist()
