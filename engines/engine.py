"""An engine: a model server of another project, in processes of its own, started and killed on one port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_LOOK_SECONDS = 0.05
_LAST_WORDS = 3000
PORT = "{port}"  # in a command, where the port goes


class Engine:
    """A model server that speaks OpenAI's dialect, on 127.0.0.1. It has the same port however often it is killed.

    `command` starts it, with `PORT` where its port goes. It is ready when `/health` says so. It gets a process group
    of its own, and the whole group is killed: engines that spread over several processes leave orphans otherwise.
    What it prints is in the file `log`.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, *, patience: float) -> None:
        self._command = command
        self._env = {**os.environ, **env}
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._log = log
        # Bound for good, so that no outgoing connection is given the port while the engine is dead.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def log(self) -> str:
        """What all its processes have printed so far."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether it was started and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start the process. It may be long until it is ready; until then it refuses, or says that it loads."""
        if self._process is not None:
            raise RuntimeError("the engine is running")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [part.replace(PORT, str(self.port)) for part in self._command],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it serves. Raises RuntimeError with its last words if it ends, or takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + self._patience
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine is not ready: {self.log[-_LAST_WORDS:]}")
            time.sleep(_LOOK_SECONDS)

    def ready(self) -> bool:
        """Whether it serves."""
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def get(self, path: str) -> bytes:
        """What it answers to a GET. Raises OSError where it doesn't."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            body: bytes = response.read()
        return body

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, at once, and wait for the end of the first."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """End it, and free its port."""
        self.kill()
        self._reserved.close()
