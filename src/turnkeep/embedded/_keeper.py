"""The keeper: a small process that starts the server, watches it, and stops it after its last user.

It is detached from whoever started it and lives as long as the server should. A second one stands by,
waiting for the keeper's lock: should the keeper be killed, the kernel hands the lock on and the other
takes over at once, so that a server is never left with nobody to stop it.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from turnkeep.embedded._directory import Directory
from turnkeep.embedded._programs import ENVIRONMENT
from turnkeep.embedded._server import Server
from turnkeep.errors import EmbeddedError

PROGRAM = Path(__file__).with_name("__main__.py")
_TICK = 1.0  # seconds between two looks whether the directory is still there
_TICK_WITHOUT_HANDLES = 0.2  # the same where the system can't announce a process's death
_TICKS_PER_PRUNING = 30
_STOPS = 3  # of a server that is killed while it is shutting down


def command(mode: str, directory: Directory, wheel: Path) -> list[str]:
    """Return the command line of a keeper: isolated, and without site-packages, for it needs none.

    Modes: `keep` detaches itself and becomes the keeper if there is none; `stand-by` becomes the keeper
    when there is none any more; `stop` stops a server that has no keeper.
    """
    return [sys.executable, "-I", "-S", str(PROGRAM), mode, str(directory.path), str(wheel)]


def environment() -> dict[str, str]:
    """Return what a keeper's Python may need of the caller's environment, whose secrets it would outlive."""
    needed = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "__PYVENV_LAUNCHER__")
    return {**ENVIRONMENT, **{name: os.environ[name] for name in needed if name in os.environ}}


def main(arguments: Sequence[str]) -> int:
    """Run a keeper. Returns its exit status."""
    mode, directory, wheel = arguments
    os.umask(0o077)
    home = Directory(Path(directory))
    if mode == "keep":
        return _keep_detached(home, Path(wheel))
    lock = home.try_lock_keeper(wait=mode == "stand-by")
    if lock is None:
        return 0
    return Keeper(home, Path(wheel), only_stop=mode == "stop").run()


def _keep_detached(directory: Directory, wheel: Path) -> int:
    """Become the keeper in a child. The parent returns once it is decided who is the keeper."""
    decided, decide = os.pipe()
    if os.fork():
        os.close(decide)
        os.read(decided, 1)
        return 0
    os.close(decided)
    lock = directory.try_lock_keeper()
    if lock is None:
        return 0
    os.close(decide)
    return Keeper(directory, wheel).run()


class Keeper:
    """One keeper's life. It holds the keeper's lock until its process ends."""

    def __init__(self, directory: Directory, wheel: Path, *, only_stop: bool = False) -> None:
        self._directory = directory
        self._wheel = wheel
        self._users_lock = directory.open_lock("users.lock")
        self._only_stop = only_stop
        self._stop = only_stop
        self._users_gone = False
        self._woken, self._wake = os.pipe()
        self._standby: subprocess.Popen[bytes] | None = None
        self._server = Server(directory, wheel, self._unwanted)

    def run(self) -> int:
        """Keep the server until it is not wanted any more. Returns the process's exit status."""
        self._directory.failure.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, self._on_terminate)
        threading.Thread(target=self._await_last_user, daemon=True).start()
        try:
            self._keep()
        except (EmbeddedError, OSError) as error:
            self._server.signal(signal.SIGINT)  # it is not left running with nobody to stop it
            reason = str(error) if isinstance(error, EmbeddedError) else self._unexpected(error)
            self._say(reason)
            self._report(reason)
            return 1
        finally:
            # Last, so that it takes over if this process is killed in the middle of a stop.
            self._end_standby()
        return 0

    def _keep(self) -> None:
        server, ticks, stops = self._server, 0, 0
        self._ensure_standby()
        server.bring_up()
        while True:
            if not self._directory.is_current(self._users_lock):
                self._say("the directory has been deleted: ending the server")
                server.drop()
                return
            if not server.alive():
                # Also when it is not wanted any more: only its successor clears its shared memory away.
                self._say("the server died: starting it again")
                server.bring_up()
            elif self._unwanted():
                server.stop()
                stops += 1
                if server.ended_well() or stops == _STOPS:
                    break
            else:
                if ticks % _TICKS_PER_PRUNING == 0:
                    server.prune_logs()
                self._ensure_standby()
                self._wait()
                ticks += 1
        self._directory.remove_socket_directory()

    def _unwanted(self) -> bool:
        return self._stop or self._users_gone

    def _wait(self) -> None:
        """Wait until something happens, or a tick has passed."""
        handle = self._server.postmaster.fileno() if self._server.postmaster else None
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if handle is not None:
            poll.register(handle, select.POLLIN)
        poll.poll(1000 * (_TICK if handle is not None else _TICK_WITHOUT_HANDLES))

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        os.write(self._wake, b"t")

    def _await_last_user(self) -> None:
        """Wait for the lock that every user shares, and keep it: whoever comes now waits for the end."""
        fcntl.flock(self._users_lock, fcntl.LOCK_EX)
        self._users_gone = True
        os.write(self._wake, b"u")

    # -- the one that stands by

    def _ensure_standby(self) -> None:
        if self._only_stop or (self._standby is not None and self._standby.poll() is None):
            return
        try:
            self._standby = subprocess.Popen(
                command("stand-by", self._directory, self._wheel),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=environment(),
                start_new_session=True,
            )
        except OSError as error:  # no memory or no process to spare: no reason to stop a good server
            self._say(f"nobody stands by: {error}")

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.kill()
            self._standby.wait()

    # -- what it says

    def _unexpected(self, error: OSError) -> str:
        return (
            f"the embedded Postgres in {self._directory.path} could not be kept: {error}. Is the disk full "
            "or read-only, or has somebody changed modes below the directory?" + self._directory.log_tail()
        )

    def _report(self, reason: str) -> None:
        """Leave the reason for the users, whole or not at all."""
        new = self._directory.failure.with_suffix(f".new-{os.getpid()}")
        new.write_text(reason, encoding="utf-8")
        new.rename(self._directory.failure)

    def _say(self, text: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        print(f"{now} UTC keeper {os.getpid()}: {text}", file=sys.stderr, flush=True)
