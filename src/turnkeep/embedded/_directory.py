"""The directory of an embedded database: its files, its locks, its socket.

Three lock files say who lives. The kernel drops a lock with its holder, whatever killed it, so none of
them can be stale and no process id is ever trusted:

- `users.lock`: each user holds it shared (flock); the keeper waits for it exclusively.
- `keeper.lock`: the keeper holds it (a POSIX lock, for the kernel tells its holder's pid to whoever asks).
- `server.lock`: every process of the server holds it (flock on a descriptor inherited from the postmaster).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnkeep.errors import EmbeddedError

ENVIRONMENT_VARIABLE = "TURNKEEP_EMBEDDED_DIR"
PORT = 5432
_SOCKET_NAME = f".s.PGSQL.{PORT}"
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
# libpq and Postgres both split lists of directories at commas, and treat quotes and "@" specially.
_PLAIN_PATH = re.compile(r"[\w./+-]+")
# struct flock: type, whence, start, length, pid (padded to the size that the kernel copies).
_FLOCK = "hhqqi4x" if sys.platform == "linux" else "qqihh"


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of one embedded database. Nothing in it is touched before `claim`."""

    path: Path

    @classmethod
    def at(cls, directory: Path | str | None) -> Directory:
        """Return the directory asked for, or the default one."""
        chosen = directory or os.environ.get(ENVIRONMENT_VARIABLE)
        try:
            path = Path(chosen).expanduser() if chosen else _default_path()
        except RuntimeError as error:
            raise EmbeddedError(
                f"this user has no home directory for the embedded Postgres ({error}). Name a directory with "
                f"{ENVIRONMENT_VARIABLE}."
            ) from error
        return cls(Path(os.path.realpath(path)))

    @property
    def data(self) -> Path:
        """The cluster itself: what Postgres calls the data directory."""
        return self.path / "data"

    @property
    def logs(self) -> Path:
        """The server's own log files, rotated and pruned."""
        return self.path / "log"

    @property
    def startup_log(self) -> Path:
        """What initdb and the server said before the server opened its own log."""
        return self.path / "startup.log"

    @property
    def keeper_log(self) -> Path:
        """What the keepers said."""
        return self.path / "keeper.log"

    @property
    def failure(self) -> Path:
        """Why the last keeper gave up, for the users that wait for it."""
        return self.path / "failure"

    @property
    def exists(self) -> bool:
        """Whether a database was ever asked for here."""
        try:
            os.stat(self.path / "users.lock")
        except FileNotFoundError:
            return False
        return True

    def claim(self) -> None:
        """Make the directory where it is missing, and refuse one that is somebody else's.

        Directories that exist keep their mode. Raises `EmbeddedError`.
        """
        try:
            _make_directories(self.path)
            status = self.path.stat()
        except OSError as error:
            raise EmbeddedError(
                f"can't use {self.path} for the embedded Postgres: {error}. Pass a directory that you may "
                f"write, or set {ENVIRONMENT_VARIABLE}."
            ) from error
        if status.st_uid != os.geteuid():
            raise EmbeddedError(
                f"{self.path} belongs to uid {status.st_uid}, and this process runs as uid {os.geteuid()}. "
                f"Run as its owner, or choose another directory with {ENVIRONMENT_VARIABLE}."
            )
        entries = set(os.listdir(self.path))
        restored = (self.data / "PG_VERSION").exists()
        if status.st_mode & stat.S_IWOTH:
            raise EmbeddedError(
                f"everybody may write to {self.path}, and so could put a server of their own there: "
                f"`chmod o-w` it, or choose another directory with {ENVIRONMENT_VARIABLE}."
            )
        if entries and "users.lock" not in entries and not restored:
            kind = "a data directory of another Postgres" if "PG_VERSION" in entries else "not empty"
            raise EmbeddedError(
                f"{self.path} is {kind}: the embedded Postgres takes only a directory of its own. "
                f"Choose one that is empty or does not exist, with {ENVIRONMENT_VARIABLE}."
            )

    # -- locks

    def lock_users_shared(self, deadline: float) -> int:
        """Become a user, and return the descriptor that holds the lock.

        Waits until `deadline` (`time.monotonic()`) for a keeper that is just stopping the server.
        """
        while True:
            self.claim()
            try:
                descriptor = self.open_lock("users.lock")
            except FileNotFoundError:  # deleted since
                continue
            if _flock_before(descriptor, fcntl.LOCK_SH, deadline) and self.is_current(descriptor):
                return descriptor
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the embedded Postgres in {self.path} was being stopped, and that did not end in time."
                    + self.log_tail()
                )

    def open_lock(self, name: str) -> int:
        """Open one of the lock files. No other program inherits the descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path / name, flags, 0o600)

    def is_current(self, users_lock: int) -> bool:
        """Whether the directory still is the one in which `users_lock` was opened."""
        try:
            there = os.stat(self.path / "users.lock")
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(users_lock))

    def try_lock_keeper(self, *, wait: bool = False) -> int | None:
        """Become the keeper; None if another process is. With `wait`, wait for that one's end.

        Closing any other descriptor of the file would drop a POSIX lock, hence the keeper never calls
        `keeper`, which opens it.
        """
        descriptor = self.open_lock("keeper.lock")
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):  # POSIX allows either
            os.close(descriptor)
            return None
        return descriptor

    def keeper(self) -> int | None:
        """Return the keeper's pid, from the kernel; 0 if it lives in another pid namespace."""
        try:
            descriptor = os.open(self.path / "keeper.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if sys.platform == "linux":
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            else:
                asked = struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
                _, _, pid, kind, _ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        finally:
            os.close(descriptor)
        return None if kind == fcntl.F_UNLCK else max(int(pid), 0)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise an error of the operating system, such as of a full disk, as `EmbeddedError`."""
        try:
            yield
        except OSError as error:
            raise EmbeddedError(f"the embedded Postgres in {self.path}: {error}") from error

    # -- the socket

    @property
    def socket_directory(self) -> Path:
        """Where the server's socket is: in the directory, or in /tmp if its path is too long for that.

        The same for all users of the directory, whatever their environment. A directory that was deleted
        and made again has another one, for the old server may still be going down.
        """
        inside = self.path / "socket"
        room = len(os.fsencode(inside / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT
        if room and _PLAIN_PATH.fullmatch(str(inside)):
            return inside
        import hashlib  # takes memory that a keeper seldom needs

        lock = os.stat(self.path / "users.lock")
        identity = f"{self.path}\0{lock.st_dev}\0{lock.st_ino}"
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
        return Path("/tmp") / f"turnkeep-{os.geteuid()}-{digest}"  # owner and mode are checked

    @property
    def socket(self) -> Path:
        """The socket itself."""
        return self.socket_directory / _SOCKET_NAME

    def make_socket_directory(self, uid: int, gid: int) -> None:
        """Make the socket's directory, private to `uid` (and to root), empty of leftovers."""
        path = self.socket_directory
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if not private or status.st_uid not in (uid, os.geteuid()):
            raise EmbeddedError(
                f"{path}, where the embedded Postgres keeps its socket, exists and is not private: it has "
                f"owner {status.st_uid} and mode {stat.filemode(status.st_mode)}. Find out who made it and "
                f"remove it, or choose a directory with a shorter path than {self.path}."
            )
        if os.geteuid() == 0:
            os.chown(path, uid, gid, follow_symlinks=False)
        self._clear_socket_directory(path)

    def remove_socket_directory(self) -> None:
        """Remove the socket's directory after the server has gone."""
        path = self.socket_directory
        if path.is_dir():
            self._clear_socket_directory(path)
            path.rmdir()

    @staticmethod
    def _clear_socket_directory(path: Path) -> None:
        for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
            (path / name).unlink(missing_ok=True)

    # -- what was said

    def read_failure(self) -> str | None:
        """Return why the last keeper gave up, if it did."""
        try:
            return self.failure.read_text(encoding="utf-8") or None
        except FileNotFoundError:
            return None

    def data_version(self) -> str | None:
        """Return the major version of Postgres that made the data, if it is such data."""
        try:
            return (self.data / "PG_VERSION").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    def newest_log(self) -> Path | None:
        """Return the log file that the server writes now, or wrote last."""
        try:
            names = sorted(name for name in os.listdir(self.logs) if name.endswith(".log"))
        except FileNotFoundError:
            return None
        return self.logs / names[-1] if names else None

    def log_tail(self) -> str:
        """Return the last lines of the logs, ready to be put behind an error message."""
        parts = []
        for path in (self.startup_log, self.newest_log(), self.keeper_log):
            lines = _last_lines(path, 12) if path else []
            if lines:
                parts.append(f"\n--- {path}\n" + "\n".join(lines))
        return "".join(parts)


def _default_path() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/turnkeep/embedded")
    share = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not share.is_absolute():  # also what the XDG rules say about a relative one
        share = Path.home() / ".local" / "share"
    return share / "turnkeep" / "embedded"


def _make_directories(path: Path) -> None:
    """Make `path` and its missing parents: private, but passable where another user runs the server."""
    own, above = (0o711, 0o755) if os.geteuid() == 0 else (0o700, 0o700)
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        try:
            one.mkdir(0o700)
        except FileExistsError:  # somebody else was faster
            continue
        one.chmod(own if one == path else above)  # whatever the umask is


def _flock_before(descriptor: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
