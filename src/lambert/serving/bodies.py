"""The bodies of requests and responses, from which FastAPI makes the OpenAPI description."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str | None, Field(description="Name of the model; the first one by default.", max_length=128)]
Text = Annotated[str, Field(description="A text.")]
Input = Annotated[
    Text | dict[str, Any], Field(description="A text, or an object with the keys that the model reads (GET /models).")
]


class Body(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class PredictBody(Body):
    """Texts to predict."""

    inputs: Annotated[
        Input | list[Input],
        Field(
            description="An input or a list.",
            examples=["This film is a delight.", [{"question": "Who left?", "context": "Ann left, Bob stayed."}]],
        ),
    ]
    model: Name = None


class EmbedBody(Body):
    """Texts to compute vectors of."""

    inputs: Annotated[
        Text | list[Text], Field(description="A text or a list.", examples=[["A first text.", "A second one."]])
    ]
    model: Name = None
    prompt: Annotated[
        Literal["query", "document"] | None,
        Field(description="Which of the model's prompts precedes the texts; that of queries by default."),
    ] = None


class SimilarityBody(Body):
    """A text and those to compare it with."""

    source: Annotated[Text, Field(examples=["How do I reset my password?"])]
    sentences: Annotated[list[Text], Field(examples=[["I have forgotten my password.", "The weather is fine."]])]
    model: Name = None


class RerankBody(Body):
    """A query and documents to order by it."""

    query: Annotated[Text, Field(examples=["Who wrote Emma?"])]
    documents: Annotated[list[Text], Field(examples=[["Emma is a novel by Jane Austen.", "Rain is expected."]])]
    top_n: Annotated[int | None, Field(ge=1, description="Number of documents in the answer; all by default.")] = None
    model: Name = None


class OpenAIEmbeddingsBody(BaseModel):
    """Body of OpenAI's embeddings endpoint. Its other fields are ignored, as clients send several."""

    input: Annotated[Text | list[Text], Field(examples=["A text."])]
    model: Annotated[str | None, Field(max_length=128)] = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Keep this many first components (Matryoshka).")] = None


class Predictions(BaseModel):
    """A prediction, or an error, for each input."""

    model: str
    version: str
    outputs: list[dict[str, Any]]


class Embeddings(BaseModel):
    """A vector for each text."""

    model: str
    version: str
    embeddings: list[list[float]]


class Similarities(BaseModel):
    """The cosine of each sentence and the source."""

    model: str
    version: str
    similarities: list[float]


class Ranked(BaseModel):
    """A document by its number in the request, and its score."""

    index: int
    score: float


class Ranking(BaseModel):
    """Documents, the best first."""

    model: str
    version: str
    results: list[Ranked]


class Failure(BaseModel):
    """What was wrong, and with which field of the body."""

    error: str
    field: str | None = None
