"""Data sets of the Hugging Face Hub, streamed by the library `datasets` and kept as JSON lines."""

import importlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lambert.core.errors import DataError, UsageError
from lambert.core.registry import import_extra
from lambert.core.urls import public
from lambert.wings.corpus.remote.fetch import Body, Unavailable, shorten_message

SCHEME = "datasets"
_SECONDS = 10
"""Timeout of the Hub (our choice)."""
_FORM = "datasets://OWNER/NAME?config=CONFIG&split=SPLIT"


class Hub:
    """Data sets by name: `datasets://OWNER/NAME?config=CONFIG&split=SPLIT&revision=COMMIT`, the path of a folder with
    three slashes.

    `config` and `revision` are optional; the default of `split` is train. Values of types that JSON lacks become text.
    A data set has no checksum, and an interrupted one starts over; a `revision` fixes its content.
    """

    def files(self, url: str) -> list[str]:
        parts = urlsplit(url)
        path = f"{parts.path.rstrip('/')}/{_settings(url)['split']}.jsonl"
        return [f"{SCHEME}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")]

    @contextmanager
    def open(self, url: str, begin: int, mark: str) -> Iterator[Body]:
        parts = urlsplit(url)
        name = (parts.netloc + parts.path.rpartition("/")[0]).rstrip("/")
        settings = _settings(url)
        held = b""

        def read(size: int) -> bytes:
            nonlocal held
            while len(held) < size:
                try:
                    row = next(rows, None)
                except Exception as error:
                    raise Unavailable(f"{type(error).__name__}: {shorten_message(str(error), url)}") from error
                if row is None:
                    break
                held += json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"
            data, held = held[:size], held[size:]
            return data

        with _quiet():
            if parts.netloc:
                _check_reachable()
            rows = self._rows(name, settings, public(url))
            yield Body(read, 0, None, "")

    def _rows(self, name: str, settings: dict[str, str], shown: str) -> Iterator[dict[str, Any]]:
        load = import_extra("datasets", f"{shown} needs datasets", "hub").load_dataset
        try:
            config, split, revision = (settings.get(key) for key in ("config", "split", "revision"))
            return iter(load(name, config, split=split, revision=revision, streaming=True))
        except (ValueError, FileNotFoundError) as error:
            raise DataError(f"{shown} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
        except Exception as error:
            raise Unavailable(f"{type(error).__name__}: {shorten_message(str(error))}") from error


def _check_reachable() -> None:
    """Raises Unavailable if the Hub cannot be reached. The library would try again for minutes."""
    try:
        known = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return
    if known.HF_HUB_OFFLINE:
        return  # the library refuses at once
    try:
        with urllib.request.urlopen(urllib.request.Request(known.ENDPOINT, method="HEAD"), timeout=_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        error.close()  # the server answers; the library reports what is wrong
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        said = str(getattr(reason, "strerror", None) or reason) or "no answer"
        raise Unavailable(f"{known.ENDPOINT} does not answer ({said})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """A context that suppresses the lines that the libraries log about each try."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", "fsspec")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _settings(url: str) -> dict[str, str]:
    found = {key: values[-1] for key, values in parse_qs(urlsplit(url).query).items()}
    if unknown := sorted(found.keys() - {"config", "split", "revision"}):
        raise UsageError(f"{public(url)}: {unknown[0]} is unknown. The form is {_FORM}.")
    return {"split": "train"} | found
