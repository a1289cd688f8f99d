"""A bucket of S3 on this machine: a server of moto, to which s3fs is directed by the variables of the AWS tools."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from lambert.wings.corpus.remote import fetch as module

NUMBERS = itertools.count()
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    yield f"http://{host}:{port}"
    found.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket: a file system of s3fs, and the name of the bucket."""
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(module, "BACKOFF", 0.001)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (
        *((key, f"s3cret-{key}") for key in KEYS), ("AWS_ENDPOINT_URL", server), ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", os.devnull), ("AWS_MAX_ATTEMPTS", "1"),
        ("AWS_SHARED_CREDENTIALS_FILE", os.devnull),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    name = f"bucket-{next(NUMBERS)}"
    files.mkdir(name)
    yield files, name
    s3fs.S3FileSystem.clear_instance_cache()
