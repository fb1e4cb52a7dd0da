"""The scripted model server's process.

`python -m turnkeep.testing.model_server --script FILE --log FILE --port N` serves until its standard input ends, and so
never outlives the process that started it. It says the port it listens on in a line of JSON.

A request is in the log before anything of its reply is sent, and so is that it was answered, afterwards. The log
survives the process: the next one on it goes on counting.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import socketserver
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from turnkeep.testing._child import serve
from turnkeep.testing.script import (
    MODEL,
    Exchange,
    Json,
    NoReplyError,
    Place,
    Reply,
    choose,
    chunks,
    completion,
    error,
    load,
    place,
    read_log,
)

_LOOK_SECONDS = 0.05  # between two looks at the pace while a reply waits


@dataclass(frozen=True)
class Pace:
    """Seconds that count for every reply instead of its own, where not None."""

    first_token_seconds: float | None = None
    token_seconds: float | None = None

    def before(self, chunk: int, reply: Reply) -> float:
        """Return the seconds before the reply's chunk of that number, the first being 0."""
        given, own = (
            (self.token_seconds, reply.token_seconds)
            if chunk
            else (self.first_token_seconds, reply.first_token_seconds)
        )
        return own if given is None else given


@dataclass
class UnderWay:
    """A reply that has been begun: for whom, and how many chunks of it are sent."""

    place: Place
    chunks: int = 0


class Desk:
    """What all requests share: the script, the log, the pace, and the replies that are under way."""

    def __init__(self, script: Sequence[Exchange], log: Path, pace: Pace) -> None:
        self.script = script
        self.pace = pace
        text = log.read_text() if log.exists() else ""
        before = read_log(text)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if text and not text.endswith("\n"):  # a kill has cut its last line short
            self._write(b"\n")
        self._lock = threading.Lock()
        self._requests = len(before.requests)
        self._answered = before.finished
        self._attempts = Counter(place(request) for request in before.requests)
        self._under_way: list[UnderWay] = []

    def take(self, request: Json) -> int:
        """Write a request down. Returns how many there were for the same reply before."""
        with self._lock:
            self._append({"request": request})
            self._requests += 1
            self._attempts[place(request)] += 1
            return self._attempts[place(request)] - 1

    def begin(self, at: Place) -> UnderWay:
        """Count a reply as under way, until `end`."""
        begun = UnderWay(at)
        with self._lock:
            self._under_way.append(begun)
        return begun

    def end(self, begun: UnderWay, *, whole: bool) -> None:
        """Count a reply as under way no more, and write down that it was given whole."""
        with self._lock:
            self._under_way = [other for other in self._under_way if other is not begun]
            if whole:
                self._append({"finished": asdict(begun.place)})
                self._answered += 1

    def status(self) -> Json:
        """Return what goes on, as `/status` says it."""
        with self._lock:
            return {
                "streaming": len(self._under_way),
                "answered": self._answered,
                "requests": self._requests,
                "users": [begun.place.user for begun in self._under_way],
                "chunks": [begun.chunks for begun in self._under_way],
            }

    def _append(self, entry: Json) -> None:
        self._write(json.dumps({"at": time.time(), **entry}).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._log, data) :]


class ModelHTTPServer(ThreadingHTTPServer):
    """The listening socket and a thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, port: int, desk: Desk) -> None:
        self.desk = desk
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service who 127.0.0.1 is."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong. A client that goes away is nothing wrong."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection: any number of requests, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ModelHTTPServer

    def do_GET(self) -> None:
        """Answer what is asked about the server."""
        if self.path == "/status":
            self._send(200, self.server.desk.status())
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "turnkeep"}]})
        else:
            self._refuse(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        """Answer a request to the model, or change the pace."""
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            body = json.loads(text)
        except ValueError as problem:
            return self._refuse(400, f"the body is not JSON: {problem}")
        if not isinstance(body, dict):
            return self._refuse(400, "the body is not a JSON object")
        if self.path == "/v1/chat/completions":
            return self._complete(body)
        if self.path == "/pace":
            return self._change_pace(body)
        return self._refuse(404, f"there is no {self.path}")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the log says what was asked."""

    # -- replies

    def _complete(self, request: Json) -> None:
        desk = self.server.desk
        attempt = desk.take(request)
        try:
            at, reply = choose(desk.script, request)
        except NoReplyError as problem:
            return self._refuse(400, str(problem))
        failing = reply.fails(attempt)
        if failing and reply.status is not None:
            return self._refuse(reply.status, f"the script fails this request, its number {attempt + 1}")
        begun, whole = desk.begin(at), False
        try:
            answer = self._stream if request.get("stream") else self._answer
            answer(request, reply, begun, reply.break_after if failing else None)
            whole = not failing
        finally:
            desk.end(begun, whole=whole)
        return None

    def _stream(self, request: Json, reply: Reply, begun: UnderWay, break_after: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in self._paced(request, reply, begun, break_after):
            self._send_event(json.dumps(chunk))
            begun.chunks += 1
        if break_after is not None:
            return self._cut()
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _answer(self, request: Json, reply: Reply, begun: UnderWay, break_after: int | None) -> None:
        for _ in self._paced(request, reply, begun, break_after):
            pass
        if break_after is not None:
            return self._cut()
        return self._send(200, completion(reply, begun.place, model=_model(request)))

    def _paced(self, request: Json, reply: Reply, begun: UnderWay, break_after: int | None) -> Iterator[Json]:
        """Yield each chunk when its time has come. Raises ConnectionError once the client is gone."""
        options = request.get("stream_options") or {}
        every = chunks(reply, begun.place, model=_model(request), include_usage=bool(options.get("include_usage")))
        for number, chunk in enumerate(every[:break_after]):
            self._wait(number, reply)
            yield chunk

    def _wait(self, chunk: int, reply: Reply) -> None:
        start = time.monotonic()
        leaving = select.poll()
        leaving.register(self.connection, getattr(select, "POLLRDHUP", 0))
        while (left := start + self.server.desk.pace.before(chunk, reply) - time.monotonic()) > 0:
            if leaving.poll(min(left, _LOOK_SECONDS) * 1000):
                raise ConnectionResetError("the client has gone away")

    def _cut(self) -> None:
        """Reset the connection, as a server does that crashes."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    # -- the rest

    def _change_pace(self, body: Json) -> None:
        pace = Pace(body.get("first_token_seconds"), body.get("token_seconds"))
        for seconds in (pace.first_token_seconds, pace.token_seconds):
            if seconds is not None and (not isinstance(seconds, int | float) or seconds < 0):
                return self._refuse(400, f"expected seconds from 0, or null, got {seconds!r}")
        self.server.desk.pace = pace
        return self._send(200, asdict(pace))

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, error(status, message))

    def _send(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))


def _model(request: Json) -> str:
    return str(request.get("model", MODEL))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input ends, then end the process at once."""
    parser = argparse.ArgumentParser(prog="python -m turnkeep.testing.model_server", description="A scripted model.")
    parser.add_argument("--script", type=Path, required=True, help="the script, as turnkeep.testing.script.dump has it")
    parser.add_argument("--log", type=Path, required=True, help="where to write down the requests; it is appended to")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--first-token-seconds", type=float, help="instead of the script's")
    parser.add_argument("--token-seconds", type=float, help="instead of the script's")
    given = parser.parse_args(arguments)
    desk = Desk(load(given.script.read_text()), given.log, Pace(given.first_token_seconds, given.token_seconds))
    server = ModelHTTPServer(given.port, desk)
    serve(server)


if __name__ == "__main__":
    main()
