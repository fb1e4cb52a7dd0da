"""The process of a server that speaks OpenAI's `/v1/embeddings`, and fails as it is told.

`python -m turnkeep.testing.embedding_process --log FILE --port N` serves until its standard input ends, and says its
port in a line of JSON. Each request's texts are in the log before anything is answered.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from turnkeep.testing._child import serve
from turnkeep.testing.vectors import BEHAVIOUR, MODEL, Json, vector


class EmbeddingHTTPServer(ThreadingHTTPServer):
    """The listening socket, a thread for each connection, and how it behaves."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, port: int, log: str, behaviour: Json) -> None:
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.behaviour = behaviour
        self.changed = threading.Condition()
        self.waiting = 0
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no error."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: EmbeddingHTTPServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        """Say how many requests are held."""
        self._answer(200, {"waiting": self.server.waiting})

    def do_POST(self) -> None:
        """Answer with vectors, or change how it behaves."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/behave":
            with self.server.changed:
                self.server.behaviour = {**self.server.behaviour, **body}
                self.server.changed.notify_all()
            self._answer(200, {})
            return
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        os.write(self.server.log, json.dumps(texts).encode() + b"\n")
        self._hold()
        self._embed(texts, body.get("model", MODEL))

    def _hold(self) -> None:
        with self.server.changed:
            self.server.waiting += 1
            self.server.changed.wait_for(lambda: not self.server.behaviour["held"])
            self.server.waiting -= 1

    def _embed(self, texts: list[str], model: str) -> None:
        how = self.server.behaviour

        def has(what: str, text: str) -> bool:
            return any(word in text for word in how[what])

        if any(has("silencing", text) for text in texts):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if how["status"] is not None:
            self._answer(how["status"], {"error": {"message": "as it was told", "type": "server_error"}})
            return
        if refused := [text for text in texts if has("refused", text)]:
            message = f"the input is not acceptable: {refused[0][:40]}"
            self._answer(how["refused_status"], {"error": {"message": message, "type": "invalid_request_error"}})
            return
        data = []
        for index, text in enumerate(texts):
            numbers = vector(text, how["dimensions"])
            if has("nan", text):
                numbers[0] = math.nan
            if has("zero", text):
                numbers = [0.0] * len(numbers)
            data.append({"object": "embedding", "index": index, "embedding": numbers})
        self._answer(200, {"object": "list", "model": model, "data": data, "usage": {"prompt_tokens": 1}})

    def _answer(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        if self.server.behaviour["retry_after"] is not None:
            self.send_header("Retry-After", str(self.server.behaviour["retry_after"]))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--behaviour", type=json.loads, default={})
    given = parser.parse_args()
    server = EmbeddingHTTPServer(given.port, given.log, {**BEHAVIOUR, **given.behaviour})
    serve(server)


if __name__ == "__main__":
    main()
