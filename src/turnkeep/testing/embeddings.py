"""A server of embeddings as tests use it: it gives each text the same vector always, and fails as it is told."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnkeep.testing.vectors import BEHAVIOUR, MODEL

_STOP_SECONDS = 10.0
_REQUEST_SECONDS = 30.0


class EmbeddingServer:
    """A server that speaks OpenAI's `/v1/embeddings`, in a process of its own, on 127.0.0.1.

    Texts that share words get vectors near each other. As a context manager it runs until the end of the block.
    It keeps its port and its log however often it is killed and started. What it does, beside answering, is set here or
    by `behave`: `dimensions`; `status` of every answer, with `retry_after`; words whose texts are `refused` with
    `refused_status`, are `silencing` (the connection is cut), or get a vector that is `nan` or `zero`; and whether
    answers are `held`. Raises ValueError for what it can't do.
    """

    model = MODEL

    def __init__(self, *, port: int = 0, **behaviour: Any) -> None:
        self.port = port
        self._behaviour: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._keep(behaviour)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[list[str]]:
        """The texts of every request, in the order they came."""
        log = self._log()
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def waiting(self) -> int:
        """How many requests are held."""
        return int(self._ask("/", None)["waiting"])

    def behave(self, **behaviour: Any) -> None:
        """Change what it does from now on, over a kill too."""
        self._keep(behaviour)
        self._ask("/behave", behaviour)

    def start(self) -> None:
        """Start the process, or start it again after a kill. Returns once it listens."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="turnkeep-embeddings-")
        command = [sys.executable, "-P", "-m", "turnkeep.testing.embedding_process", "--port", str(self.port)]
        command += ["--log", str(self._log()), "--behaviour", json.dumps(self._behaviour)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._process = process
        assert process.stdout is not None
        with process.stdout as said:
            line = said.readline()
        if not line:
            self.stop()
            raise RuntimeError("the server of embeddings ended before it listened: its standard error says why")
        self.port = json.loads(line)["port"]

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def stop(self) -> None:
        """End the process, and forget its log."""
        self._reap()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _keep(self, behaviour: dict[str, Any]) -> None:
        if unknown := sorted(behaviour.keys() - BEHAVIOUR.keys()):
            raise ValueError(f"{unknown[0]}: no such behaviour; there are {', '.join(BEHAVIOUR)}")
        self._behaviour.update(behaviour)

    def _log(self) -> Path:
        if self._directory is None:
            raise RuntimeError("the server of embeddings is not running")
        return Path(self._directory.name, "log.jsonl")

    def _reap(self) -> None:
        if (process := self._process) is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        with direct.open(request, timeout=_REQUEST_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
        return answer
