"""A real pgbouncer in transaction mode, before a server that listens on a Unix socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PORT = 6432
_SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"
_PATIENCE = 60.0


class PgBouncer:
    """One pgbouncer, listening on a private Unix socket. Started and stopped as a context manager."""

    def __init__(self, server_dsn: str, *, pool_size: int, settings: Mapping[str, str] | None = None) -> None:
        program = shutil.which("pgbouncer", path=_SEARCHED)
        assert program, "the tests need pgbouncer: apt-get install pgbouncer"
        self._program = program
        self._server = conninfo_to_dict(server_dsn)
        self._pool_size = pool_size
        self._settings = settings or {}
        self._directory = Path(tempfile.mkdtemp(prefix="turnkeep-pgbouncer-"))
        self._process: subprocess.Popen[bytes] | None = None
        # It refuses to be root, and has to get at the server's socket: the server's own user can do both.
        status = Path(str(self._server["host"])).stat()
        self._user: int | None = status.st_uid if os.geteuid() == 0 else None
        self._group: int | None = status.st_gid if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        settings: dict[str, object] = {
            "listen_addr": "",
            "listen_port": _PORT,
            "unix_socket_dir": self._directory,
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": self._pool_size,
            "max_client_conn": 200,
            "server_login_retry": 1,
            **self._settings,
        }
        lines = ["[databases]", f"* = host={self._server['host']} port={self._server['port']} user=postgres"]
        lines += ["[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        (self._directory / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        if self._user is not None and self._group is not None:
            os.chown(self._directory, self._user, self._group)
            os.chown(self._directory / "pgbouncer.ini", self._user, self._group)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._directory)

    def start(self) -> None:
        """Start it, and wait until it takes clients."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._directory / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._group,
                extra_groups=None if self._user is None else [],
            )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.dsn("pgbouncer"), autocommit=True).close()
            except psycopg.OperationalError:
                said = (self._directory / "log").read_text()
                assert self._process.poll() is None, f"pgbouncer ended: {said}"
                assert time.monotonic() < deadline, f"pgbouncer does not answer: {said}"
                time.sleep(0.01)
            else:
                return

    def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def dsn(self, database: str | None = None) -> str:
        """The conninfo of a database through it."""
        name = database or str(self._server["dbname"])
        return make_conninfo(host=str(self._directory), port=_PORT, hostaddr="", user="postgres", dbname=name)
