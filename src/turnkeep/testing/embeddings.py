"""A server of embeddings as tests use it: it gives each text the same vector always, and fails as it is told."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnkeep.testing._child import asked, ended, started
from turnkeep.testing.vectors import BEHAVIOUR, MODEL


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
        return int(asked(self.port, "/")["waiting"])

    def behave(self, **behaviour: Any) -> None:
        """Change what it does from now on, over a kill too."""
        self._keep(behaviour)
        asked(self.port, "/behave", behaviour)

    def start(self) -> None:
        """Start the process, or start it again after a kill. Returns once it listens."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="turnkeep-embeddings-")
        command = ["turnkeep.testing.embedding_process", "--port", str(self.port), "--log", str(self._log())]
        self._process, port = started([*command, "--behaviour", json.dumps(self._behaviour)])
        if port is None:
            self.stop()
            raise RuntimeError("the server of embeddings ended before it listened: its standard error says why")
        self.port = port

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
        if self._process is not None:
            ended(self._process)
            self._process = None
