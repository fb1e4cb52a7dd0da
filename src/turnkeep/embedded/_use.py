"""A process's use of the embedded Postgres, and what is said and done about it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from turnkeep.embedded._directory import PORT, Directory
from turnkeep.embedded._keeper import command, environment
from turnkeep.embedded._programs import find_wheel, user_name
from turnkeep.embedded._server import Process
from turnkeep.embedded._wire import Answer, ask, pauses
from turnkeep.errors import EmbeddedError

DATABASE = "turnkeep"
_STEP = 0.01  # seconds
_KEEPERS = 3  # that may end without saying why, before a user gives up
_KEEPER_LOG_BYTES = 256 * 1024


class EmbeddedPostgres:
    """A process's use of an embedded Postgres, which runs while it has users.

    Made by `start`. Any number of processes, and of objects in one process, may use one directory. A use
    ends with `release`, with the `with` block, or with the process, however that ends; losing the object
    does not end it. A forked child is no user until it calls `ensure`; a spawned one calls `start`.

    `directory` is the database's own directory. `conninfo` is for psycopg: database "turnkeep", user
    "postgres", over a socket that only this operating-system user (and root) can reach.
    """

    directory: Path
    conninfo: str
    _living: ClassVar[set[EmbeddedPostgres]] = set()

    def __init__(self, directory: Directory, users_lock: int, timeout: float) -> None:
        self._directory = directory
        self._users_lock: int | None = users_lock
        self._timeout = timeout
        self._released = False
        self._mutex = threading.Lock()
        self.directory = directory.path
        self._living.add(self)

    @classmethod
    def start(cls, directory: Path | str | None = None, *, timeout: float = 300.0) -> Self:
        """Become a user of the server in `directory`, and return when it serves.

        The directory defaults to $TURNKEEP_EMBEDDED_DIR, else /var/lib/turnkeep/embedded for root, else
        turnkeep/embedded in the user's data directory. What is missing is made; a server that recovers
        from a crash is waited for, up to `timeout` seconds. Raises `EmbeddedError`.
        """
        home = Directory.at(directory)
        deadline = time.monotonic() + timeout
        with home.errors():
            use = cls(home, home.lock_users_shared(deadline), timeout)
            try:
                use._bring_up(deadline)
                use.conninfo = _conninfo(home)
            except BaseException:
                use.release()
                raise
            return use

    def ensure(self) -> None:
        """Bring the server back if it has died or was stopped, and its keeper if that was killed.

        Costs one connection when all is well. Raises `EmbeddedError`, also when the directory has been
        deleted under its users: an empty database in its place would pass for the old one.
        """
        deadline = time.monotonic() + self._timeout
        with self._directory.errors():
            with self._mutex:
                if self._released:
                    raise EmbeddedError(f"this use of the embedded Postgres in {self.directory} was released")
                if self._users_lock is None:  # in a forked child
                    self._users_lock = self._directory.lock_users_shared(deadline)
            self._bring_up(deadline)

    def postmaster_pid(self) -> int:
        """Return the process id of the running server. Raises `EmbeddedError` if none runs."""
        answer = _ask(self._directory, "postgres")
        if answer is None:
            raise EmbeddedError(f"no embedded Postgres runs in {self.directory}; `ensure` starts it")
        return answer.pid

    def release(self) -> None:
        """Stop being a user. The server goes with its last one. More than one call does no harm."""
        with self._mutex:
            self._released = True
            if self._users_lock is not None:
                os.close(self._users_lock)
                self._users_lock = None
        self._living.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<EmbeddedPostgres {str(self.directory)!r}{' released' if self._released else ''}>"

    def _bring_up(self, deadline: float) -> None:
        """Wait until there are a server that serves, its database and a keeper; start what is missing."""
        keepers = 0
        for pause in pauses():
            if self._users_lock is not None and not self._directory.is_current(self._users_lock):
                raise EmbeddedError(
                    f"{self.directory} has been deleted or replaced while it was in use. Restore it from a "
                    "backup, or begin with an empty database by a new start."
                )
            answer = _ask(self._directory, DATABASE)
            missing = answer is not None and answer.lacks_database and not _create_database(self._directory)
            if self._directory.keeper() is None:
                self._start_keeper(keepers)
                keepers += 1
            elif answer is not None and answer.serving and not missing:
                return
            elif time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the embedded Postgres in {self.directory} did not serve in time; it may still be "
                    "recovering from a crash." + self._directory.log_tail()
                )
            else:
                time.sleep(pause)

    def _start_keeper(self, before: int) -> None:
        """Start a keeper, unless `before` others have been started and have said or shown it is in vain."""
        failure = self._directory.read_failure() if before else None
        if failure or before == _KEEPERS:
            raise EmbeddedError(
                failure
                or f"the keeper of the embedded Postgres in {self.directory} ends at once, without a reason."
                + self._directory.log_tail()
            )
        _run_keeper(self._directory, "keep")

    @classmethod
    def _forget_inherited(cls) -> None:
        """In a forked child: close what keeps the parent's uses alive. The parent's locks stay."""
        for use in cls._living:
            use._mutex = threading.Lock()
            if use._users_lock is not None:
                os.close(use._users_lock)
                use._users_lock = None


os.register_at_fork(after_in_child=EmbeddedPostgres._forget_inherited)


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is known of an embedded Postgres from outside.

    `version` is the running server's, or the major version of a stopped one's data; `data_bytes` is what
    the data takes on disk; `server_user` is the system user that runs it. `conninfo` is for any client, as long as
    it runs.
    """

    directory: Path
    running: bool
    postmaster_pid: int | None
    keeper_pid: int | None
    version: str | None
    socket_dir: Path | None
    data_bytes: int
    log_path: Path | None
    server_user: str | None
    conninfo: str | None


