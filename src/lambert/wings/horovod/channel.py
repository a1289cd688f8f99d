"""A TCP connection for JSON messages: the control messages between the ranks. Messages contain neither pickles nor
code."""

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

LARGEST_MESSAGE = 1 << 28
"""Maximum length of a message in bytes. Ten thousand requests take about 2 MB, so a longer message is invalid."""

_LENGTH = struct.Struct("!I")


class Channel:
    """One end of a connection. Several threads may send; only one thread may receive."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connection
        self.rank: int | None = None
        """On the coordinator: the rank at the other end, once its first message has arrived."""
        self._sending = threading.Lock()
        self._received = bytearray()

    def send(self, message: Any) -> None:
        """Sends a message of JSON types. Raises OSError if the other end is closed."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> list[Any]:
        """Waits for bytes once and returns the complete messages, possibly none. Raises OSError if the connection is
        closed or a message is invalid."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self._received += data
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > LARGEST_MESSAGE:
                raise ConnectionAbortedError(f"a message of {length} bytes is too long to be valid")
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            try:
                messages.append(json.loads(self._received[_LENGTH.size : end]))
            except ValueError as error:
                raise ConnectionAbortedError("a message is not JSON") from error
            del self._received[:end]
        return messages

    def close(self) -> None:
        """Closes the connection in both directions, which also wakes a receiving thread."""
        with suppress(OSError):  # the other end has already closed the connection
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
