"""The HTTP application: its routes."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from lambert.core.errors import UsageError
from lambert.core.version import __version__
from lambert.wings.serve import bodies
from lambert.wings.serve.answering import Answering, count_characters
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.json_bodies import create_route_class, encode_list
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
        title="Lambert", version=__version__, docs_url=None, redoc_url=None, openapi_tags=TAGS,
        description="Predictions and vectors of encoders.", generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    app.state.ready = True
    app.router.route_class = create_route_class(answering, config.max_items)
    add_handlers(app, metrics)

    def select_model(request: Request, name: str | None) -> Served:
        try:
            chosen = models.get(name)
        except UsageError as error:
            raise Refusal(404, "model", str(error), "model") from error
        request.state.model = chosen.name
        return chosen

    async def embed_texts(chosen: Served, texts: Sequence[str], field: str, prompt: str = "") -> tuple[Vectors, int]:
        """Returns the vectors [texts, D], with the prompt of this name or the default prompt, and the number of their
        tokens."""
        if prompt and prompt not in chosen.prompts:
            raise Refusal(422, "fields", f"The model's prompts are: {', '.join(chosen.prompts)}.", "prompt")
        found, tokens = await answering.answer(
            lambda: chosen.model.vectors(texts, prompt_name=prompt), count_characters(texts)
        )
        if not np.isfinite(found).all():
            raise Refusal(422, "text", "The model computes no finite vector for a text.", field)
        return found, tokens

    @app.post("/predict", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Predictions)
    async def predict(request: Request, body: bodies.PredictBody) -> Response:
        """Predictions of the model's task, as `lambert predict` writes them."""
        chosen, inputs = select_model(request, body.model), _as_list(body.inputs)
        if not chosen.task:
            raise Refusal(422, "task", "This model has no head for a task: use /embed.", "model")
        found = await answering.predictions(chosen.model, inputs, body.top or 0)
        if not isinstance(body.inputs, list) and "error" in found[0]:
            raise Refusal(422, "text", found[0]["error"], "inputs")
        return await answering.call(lambda: encode_list(_identify(chosen), "outputs", found), count_characters(inputs))

    @app.post("/embed", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Embeddings)
    async def embed(request: Request, body: bodies.EmbedBody) -> Response:
        """A vector for each text."""
        chosen, texts = select_model(request, body.model), _as_list(body.inputs)
        found, _ = await embed_texts(chosen, texts, "inputs", body.prompt or "")
        rows = (vector_D.tolist() for vector_D in found)
        return await answering.call(lambda: encode_list(_identify(chosen), "embeddings", rows), found.size)

    @app.post("/similarity", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Similarities)
    async def similarity(request: Request, body: bodies.SimilarityBody) -> Response:
        """The cosine of each sentence and the source."""
        chosen, sentences = select_model(request, body.model), _as_list(body.sentences)
        found, _ = await embed_texts(chosen, [*sentences, body.source], "sentences")
        return encode_list(_identify(chosen), "similarities", _compute_cosines(found))

    @app.post("/rerank", responses=OF_TEXTS, tags=["texts"], response_model=bodies.Ranking)
    async def rerank(request: Request, body: bodies.RerankBody) -> Response:
        """Documents ordered by a model that scores pairs of texts, or by the cosines of vectors."""
        chosen, documents = select_model(request, body.model), _as_list(body.documents)
        if chosen.pair_columns:
            first, second = chosen.pair_columns
            rows = [{first: body.query, second: document} for document in documents]
            answers = await answering.predictions(chosen.model, rows)
            wrong = next((number for number, answer in enumerate(answers) if "error" in answer), None)
            if wrong is not None:
                raise Refusal(422, "text", answers[wrong]["error"], f"documents[{wrong}]")
            scores = [chosen.model.task.relevance(answer) for answer in answers]
        else:
            query, _ = await embed_texts(chosen, [body.query], "query", "query")
            found, _ = await embed_texts(chosen, documents, "documents", "document")
            scores = _compute_cosines(np.concatenate([found, query]))
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
        return encode_list(
            _identify(chosen), "results", [{"index": number, "score": scores[number]} for number in order]
        )

    @app.post("/v1/embeddings", responses=OF_TEXTS, tags=["openai"], response_model=bodies.OpenAIEmbeddings)
    async def openai_embeddings(request: Request, body: bodies.OpenAIEmbeddingsBody) -> Response:
        """Vectors in the format of OpenAI's API."""
        chosen, texts = select_model(request, body.model), _as_list(body.input)
        width = chosen.model.dimensions
        if body.dimensions is not None and body.dimensions > width:
            raise Refusal(422, "fields", f"The model's vectors have {width} components.", "dimensions")
        found, tokens = await embed_texts(chosen, texts, "input")
        if body.dimensions is not None:
            found = found[:, : body.dimensions]
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        head = {"object": "list", "model": chosen.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        data = (
            {"object": "embedding", "index": number, "embedding": _encode(vector_D, body.encoding_format)}
            for number, vector_D in enumerate(found)
        )
        return await answering.call(lambda: encode_list(head, "data", data), found.size)

    @app.get("/v1/models", tags=["openai"], responses=document(400, 401, 429))
    async def openai_models() -> bodies.OpenAIModels:
        """The models in the format of OpenAI's API."""
        rows = [
            {"id": served.name, "object": "model", "created": served.since, "owned_by": "lambert"} for served in models
        ]
        return bodies.OpenAIModels.model_validate({"object": "list", "data": rows})

    @app.get("/models", tags=["service"], responses=document(400, 401, 429), response_model_exclude_unset=True)
    async def list_models() -> list[bodies.Card]:
        """Description of each model: task, labels, inputs, version."""
        return [bodies.Card.model_validate(served.card()) for served in models]

    @app.get("/healthz", tags=["service"], responses=document(400))
    async def alive() -> bodies.Status:
        """Returns 200 while the process runs."""
        return bodies.Status(status="ok")

    @app.get("/readyz", tags=["service"], responses=document(400, 503))
    async def ready() -> bodies.Status:
        """Returns 200 while the service accepts requests, and 503 while it shuts down."""
        if not app.state.ready:
            raise Refusal(503, "ending", "The service is ending.", retry=1)
        return bodies.Status(status="ready")

    @app.get(
        "/metrics", tags=["service"], response_class=Response,
        responses={**document(400), 200: {"description": "Metrics for Prometheus.", "content": {"text/plain": {}}}},
    )  # fmt: skip
    async def read_metrics() -> Response:
        """Counts and times in the text format of Prometheus."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def read_page() -> HTMLResponse:
        found = page()
        return HTMLResponse(found.html, headers=found.headers)

    return app


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


def _encode(vector_D: Vectors, form: str) -> list[float] | str:
    return vector_D.tolist() if form == "float" else base64.b64encode(vector_D.astype("<f4").tobytes()).decode()
