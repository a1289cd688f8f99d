"""Refusals: answers with an error status, their messages, and their description for OpenAPI."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.registry import nearest
from lambert.wings.serve.bodies import Failure
from lambert.wings.serve.metrics import Metrics

OVERLOADED = "Too much work is waiting (262,000 tokens): try again in 5 s."
TOO_LATE = "The request was not computed within 30 s: try again later, or send fewer texts."
TRANSFER_ENCODING = "The only Transfer-Encoding that is read is chunked."
BUG = "Internal error: the operator's log says more."
_DESCRIBED = {
    400: (
        "The body is not JSON, or the Host header names another host.",
        "The body is not JSON: see line 1, column 12.",
    ),
    401: ("The API key is missing or wrong.", "Send the API key as `Authorization: Bearer KEY`."),
    404: ("There is no model of this name.", "There is no model of this name; there are: names, topics."),
    408: ("The request did not arrive in time.", "The body was not complete after 30 s."),
    413: ("The body or the number of texts is too large.", "2,000 texts are more than 1,024: send fewer."),
    415: (
        "The content type is not application/json, or the body is compressed.",
        "The content type must be application/json.",
    ),
    422: ("A field is missing, unknown or wrong.", "'inputs' is missing."),
    429: ("Too much work is waiting; Retry-After says when to try again.", OVERLOADED),
    431: ("The headers are too large or too many.", "The headers are larger than 32,768 bytes: send less."),
    500: ("Internal error.", BUG),
    501: ("The body has another Transfer-Encoding than chunked.", TRANSFER_ENCODING),
    503: ("The request was not computed in time.", TOO_LATE),
}
_EXPECTED = {
    "string_type": "a text", "dict_type": "an object", "list_type": "a list", "int_type": "a whole number",
    "int_parsing": "a whole number", "int_from_float": "a whole number",
}  # fmt: skip
"""What to send instead of a value of a wrong type, by pydantic's error types."""
_PROBLEMS = {
    "missing": "is missing", "too_short": "is an empty list: send at least {min_length}",
    "string_too_long": "has more than {max_length} characters", "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}", "less_than_equal": "must be at most {le}",
}  # fmt: skip
"""What is wrong with a field, by pydantic's error types."""
_FIELDS = {404: "model", 413: "inputs", 422: "inputs"}
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}


def document(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the description of refusals for OpenAPI."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        description, message = _DESCRIBED[status]
        example = {"error": message} | ({"field": _FIELDS[status]} if status in _FIELDS else {})
        found[status] = {
            "model": Failure, "description": description, "content": {"application/json": {"example": example}},
        }  # fmt: skip
        if status in (429, 503):
            found[status]["headers"] = _RETRY
    return found


OF_TEXTS = document(*_DESCRIBED)
"""The refusals of a route that takes texts."""


class Refusal(HTTPException):
    """An answer with an error status. It is an HTTPException, because FastAPI turns other exceptions into 400 while it
    reads a body.

    Args:
        status: The status.
        reason: Its name in the metrics.
        message: What is wrong and what to do.
        field: The field of the body that is wrong.
        retry: Seconds after which the request may be sent again; 0: never.
        unread: For the gate: whether the client may still be sending its body.
    """

    def __init__(
        self, status: int, reason: str, message: str, field: str | None = None, *, retry: int = 0, unread: bool = True
    ) -> None:
        super().__init__(status, message, {"Retry-After": str(retry)} if retry else None)
        self.reason, self.field, self.retry, self.unread = reason, field, retry, unread


def encode_error(message: str, field: str | None = None) -> bytes:
    """Returns the body of a refusal. Characters that UTF-8 cannot encode are escaped."""
    named = {"error": message} | ({"field": field} if field else {})
    content = {name: text.encode("utf-8", "backslashreplace").decode() for name, text in named.items()}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def build_answer(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns the answer of a refusal."""
    return Response(encode_error(message, field), status, headers, "application/json")


def add_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Adds handlers that turn the errors of routes into answers."""

    @app.exception_handler(Refusal)
    async def answer_refusal(request: Request, error: Refusal) -> Response:
        metrics.count_refusal(error.reason)
        return build_answer(error.status_code, error.detail, error.field, error.headers)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        metrics.count_refusal("fields")
        message, field = describe_field(
            error.errors(), [*request.scope["route"].body_field.field_info.annotation.model_fields]
        )
        return build_answer(422, message, field)

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        metrics.count_refusal({404: "path", 405: "method"}.get(error.status_code, "body"))
        headers = dict(error.headers or {})
        allowed = f"This path does not accept this method: use {headers.get('allow', headers.get('Allow', 'another'))}."
        missing = "There is no such path: /openapi.json lists those that there are."
        message = {404: missing, 405: allowed}.get(error.status_code, str(error.detail))
        return build_answer(error.status_code, message, headers=headers)

    @app.exception_handler(LambertError)
    async def answer_error(request: Request, error: LambertError) -> Response:
        mistaken = isinstance(error, DataError | UsageError)
        metrics.count_refusal("text" if mistaken else "machine")
        return build_answer(422 if mistaken else 503, str(error), headers=None if mistaken else {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def answer_bug(request: Request, error: Exception) -> Response:
        metrics.count_refusal("bug")
        return build_answer(500, BUG)  # Starlette raises the error again, and the gate reports it


def describe_field(errors: Sequence[Any], known: Sequence[str]) -> tuple[str, str]:
    """Returns the message and the field for errors of pydantic. The message repeats nothing of the input except the
    name of an unknown field.

    Args:
        known: The fields of the body.
    """
    # pydantic reports an error for each member of a union. Prefer the deepest, then one that is not a type error. An
    # unknown field is often a missing one, misspelt.
    first = max(
        errors,
        key=lambda one: (len(_locate(one)), one["type"] == "extra_forbidden", not one["type"].endswith("_type")),
    )
    place, kind, limits = _locate(first), first["type"], first.get("ctx") or {}
    field = "".join(f"[{part}]" if isinstance(part, int) else part for part in place)[:200]
    if not place:
        return "The body must be a JSON object.", "body"
    if kind == "extra_forbidden":
        return f"{field[:64]!r} is unknown.{nearest(field, [*known])}", field
    if kind in _EXPECTED:
        forms = dict.fromkeys(
            _EXPECTED[one["type"]] for one in errors if _locate(one) == place and one["type"] in _EXPECTED
        )
        return f"{field!r} must be {' or '.join(forms)}.", field
    said = _PROBLEMS.get(kind)
    return (f"{field!r} {said.format(**limits)}." if said else first["msg"]), field


def _locate(error: Any) -> list[str | int]:
    """Returns the field and the numbers in lists of an error of pydantic, without its names of the forms of a union."""
    place = list(error["loc"][1:])
    return place[:1] + [part for part in place[1:] if isinstance(part, int)]
