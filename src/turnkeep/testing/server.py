"""The scripted model server as tests use it: started, watched, killed, and started again on its port."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from turnkeep.testing._child import asked, ended, started
from turnkeep.testing.script import Exchange, Json, Logged, dump, read_log


class ModelServer:
    """A model server that answers by a script, in a process of its own, on 127.0.0.1.

    As a context manager it runs until the end of the block. It has the same port and the same log however often it
    is killed and started. `first_token_seconds` and `token_seconds` count instead of every reply's own, as with `pace`.
    Raises ValueError for a script of which a part could never be used.
    """

    def __init__(
        self,
        script: Sequence[Exchange],
        *,
        port: int = 0,
        first_token_seconds: float | None = None,
        token_seconds: float | None = None,
    ) -> None:
        self.port = port
        self._script = dump(script)
        self._pace: Json = {"first_token_seconds": first_token_seconds, "token_seconds": token_seconds}
        self._reserved: socket.socket | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_log = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # -- life

    def start(self) -> None:
        """Start the process, or start it again after a kill. Returns once it listens."""
        if self._running() is not None:
            raise RuntimeError("the model server is running")
        self._discard_process()
        self._reserve_port()
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="turnkeep-model-")
            Path(self._directory.name, "script.json").write_text(self._script)
        self._process, port = started(self._command(Path(self._directory.name)))
        if port is None:
            self.stop()
            raise RuntimeError("the model server ended before it listened: its standard error says why")
        self.port = port

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        if (process := self._running()) is not None:
            process.kill()
        self._discard_process()

    def stop(self) -> None:
        """End the process. What it has logged can still be asked for; `start` would begin a new log."""
        self._discard_process()
        if self._directory is not None:
            self._last_log = self._log_text()
            self._directory.cleanup()
            self._directory = None
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    # -- what it did and does

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """The process's id. Raises RuntimeError if it is not running."""
        if (process := self._running()) is None:
            raise RuntimeError("the model server is not running")
        return process.pid

    @property
    def requests(self) -> list[Json]:
        """The body of every request, in the order they came; each is here before anything of its reply is sent."""
        return list(self._logged().requests)

    @property
    def finished(self) -> int:
        """How many replies were sent whole. One is counted a moment after its end was sent."""
        return self._logged().finished

    def status(self) -> Json:
        """Return what goes on: `streaming`, `answered`, `requests`, `users`, `chunks`.

        `streaming` counts the replies that are under way, from their request until their end or until their client
        went away; `users` has their user texts, and `chunks` how many chunks of each are sent.
        """
        return asked(self.port, "/status")

    def pace(self, *, first_token_seconds: float | None = None, token_seconds: float | None = None) -> None:
        """Set the seconds that count from now on instead of every reply's own; None: its own again.

        A reply that is waiting at the moment goes by the new ones too. They hold over a kill.
        """
        self._pace = {"first_token_seconds": first_token_seconds, "token_seconds": token_seconds}
        if self._running() is not None:
            asked(self.port, "/pace", self._pace)

    def _command(self, directory: Path) -> list[str]:
        command = ["turnkeep.testing.model_server", "--port", str(self.port)]
        command += ["--script", str(directory / "script.json"), "--log", str(directory / "log.jsonl")]
        for name, seconds in self._pace.items():
            if seconds is not None:
                command += [f"--{name.replace('_', '-')}", str(seconds)]
        return command

    def _reserve_port(self) -> None:
        """Keep the port bound, so that no outgoing connection is given it while the process is dead.

        Only Linux lets the process bind and listen on a port that is bound elsewhere.
        """
        if self._reserved is None and sys.platform == "linux":
            reserved = socket.socket()
            try:
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.bind(("127.0.0.1", self.port))
            except OSError:
                reserved.close()
                raise
            self._reserved = reserved
            self.port = reserved.getsockname()[1]

    def _running(self) -> subprocess.Popen[bytes] | None:
        return self._process if self._process is not None and self._process.poll() is None else None

    def _discard_process(self) -> None:
        if self._process is not None:
            ended(self._process)
            self._process = None

    def _log_text(self) -> str:
        if self._directory is None:
            return self._last_log
        log = Path(self._directory.name, "log.jsonl")
        return log.read_text() if log.exists() else ""

    def _logged(self) -> Logged:
        return read_log(self._log_text())
