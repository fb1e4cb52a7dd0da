"""A server of `/v1/embeddings` that answers as it is told, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = tuple[int, dict[str, str], Any]


def vectors(body: dict[str, Any]) -> Answer:
    """A vector for each text, its length first; in the wrong order, as a server may."""
    data = [
        {"object": "embedding", "index": index, "embedding": [float(len(text)), 1.0]}
        for index, text in enumerate(body["input"])
    ]
    return 200, {}, {"object": "list", "model": body["model"], "data": data[::-1]}


class EmbeddingServer:
    """Listens on a port of its own, and keeps what it was asked. `answer` may be changed at any time."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer] = vectors) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append({**body, "path": self.path})
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, headers, reply = outer.answer(body)
                sent = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {
                    "content-type": "application/json",
                    "content-length": str(len(sent)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
