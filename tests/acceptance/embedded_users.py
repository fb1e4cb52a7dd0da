"""Processes that use an embedded Postgres, for the tests to drive, to look at and to kill."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from turnkeep.embedded import EmbeddedPostgres, status, stop

T = TypeVar("T")
PATIENCE = 60.0  # seconds until an awaited state is given up
PROGRAM = Path(__file__).with_name("embedded_user.py")
SOURCE = PROGRAM.parents[2] / "src"


def until(look: Callable[[], T | None], what: str) -> T:
    """Return the first true answer of `look`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"never came: {what}")


class User:
    """Another process that uses the directory. Every method but `kill` waits for its answer."""

    def __init__(
        self,
        directory: Path | None,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        uid: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [python, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd="/",
            env={**os.environ, **(environment or {})},
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        self._write(str(directory or ""))

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def begin(self, *command: object) -> None:
        """Give it a command; `answer` waits for what comes of it."""
        self._write(json.dumps(command))

    def answer(self) -> Any:
        """Return what the last command gave, or raise what it raised, as AssertionError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the user has died: {self.process.wait()}"
        kind, value = json.loads(line)
        assert kind == "done", value
        return value

    def do(self, *command: object) -> Any:
        """Give it a command and return what it gave."""
        self.begin(*command)
        return self.answer()

    def sql(self, statement: str) -> list[Any]:
        """Run a statement on a connection of its own and return the rows."""
        rows: list[Any] = self.do("sql", statement)
        return rows

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Remains:
    """What the server of a directory has in the system, looked at while it runs."""

    def __init__(self, directory: Path, postmaster: int) -> None:
        self._directory = directory
        maps = Path(f"/proc/{postmaster}/maps").read_text().splitlines()
        fields = [line.split(maxsplit=5) for line in maps]
        named = [(parts[4], parts[5]) for parts in fields if len(parts) == 6]
        self._segments = {inode for inode, name in named if name.startswith("/SYSV")}
        self._shared = {Path(name) for _, name in named if name.startswith("/dev/shm/")}
        assert self._segments, "Postgres always has a System V segment"

    def left(self) -> list[str]:
        """Return what is still there: processes and shared memory."""
        segments = {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
        return [
            *(f"process {pid}" for pid in processes(self._directory)),
            *(f"segment {one}" for one in self._segments & segments),
            *(str(one) for one in self._shared if one.exists()),
        ]


def processes(directory: Path, *words: str) -> list[int]:
    """Return the living processes that keep or serve the directory, and have `words` as arguments."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            arguments = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
            mentioned = any(one == str(directory) or one.startswith(f"{directory}/") for one in arguments)
            working = os.readlink(f"/proc/{entry}/cwd") == str(directory / "data")
            if (mentioned or working) and set(words) <= set(arguments) and alive(int(entry)):
                found.append(int(entry))
    return found


def keepers(directory: Path) -> list[int]:
    """Return the keeper and the one that stands by."""
    return [*processes(directory, "keep"), *processes(directory, "stand-by")]


def alive(pid: int) -> bool:
    """Whether a process lives. A zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def kill(*pids: int) -> None:
    """Kill -9, all at once, and wait until they are dead. Each may have died by itself."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), f"the death of {pids}")


@contextlib.contextmanager
def passable() -> Iterator[Path]:
    """Make a directory through which also an unprivileged user may pass, and remove it."""
    path = Path(tempfile.mkdtemp(prefix="turnkeep-embedded-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def stopped_at_end(directory: Path) -> Iterator[Path]:
    """Stop the server of a directory at the end; nothing may be left running."""
    yield directory
    stop(directory)
    assert processes(directory) == []


@contextlib.contextmanager
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """Start a server that may be killed, in a directory of its own."""
    with passable() as above, stopped_at_end(above / "postgres") as directory, EmbeddedPostgres.start(directory) as use:
        yield use


@contextlib.contextmanager
def using(directory: Path) -> Iterator[Callable[[], User]]:
    """Give what makes a process that uses the directory, and kill all that were made."""
    made: list[User] = []

    def make() -> User:
        made.append(User(directory))
        return made[-1]

    yield make
    for user in made:
        user.kill()


def is_gone(directory: Path, remains: Remains) -> None:
    """Wait until nothing of the server is left, and no way to it."""
    try:
        until(lambda: not remains.left(), "the end of the server's processes and shared memory")
    except AssertionError as error:
        raise AssertionError(f"left: {remains.left()}") from error
    assert not (directory / "socket").exists()


def serves(user: User) -> bool:
    """Whether the user gets a session, without doing anything for it."""
    try:
        return bool(user.sql("SELECT true"))
    except AssertionError:
        return False


def table(user: User) -> None:
    """Commit one row."""
    user.sql("CREATE TABLE IF NOT EXISTS said (text text)")
    user.sql("TRUNCATE said")
    user.sql("INSERT INTO said VALUES ('committed')")


def keeper_stops(directory: Path) -> bool:
    """Whether the keeper has the users' lock for itself."""
    with (directory / "users.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def kill_keepers(directory: Path, *others: int) -> None:
    """Kill the keeper and the one that stands by, neither of which gets to do anything about it."""
    until(lambda: len(keepers(directory)) == 2, "a keeper and one that stands by")
    keeper = status(directory).keeper_pid
    assert keeper
    os.kill(keeper, signal.SIGSTOP)
    kill(*(pid for pid in keepers(directory) if pid != keeper))
    kill(keeper, *others)


def mode(path: Path) -> int:
    """Return a file's permission bits."""
    return stat.S_IMODE(path.lstat().st_mode)
