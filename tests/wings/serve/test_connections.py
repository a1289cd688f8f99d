"""The limit of connections."""

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

import uvicorn
from uvicorn.server import ServerState

from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.protocol import LimitedProtocol, Limits


def test_connections_beyond_the_limit_are_closed_with_one_warning() -> None:
    refused, said = Counter[str](), list[str]()
    metrics: Any = MagicMock()
    metrics.count_refusal = lambda reason: refused.update([reason])

    async def connect(count: int) -> list[bool]:
        limits = Limits(ServeConfig(("model",)), 2, MagicMock(), metrics, said.append)
        config, state = uvicorn.Config(MagicMock(), http=LimitedProtocol), ServerState()
        transports = [MagicMock() for _ in range(count)]
        for transport in transports:
            LimitedProtocol(limits, config, state, {}).connection_made(transport)
        return [transport.abort.called for transport in transports]

    assert asyncio.run(connect(5)) == [False, False, True, True, True]
    assert refused == {"connections": 3}
    assert [line.partition(",")[0] for line in said] == ["warning: 2 connections are open"]
