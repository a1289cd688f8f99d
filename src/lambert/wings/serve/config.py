"""The settings of `lambert serve`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.files import open_regular
from lambert.core.settings import check
from lambert.inference.config import Precisions

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KEY_BYTES = 4096
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """An HTTP service of one or several models, with a page for trying them."""

    model: Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
    """Run folders or model folders, or NAME=FOLDER to name them. The first is the default for requests that name no
    model."""
    host: str = "127.0.0.1"
    """Address to listen on. By default only programs on this machine can connect; 0.0.0.0: all machines that reach it,
    which requires an API key."""
    port: int = 8000
    """Port to listen on; 0: a free one, which is printed."""
    hosts: tuple[str, ...] = ()
    """Names by which clients reach the service (the Host header), besides localhost and `host`. "*": any."""
    api_key_file: Path | None = None
    """File with the key that requests must send as `Authorization: Bearer KEY`. The environment variable
    LAMBERT_API_KEY has the same effect."""
    seconds: float = 30.0
    """Maximum seconds of a request until its answer begins; after that it gets 503. It is also the maximum time that
    the service takes to end."""
    max_body_megabytes: float = 8.0
    """Maximum size of the body of a request."""
    max_items: int = 1024
    """Maximum number of texts of a request."""
    max_requests: int = 1024
    """Maximum number of requests in progress. Further requests get 429."""
    max_waiting_tokens: int = 262_144
    """Maximum number of tokens that wait to be computed. Requests whose bytes would exceed it get 429 and Retry-After,
    as do those that would wait longer than a quarter of `seconds` at the present speed."""
    precision: Precisions | Literal["auto"] = "auto"
    """Precision of the matrix products. auto: bfloat16 on devices with instructions for its products, otherwise
    float32. int8, on CPUs only, is faster still and changes scores by tenths of a percentage point."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:N or mps."""
    workers: int = 0
    """Number of threads that compute batches and share the cores. 0: one per core on a CPU, one on a GPU."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that the model folders may import (docs/security.md)."""

    def __post_init__(self) -> None:
        check(
            self, port="[0, 65535]", seconds="(0, 86400]", max_body_megabytes="(0, 1024]", max_items="[1, inf)",
            max_requests="[1, inf)", max_waiting_tokens="[1, inf)", workers="[0, inf)",
        )  # fmt: skip
        names = [name for name, _ in self.models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(
                f"Two models have the name {twice!r}: give each its own, as in --model one=FOLDER --model two=FOLDER."
            )

    @property
    def body_bytes(self) -> int:
        """Maximum bytes of the body of a request."""
        return int(self.max_body_megabytes * 1e6)

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Names that the Host header of a request may have; "*": any."""
        own = {self.host.lower()} - {"0.0.0.0", "::"}
        return frozenset({*LOOPBACK, *own, *(name.lower() for name in self.hosts)})

    @property
    def models(self) -> list[tuple[str, Path]]:
        """The names and folders of the models. A model without a name has that of its run folder or folder."""
        found = []
        for given in self.model:
            named = _NAMED.fullmatch(given) if not Path(given).exists() else None
            path = Path(named[2] if named else given)
            own = path.resolve()
            own = own.parent if own.name == "model" and own.parent.name else own
            found.append((named[1] if named else own.name, path))
        return found


def read_api_key(config: ServeConfig) -> str:
    """Returns the API key, empty if none was given. Raises UsageError for a key that no header can have, and for a file
    that has no key or cannot be read."""
    path = config.api_key_file
    place = "LAMBERT_API_KEY" if path is None else str(path)
    if path is None:
        key = os.environ.get("LAMBERT_API_KEY", "").strip()
        if not key:
            return ""
    else:
        if path.exists() and not path.is_file():  # a pipe would block, and a device may have no end
            raise UsageError(f"api_key_file = {path} is not a file: write the key to a file.")
        try:
            with open_regular(path) as file:
                key = file.read(_KEY_BYTES + 1).decode("ascii", "replace").strip()
        except OSError as error:
            raise UsageError(f"api_key_file = {path} cannot be read: {error.strerror}.") from error
    if not key or len(key) > _KEY_BYTES or not key.isascii() or not key.isprintable():
        what = f"of at most {_KEY_BYTES:,} letters and digits"
        raise UsageError(f"{place} has no API key: {'set it to one' if path is None else 'write one line'} {what}.")
    return key