def status(directory: Path | str | None = None) -> EmbeddedStatus:
    """Look at the embedded Postgres in `directory` without starting it. Raises `EmbeddedError`."""
    home = Directory.at(directory)
    with home.errors():
        if not home.exists:
            return EmbeddedStatus(home.path, False, None, None, None, None, 0, None, None, None)
        home.claim()  # which refuses what is not ours
        answer = _ask(home, "postgres")
        return EmbeddedStatus(
            directory=home.path,
            running=answer is not None,
            postmaster_pid=answer.pid if answer else None,
            keeper_pid=home.keeper(),
            version=(answer.version if answer else None) or home.data_version(),
            socket_dir=home.socket_directory if answer else None,
            data_bytes=_bytes_below(home.data),
            log_path=home.newest_log() or (home.startup_log if home.startup_log.exists() else None),
            server_user=user_name(home.data.stat().st_uid) if home.data.exists() else None,
            conninfo=_conninfo(home) if answer else None,
        )


def stop(directory: Path | str | None = None, *, timeout: float = 300.0) -> bool:
    """Stop the server in `directory` now, whoever uses it. Returns whether it ran.

    Its users lose their connections, and stay users: it runs again when one of them calls `ensure`, or
    somebody calls `start`, and not before. When this has returned, the directory may be deleted. Raises
    `EmbeddedError` if the server has not gone in `timeout` seconds.
    """
    home = Directory.at(directory)
    with home.errors():
        if not home.exists:
            return False
        home.claim()
        return _stop(home, time.monotonic() + timeout)


def _stop(directory: Directory, deadline: float) -> bool:
    first = _ask(directory, "postgres")
    ran = first is not None
    while True:
        keeper = directory.keeper()
        if keeper is not None:
            ran = True
            _terminate_keeper(directory, keeper, deadline)
        now = _ask(directory, "postgres")
        if now is None or first is None or now.pid != first.pid:  # gone, even if there is a new one
            return ran
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded Postgres in {directory.path} did not stop in time." + directory.log_tail()
            )
        if directory.keeper() is None:
            _run_keeper(directory, "stop")


def _terminate_keeper(directory: Directory, keeper: int, deadline: float) -> None:
    """Tell the keeper to stop the server, and wait for its end."""
    if keeper == 0:
        raise EmbeddedError(f"the embedded Postgres in {directory.path} is kept from another container: stop it there")
    try:
        process = Process(keeper)
    except ProcessLookupError:
        return
    if directory.keeper() == keeper:  # asked again: the handle is the keeper's, for certain
        process.signal(signal.SIGTERM)
    process.close()
    while directory.keeper() == keeper:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the keeper (process {keeper}) of the embedded Postgres in {directory.path} did not stop it "
                "in time." + directory.log_tail()
            )
        time.sleep(_STEP)


def _run_keeper(directory: Directory, mode: str) -> None:
    """Run a keeper's program: in mode "keep" until it is decided who is the keeper, else to its end."""
    log = directory.keeper_log
    if log.exists() and log.stat().st_size > _KEEPER_LOG_BYTES:
        log.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(log, flags, 0o600), "wb") as output:
        ran = subprocess.run(
            command(mode, directory, find_wheel()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            cwd="/",
            env=environment(),
            start_new_session=True,
            check=False,
        )
    if ran.returncode != 0:
        raise EmbeddedError(
            (directory.read_failure() if mode == "stop" else None)
            or f"the keeper of the embedded Postgres in {directory.path} can't be started (exit status "
            f"{ran.returncode})."
            + directory.log_tail()
        )


def _ask(directory: Directory, database: str) -> Answer | None:
    """Ask the server, and trust only an answer from the data's owner or from ourselves."""
    try:
        answer = ask(directory.socket, database)
        if answer is None or answer.uid in (-1, os.geteuid(), directory.data.stat().st_uid):
            return answer
    except FileNotFoundError:  # nothing there yet, or deleted
        return None
    raise EmbeddedError(
        f"a process of user {user_name(answer.uid)} answers on {directory.socket}, and the embedded database "
        f"is not theirs. Find out who made that socket and remove it."
    )


def _create_database(directory: Directory) -> bool:
    """Create the database, or find that somebody else does; False if the server has gone meanwhile."""
    import psycopg

    try:
        with psycopg.connect(_conninfo(directory, "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return True
    except psycopg.OperationalError:
        return False
    return True


def _conninfo(directory: Directory, database: str = DATABASE) -> str:
    # An empty hostaddr keeps PGHOSTADDR of the environment from leading to another server.
    host = directory.socket_directory
    conninfo = f"host={host} port={PORT} hostaddr='' user=postgres dbname={database}"
    owner = user_name(directory.data.stat().st_uid)
    if host.parent != directory.path and not owner.isdigit():
        # In /tmp, anybody could make that directory when the server has gone: libpq asks whose server it is.
        conninfo += f" requirepeer={owner}"
    return conninfo


def _bytes_below(path: Path) -> int:
    """Return the bytes that the files below take on disk. Files come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
