"""Ask a server over its socket whether it serves: a real connection, without a client library.

The keeper is a small process that must not load psycopg to look after a server, and libpq does not tell
why a connection was refused except in prose. Here the SQLSTATE is read from the server's own answer.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROTOCOL_3 = 196608
_CANNOT_CONNECT_NOW = "57P03"  # starting up, recovering, or shutting down
_NO_SUCH_DATABASE = "3D000"
_SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Answer:
    """A live server's answer to a connection. `pid` and `uid` of the postmaster are the kernel's word."""

    pid: int
    uid: int
    sqlstate: str | None = None
    version: str | None = None

    @property
    def serving(self) -> bool:
        """Whether it accepts sessions, even if not this one (such as with too many of them)."""
        return self.sqlstate not in (_CANNOT_CONNECT_NOW, _SILENT)

    @property
    def lacks_database(self) -> bool:
        """Whether it serves, but has no database of that name."""
        return self.sqlstate == _NO_SUCH_DATABASE


def ask(path: Path, database: str, *, timeout: float = 5.0) -> Answer | None:
    """Connect to the server at `path`; None if nobody listens there. `timeout` is in seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionError):
            return None
        except (TimeoutError, BlockingIOError):  # its queue of connections is full
            return Answer(0, -1, _SILENT)
        pid, uid = _peer(connection)
        try:
            sqlstate, version = _handshake(connection, database)
        except TimeoutError:
            return Answer(pid, uid, _SILENT)
        except ConnectionError:  # it died, or is about to
            return None
        return Answer(pid, uid, sqlstate, version)


def pauses() -> Iterator[float]:
    """Yield the seconds to wait between two questions: short ones, then longer, for each costs the
    server a process, and one that recovers a line in its log as well."""
    pause = 0.005
    while True:
        yield pause
        pause = min(pause * 1.4, 0.25)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that listens: of the postmaster, not of a session."""
    if sys.platform == "linux":
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        pid, uid, _ = struct.unpack("iII", packed)
        return pid, uid
    local, peer_credentials, peer_pid = 0, 1, 2
    (pid,) = struct.unpack("i", connection.getsockopt(local, peer_pid, 4))
    _, uid = struct.unpack("II", connection.getsockopt(local, peer_credentials, 76)[:8])
    return pid, uid


def _handshake(connection: socket.socket, database: str) -> tuple[str | None, str | None]:
    """Log in. Return the SQLSTATE of a refusal, or None when ready, and the server's version."""
    options = f"user\0postgres\0database\0{database}\0\0".encode()
    connection.sendall(struct.pack("!ii", len(options) + 8, _PROTOCOL_3) + options)
    version = None
    while True:
        kind, body = _message(connection)
        if kind == b"Z":
            connection.sendall(b"X" + struct.pack("!i", 4))
            return None, version
        if kind == b"E":
            fields = (field for field in body.split(b"\0") if field)
            return next(f[1:].decode() for f in fields if f[:1] == b"C"), version
        if kind == b"S" and body.startswith(b"server_version\0"):
            version = body.split(b"\0")[1].decode()


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(connection, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], _exactly(connection, length - 4)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        parts += part
    return parts
