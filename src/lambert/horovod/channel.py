"""A TCP connection that carries JSON messages: the control messages between the ranks. No pickle, no code."""

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

LARGEST_MESSAGE = 1 << 28
"""Bytes. Ten thousand requests are about 2 MB; a longer message is no message of ours."""

_LENGTH = struct.Struct("!I")


class Channel:
    """One end of a connection. Sending is safe from several threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = connection
        self._sending = threading.Lock()
        self._received = bytearray()

    def send(self, message: Any) -> None:
        """Sends a message of JSON's types; OSError where the other end is gone."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> list[Any]:
        """The messages that have arrived, after waiting for bytes once; maybe none yet. OSError at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self._received += data
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > LARGEST_MESSAGE:
                raise ConnectionAbortedError(f"a message of {length} bytes is not one of ours")
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
        """Ends the connection in both directions, which also wakes a thread that receives."""
        with suppress(OSError):  # the other end was faster
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
