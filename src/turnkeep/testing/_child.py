"""A server in a process of its own: told its port, asked over HTTP, ended with its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from http.server import HTTPServer
from typing import Any

_STOP_SECONDS = 10.0
_REQUEST_SECONDS = 30.0


def started(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int | None]:
    """A module run as such a process, and the port that it listens on; None if it ended before it did."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the test, whose end is this process's end too
    )
    assert process.stdout is not None
    try:
        with process.stdout as said:
            line = said.readline()
    except BaseException:  # such as Ctrl-C
        ended(process)
        raise
    return process, json.loads(line)["port"] if line else None


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process, which the end of its input tells it, and reap it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What it answers, whatever proxy the environment names."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode()
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_REQUEST_SECONDS) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def serve(server: HTTPServer) -> None:
    """Serve until standard input ends, then end the process at once."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_port}), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)
