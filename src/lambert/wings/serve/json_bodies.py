"""Parses large JSON bodies and encodes large answers in threads, while other requests are served."""

import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import to_json

from lambert.wings.serve.answering import Answering
from lambert.wings.serve.refusals import Refusal

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 64


class JsonRequest(Request):
    """A request whose body is parsed by the threads of `answering`, with at most `most_items` items in a list."""

    def __init__(self, request: Request, answering: Answering, most_items: int) -> None:
        super().__init__(request.scope, request.receive)
        self._answering, self._most_items = answering, most_items

    async def body(self) -> bytes:
        found = await super().body()
        if not found:
            raise Refusal(400, "json", "The body is empty: send JSON.")
        return found

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await self._answering.call(lambda: parse_body(body, self._most_items), len(body))
        return self._json


class JsonRoute(APIRoute):
    """A route whose requests are `JsonRequest`."""

    def __init__(self, answering: Answering, most_items: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answering, self._most_items = answering, most_items
        self._fields = getattr(get_type_hints(self.endpoint).get("body"), "model_fields", {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise Refusal(415, "content_type", "The content type must be application/json.")
                for name in request.query_params:
                    if name in self._fields:  # other names, such as those that proxies add, mean nothing here
                        message = f"{name} is in the URL, where it is not read: send it in the JSON body."
                        raise Refusal(422, "fields", message, name)
            return await handler(JsonRequest(request, self._answering, self._most_items))

        return handle


def parse_body(body: bytes, most_items: int) -> Any:
    """Returns the value of a JSON text in UTF-8.

    Raises Refusal: 400 if it is not strict JSON, 422 for half of a surrogate pair, 413 if the list of a field has more
    than `most_items` items.
    """
    try:
        value = json.loads(body.decode(), parse_constant=_not_json)
    except UnicodeDecodeError as error:
        raise Refusal(400, "json", "The body is not JSON in UTF-8: another encoding was sent.") from error
    except RecursionError as error:
        raise Refusal(400, "json", "The body is not JSON that can be read: it is nested too deeply.") from error
    except json.JSONDecodeError as error:
        message = f"The body is not JSON: see line {error.lineno:,}, column {error.colno:,}."
        raise Refusal(400, "json", message) from error
    except ValueError as error:  # thousands of digits
        raise Refusal(400, "json", "The body is not JSON that can be read: a number is too long.") from error
    if isinstance(value, dict):
        for name, items in value.items():
            if isinstance(items, list) and len(items) > most_items:
                message = f"{len(items):,} texts are more than {most_items:,}: send fewer."
                raise Refusal(413, "items", message, name[:_SHOWN])
    if _HALF_PAIR.search(body):
        place = _find_half_pair(value)
        if place is not None:
            message = "A text contains half of a surrogate pair, which is not a character."
            raise Refusal(422, "text", message, place)
    return value


def _not_json(constant: str) -> NoReturn:
    raise Refusal(400, "json", f"The body has {constant}, which is not JSON: send a finite number or null.")


def _find_half_pair(value: Any) -> str | None:
    """Returns the place of a text that UTF-8 cannot encode, a key included."""
    waiting = [("", value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            if not _encodable(value):
                return place
        elif isinstance(value, list):
            waiting += [(f"{place}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, dict):
            if not all(map(_encodable, value)):
                return place or "body"
            waiting += [(f"{place}.{key[:_SHOWN]}".removeprefix("."), item) for key, item in value.items()]
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_list(head: Mapping[str, Any], name: str, items: Iterable[Any]) -> Response:
    """Returns the answer {**head, name: [items]}. Other threads run between items; encoding the whole list at once
    would stop the event loop. Numbers that are not finite become null."""
    rows = b",".join([to_json(item, inf_nan_mode="null") for item in items])
    content = b"".join([to_json(dict(head))[:-1], b"," if head else b"", to_json(name), b":[", rows, b"]}"])
    return Response(content, media_type="application/json")
