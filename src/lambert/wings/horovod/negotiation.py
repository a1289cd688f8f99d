"""A rank's side of the negotiation: it sends requests to the coordinator and runs the collectives that are ready.

There are two threads. The sender collects the requests that the program submits during one cycle into one message. The
receiver starts the collectives in the order that the coordinator sends. Both threads sleep when there is no work.
"""

import threading
import time
from typing import Any

import torch

from lambert.wings.horovod.channel import Channel
from lambert.wings.horovod.exceptions import HorovodInternalError
from lambert.wings.horovod.execution import Executor
from lambert.wings.horovod.matching import Match, find_set_bits
from lambert.wings.horovod.requests import Entry, Request, Response, to_one_line
from lambert.wings.horovod.timeline import timeline

NO_TENSORS = ("barrier", "add_process_set", "remove_process_set")
"""Operations that are done as soon as all ranks have requested them and all earlier collectives are done."""


class Negotiator:
    """Tracks the requests of one rank from submission to completion."""

    def __init__(self, channel: Channel, executor: Executor, cycle_seconds: float) -> None:
        self._channel = channel
        self._executor = executor
        self._cycle_seconds = cycle_seconds
        self._lock = threading.Lock()
        self._to_send = threading.Condition(self._lock)
        self._flushing = threading.Lock()
        self._completed = threading.Condition(self._lock)
        self._pending: dict[tuple[int, str], Entry] = {}
        self._outbox: list[Entry] = []
        self._due = False
        self._known: dict[tuple[int, str], tuple[int, Request]] = {}
        self._by_number: dict[int, list[Request]] = {}
        self._counts: dict[tuple[int, str], int] = {}
        self._join: Entry | None = None
        self._hosts: list[str] = []
        self._closed: str | None = None
        self._threads = [
            threading.Thread(target=self._send_loop, name="lambert.horovod sender", daemon=True),
            threading.Thread(target=self._receive_loop, name="lambert.horovod worker", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def meet(self, seconds: float) -> list[str]:
        """Waits until all ranks are connected and returns their hosts. Raises HorovodInternalError if they do not
        connect within `seconds`."""
        with self._lock:
            self._completed.wait_for(lambda: self._hosts or self._closed, seconds)
            hosts, reason = self._hosts, self._closed or "not all ranks have connected"
        if not hosts:
            self.close(reason, 0)
            raise HorovodInternalError(reason)
        return hosts

    def name(self, kind: str, process_set: int, name: str | None) -> str:
        """Returns the name by which a request is matched. Requests without a name are counted per kind and process set,
        so that all ranks use the same count."""
        if name is not None:
            return f"{kind}.{name}"
        with self._lock:
            count = self._counts[process_set, kind] = self._counts.get((process_set, kind), 0) + 1
        return f"{kind}.noname.{count}"

    def submit(self, entry: Entry, hold: bool = False) -> None:
        """Submits a request, which is sent with the next cycle. If `hold`, the request may wait until the next request
        without `hold`, or until `flush`.

        Raises:
            ValueError: A request of this name is pending.
            HorovodInternalError: The session has ended.
        """
        request = entry.request
        key = request.process_set, request.name
        with self._lock:
            self._check_open(request.name)
            if key in self._pending:
                raise ValueError(
                    f"{request.name} is already pending: collectives that run at the same time need different names"
                )
            self._pending[key] = entry
            self._outbox.append(entry)
            if not (hold or self._due):
                self._due = True
                self._to_send.notify()
            timeline.begin(request.name, f"NEGOTIATE_{request.kind.upper()}")

    def join(self) -> Entry:
        """Declares that this rank has no more data. The returned entry is done when all ranks have joined; its result
        is the last rank to join."""
        self.flush()
        with self._lock:
            self._check_open("join")
            entry = self._join = Entry(Request("join", "join", 0))
        self._send(["join"])
        return entry

    def wait(self, entry: Entry) -> None:
        """Waits until the entry is done. Raises HorovodInternalError if it failed."""
        self.flush()
        with self._lock:
            self._completed.wait_for(lambda: entry.done)
        if entry.error is not None:
            raise HorovodInternalError(entry.error)

    def close(self, reason: str, patience: float) -> None:
        """Leaves the session and sends the reason to the other ranks. Waits at most `patience` seconds for running
        operations and for the sender."""
        self._send(["leave", reason])
        self._threads[1].join(patience)
        self._fail(reason)
        self._channel.close()
        self._threads[0].join(patience)

    def _check_open(self, name: str) -> None:
        if self._closed is not None:
            raise HorovodInternalError(f"{name} cannot run, because the session has ended: {self._closed}")

    def flush(self) -> None:
        """Sends the submitted requests. When `flush` returns, all of them have been sent, also those that another
        thread was sending, so that a later join is received after them."""
        with self._flushing:
            with self._lock:
                entries, self._outbox, self._due = self._outbox, [], False
                message = self._message(entries)
            if entries:
                timeline.mark_cycle()
                self._send(["submit", message])

    def _message(self, entries: list[Entry]) -> list[Any]:
        parts: dict[int, tuple[int, list[Request]]] = {}
        for entry in entries:
            request = entry.request
            bits, requests = parts.get(request.process_set, (0, []))
            known = self._known.get((request.process_set, request.name))
            if known is not None and (known[1] is request or known[1] == request):
                bits |= 1 << known[0]
            else:
                requests.append(request)
            parts[request.process_set] = bits, requests
        return [[number, f"{bits:x}", requests] for number, (bits, requests) in parts.items()]

    def _send(self, message: list[Any]) -> None:
        try:
            self._channel.send(message)
        except OSError as error:
            self._fail(f"the connection to rank 0 is lost ({error})")

    def _send_loop(self) -> None:
        while True:
            with self._lock:
                while not self._due and self._closed is None:
                    self._to_send.wait()
                if self._closed is not None:
                    return
            time.sleep(self._cycle_seconds)
            self.flush()

    def _receive_loop(self) -> None:
        torch.set_grad_enabled(False)  # grad mode is thread-local
        try:
            while True:
                try:
                    messages = self._channel.receive()
                except OSError as error:
                    messages = [["closed", f"the connection to rank 0 is lost ({error})"]]
                for message in messages:
                    if self._act(*message):
                        return
        except Exception as error:
            self._break(f"negotiation failed: {to_one_line(error)}")
        finally:
            self._channel.close()

    def _act(self, kind: str, *content: Any) -> bool:
        if kind != "batch":
            self._executor.drain()
        if kind == "closed":
            self._fail(content[0])
            return True
        if kind == "welcome":
            with self._lock:
                self._hosts = content[0]
                self._completed.notify_all()
        elif kind == "joined":
            entry, self._join = self._join, None
            assert entry is not None
            entry.result = content[0]
            self._complete(entry)
        else:
            number, bits, matches = content
            known = self._by_number.setdefault(number, [])
            responses = [self._take(number, known[bit].name, [known[bit]]) for bit in find_set_bits(int(bits, 16))]
            for match in map(Match.parse, matches):
                response = self._agree_on(number, match)
                if response is not None:
                    responses.append(response)
            for response in responses:
                if response.entry is not None:
                    timeline.end(response.request.name)
            self._executor.run(responses, self._finish)
        return False

    def _take(self, number: int, name: str, requests: list[Request]) -> Response:
        with self._lock:
            entry = self._pending.pop((number, name), None)
            if entry is None:
                # The other ranks continued after this rank had joined, so this rank counts their operations too.
                kind, _, count = name.partition(".noname.")
                if count.isdigit():
                    self._counts[number, kind] = max(int(count), self._counts.get((number, kind), 0))
            return Response(requests, entry)

    def _agree_on(self, number: int, match: Match) -> Response | None:
        response = self._take(number, match.name, match.requests)
        entry = response.entry
        if match.error is not None or response.request.kind in NO_TENSORS:
            self._executor.drain()
        if match.error is None and match.number is not None:
            request = match.requests[0]
            if request.kind == "allreduce":
                self._by_number[number].append(request)
                with self._lock:
                    self._known[number, request.name] = match.number, request
            else:
                adds = request.kind == "add_process_set"
                self._executor.change_set(match.number, list(request.numbers) if adds else None)
                if not adds:
                    self._drop(match.number, "its process set was removed")
                if entry is not None:
                    entry.result = match.number
        if match.error is not None or response.request.kind in NO_TENSORS:
            if entry is not None:
                timeline.end(match.name)
                entry.error = match.error
                self._complete(entry)
            return None
        return response

    def _finish(self, responses: list[Response], error: str | None) -> None:
        if error is not None:
            error = f"{responses[0].request.name} failed: {error}"
            self._break(error)
        with self._lock:
            for response in responses:
                if response.entry is not None:
                    response.entry.error, response.entry.done = error, True
            self._completed.notify_all()

    def _break(self, reason: str) -> None:
        """Ends the session after an error: all waiting callers, on this and the other ranks, get the reason."""
        self._send(["leave", reason])
        self._fail(reason)
        self._channel.close()

    def _complete(self, entry: Entry) -> None:
        with self._lock:
            entry.done = True
            self._completed.notify_all()

    def _drop(self, process_set: int | None, reason: str) -> None:
        """Fails the pending entries of a process set, or of all process sets."""
        with self._lock:
            entries = {key: entry for key, entry in self._pending.items() if process_set in (None, key[0])}
            for key, entry in entries.items():
                del self._pending[key]
                entry.error, entry.done = f"{entry.request.name} did not run: {reason}", True
            self._outbox = [entry for entry in self._outbox if not entry.done]
            self._completed.notify_all()

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._closed is None:
                self._closed = reason
            if self._join is not None:
                self._join.error, self._join.done = f"join was interrupted: {self._closed}", True
            self._to_send.notify_all()
        self._drop(None, self._closed)
