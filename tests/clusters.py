"""Clusters of any version, each in a directory of its own: made, started, copied to a standby, promoted, killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from turnkeep.embedded._directory import Directory
from turnkeep.embedded._programs import ENVIRONMENT, Programs, ServerUser, find_wheel

PORT = 5432
PATIENCE = 60.0
ROOT = Path(__file__).parents[1]
# Where Debian's packages and `make postgres-versions` put theirs.
_INSTALLED = ("/usr/lib/postgresql", str(ROOT / ".postgres"))
_SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "100",
    "shared_buffers": "'64MB'",
    "max_wal_size": "'256MB'",
}


def installed() -> dict[str, Path]:
    """The directories that have a `bin` with a Postgres other than the embedded one, by major version."""
    homes = [path.parents[1] for place in _INSTALLED for path in sorted(Path(place).glob("*/bin/postgres"))]
    return {home.name: home for home in reversed(homes)}


@contextmanager
def room() -> Iterator[Path]:
    """A new directory that every user may pass: Postgres does not run as root."""
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-cluster-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


class Cluster:
    """One cluster below a directory, on a Unix socket there; by default of the embedded Postgres' version."""

    def __init__(self, directory: Path, home: Path | None = None) -> None:
        self.home = home or find_wheel()
        self.directory = directory
        self.data = directory / "data"
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        user = ServerUser.of(Directory(directory))
        self._programs = Programs.reachable(self.home, Directory(directory), user)

    @property
    def conninfo(self) -> str:
        """How it is reached."""
        return make_conninfo(host=str(self.directory), port=PORT, user="postgres", dbname="postgres")

    @property
    def program(self) -> Path:
        """The directory of its programs."""
        return self._programs.home / "bin"

    def initialise(self, **settings: str) -> None:
        """Make it, with these settings beside the usual ones."""
        self._own_directories()
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.configure(**{**_SETTINGS, **settings})

    def configure(self, **settings: str) -> None:
        """Append settings, written as in the file."""
        own = {"unix_socket_directories": f"'{self.directory}'", "port": str(PORT)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in {**own, **settings}.items())

    def start(self) -> None:
        """Start it and wait until it serves."""
        log = str(self.data / "server.log")
        self.run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-t", "60", "start")

    def stop(self) -> None:
        """Shut it down, if it runs."""
        if (self.data / "postmaster.pid").exists():
            self.run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "-t", "60", "stop")

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is one."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "promote")

    def standby(self, directory: Path) -> Cluster:
        """A copy that follows this cluster, not started. It calls itself by its directory's name."""
        copy = Cluster(directory, self._programs.home)
        copy._own_directories()
        primary = f"{self.conninfo} application_name={directory.name}"
        self.run("pg_basebackup", "-D", str(copy.data), "-d", primary, "-R", "-X", "stream", "-c", "fast")
        (copy.data / "server.log").unlink(missing_ok=True)
        copy.configure()
        return copy

    def backup(self, directory: Path) -> Path:
        """A base backup in a directory below one that its user may write to, without the log of what came meanwhile."""
        self.run(
            "pg_basebackup", "-D", str(directory), "-d", self.conninfo, "-X", "none", "-c", "fast", "--no-manifest"
        )
        return directory

    def recovered(self, backup: Path, directory: Path, archive: Path, **target: str) -> Cluster:
        """A cluster made of a base backup and an archive of the log, started, up to a target, and taking writes."""
        copy = Cluster(directory, self._programs.home)
        copy._own_directories()
        copy.run("cp", "-a", f"{backup}/.", str(copy.data))
        (copy.data / "server.log").unlink(missing_ok=True)
        copy.configure(
            archive_mode="off",
            restore_command=f"'cp {archive}/%f %p'",
            recovery_target_action="'promote'",
            **{name: f"'{value}'" for name, value in target.items()},
        )
        copy.run("touch", str(copy.data / "recovery.signal"))
        copy.start()
        deadline = time.monotonic() + PATIENCE
        while copy.rows("SELECT pg_is_in_recovery()") != [(False,)]:
            assert time.monotonic() < deadline, (copy.data / "server.log").read_text()
            time.sleep(0.01)
        return copy

    def kill(self) -> None:
        """Kill -9 the postmaster and all its children, and see that they have gone."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # so that it makes no more children
        family = [postmaster, *_children(postmaster)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(_lives(pid) for pid in family):
            assert time.monotonic() < deadline, f"processes {family} do not end"
            time.sleep(0.003)
        # A postmaster that nobody has reaped yet would pass for a live one.
        for left in (self.data / "postmaster.pid", self.directory / f".s.PGSQL.{PORT}.lock"):
            left.unlink(missing_ok=True)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of its programs as its user."""
        user = self._programs.user
        with tempfile.TemporaryFile() as said:
            code = subprocess.run(
                [str(path) if (path := self.program / program).exists() else program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,  # a file: a server that goes on would keep a pipe open
                stderr=said,
                check=False,
                cwd="/",
                env=ENVIRONMENT,
                user=user.uid if user.switch else None,
                group=user.gid if user.switch else None,
                extra_groups=[] if user.switch else None,
            ).returncode
            said.seek(0)
            log = self.data / "server.log"
            assert code == 0, f"{program}: {said.read().decode()} {log.read_text() if log.exists() else ''}"

    def rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        """The rows of a query there."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def _own_directories(self) -> None:
        self.data.mkdir(0o700)
        if self._programs.user.switch:
            for path in (self.directory, self.data):
                os.chown(path, self._programs.user.uid, self._programs.user.gid)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = entry.read_text().partition(" (")
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found.append(int(pid))
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
