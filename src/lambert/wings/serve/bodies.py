"""The bodies of requests and responses, from which FastAPI makes the OpenAPI description."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

Name = Annotated[str | None, Field(description="Name of the model; the first one by default.", max_length=128)]
Text = Annotated[str, Field(description="A text.")]
Input = Annotated[
    Text | dict[str, Any], Field(description="A text, or an object with the keys that the model reads (GET /models).")
]


Texts = Annotated[list[Text], Field(min_length=1)]


def _reject_text_and_bool(value: Any) -> Any:
    if isinstance(value, bool | str):  # pydantic takes true as 1, and "1" too
        raise PydanticKnownError("int_type")
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_reject_text_and_bool)]


class Body(BaseModel):
    """A body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class PredictBody(Body):
    """Texts to predict."""

    inputs: Annotated[
        Input | Annotated[list[Input], Field(min_length=1)],
        Field(
            description="An input or a list.",
            examples=["The train leaves at nine.", [{"question": "Who left?", "context": "Ann left, Bob stayed."}]],
        ),
    ]
    model: Name = None
    top: Annotated[
        Annotated[int, Field(ge=1, le=1000), BeforeValidator(_reject_text_and_bool)] | None,
        Field(description="Number of labels, answers or pieces to list, where a task has some."),
    ] = None


class EmbedBody(Body):
    """Texts to compute vectors of."""

    inputs: Annotated[
        Text | Texts, Field(description="A text or a list.", examples=[["A first text.", "A second one."]])
    ]
    model: Name = None
    prompt: Annotated[
        str | None,
        Field(description="Name of the prompt that precedes the texts, such as query; the default one if unset."),
    ] = None


class SimilarityBody(Body):
    """A text, and the texts to compare with it."""

    source: Annotated[Text, Field(examples=["How do I reset my password?"])]
    sentences: Annotated[Texts, Field(examples=[["I have forgotten my password.", "The weather is fine."]])]
    model: Name = None


class RerankBody(Body):
    """A query and documents to order by it."""

    query: Annotated[Text, Field(examples=["Who wrote Emma?"])]
    documents: Annotated[Texts, Field(examples=[["Emma is a novel by Jane Austen.", "Rain is expected."]])]
    top_n: Annotated[Count | None, Field(description="Number of documents in the answer; all by default.")] = None
    model: Name = None


class OpenAIEmbeddingsBody(BaseModel):
    """Body of OpenAI's embeddings endpoint. Its other fields are ignored, as clients send several."""

    model_config = ConfigDict(json_schema_extra={"example": {"input": ["A text."], "encoding_format": "float"}})

    input: Annotated[
        Text | Texts,
        Field(
            description="A text or a list. Token ids are refused, as they are of another model's tokenizer: LangChain "
            "sends texts with check_embedding_ctx_length=False."
        ),
    ]
    model: Name = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Field(description="base64: of float32 numbers, little-endian; null: float."),
    ] = "float"
    dimensions: Annotated[
        Count | None, Field(description="Keep this many first components, and divide by the length (Matryoshka).")
    ] = None

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
            # Ids do not identify their tokenizer: those of LangChain are of OpenAI's cl100k_base.
            raise PydanticCustomError(
                "token_ids",
                "Send texts: token ids are of another model's tokenizer. LangChain sends texts with "
                "OpenAIEmbeddings(check_embedding_ctx_length=False).",
            )
        return value


class Answer(BaseModel):
    """An answer, with the model that computed it."""

    model: Annotated[str, Field(description="The name of the model.", examples=["topics"])]
    version: Annotated[
        str, Field(description="The first digits of the SHA-256 of its files.", examples=["0123456789ab"])
    ]


class Predictions(Answer):
    """A prediction, or {"error": ...}, for each input."""

    outputs: Annotated[
        list[dict[str, Any]],
        Field(examples=[[{"label": "good", "probability": 0.98, "probabilities": {"good": 0.98, "bad": 0.02}}]]),
    ]


class Embeddings(Answer):
    """A vector for each text."""

    embeddings: Annotated[list[list[float]], Field(examples=[[[0.25, -0.5], [0.125, 0.75]]])]


class Similarities(Answer):
    """The cosine of each sentence and the source."""

    similarities: Annotated[list[float], Field(examples=[[0.91, 0.13]])]


class Ranked(BaseModel):
    """A document by its number in the request, and its score."""

    index: int
    score: float


class Ranking(Answer):
    """Documents, the best first."""

    results: Annotated[list[Ranked], Field(examples=[[{"index": 0, "score": 0.88}, {"index": 1, "score": 0.02}]])]


class OpenAIEmbedding(BaseModel):
    """A vector in the format of OpenAI's API."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class OpenAIUsage(BaseModel):
    """Tokens that were computed."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(BaseModel):
    """Vectors in the format of OpenAI's API."""

    object: Literal["list"]
    model: str
    usage: OpenAIUsage
    data: Annotated[list[OpenAIEmbedding], Field(examples=[[{"object": "embedding", "index": 0, "embedding": [0.5]}]])]


class OpenAIModel(BaseModel):
    """A model in the format of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Field(description="When it was loaded, in seconds since 1970.")]
    owned_by: str


class OpenAIModels(BaseModel):
    """The models in the format of OpenAI's API."""

    object: Literal["list"]
    data: list[OpenAIModel]


class Card(BaseModel):
    """Description of a model."""

    name: str
    version: str
    task: Annotated[str, Field(description="Its task; empty if it only computes vectors.", examples=["classify"])]
    family: str
    dimensions: Annotated[int, Field(description="Length of its vectors.", examples=[768])]
    precision: str
    prompts: Annotated[
        dict[str, str], Field(description="What precedes texts in /embed.", examples=[{"query": "", "document": ""}])
    ]
    max_length: int | None = None
    labels: list[str] | None = None
    inputs: Annotated[list[str] | None, Field(description="Keys of the objects that /predict reads.")] = None
    optional_inputs: Annotated[
        list[str] | None, Field(description="Further keys that these objects may have, such as a pair's second text.")
    ] = None
    example: Annotated[Any, Field(description="An input of /predict; a text if the model also reads texts.")] = None


class Status(BaseModel):
    """Status of the service."""

    status: Annotated[str, Field(examples=["ok"])]


class Failure(BaseModel):
    """The problem, and the field of the body that has it."""

    error: str
    field: str | None = None
