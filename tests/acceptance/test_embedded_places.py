"""The embedded Postgres says where it can't live and why, and leaks nothing to other users."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import turnkeep
from tests.acceptance.embedded_users import SOURCE, User, mode, passable, processes, stopped_at_end, until
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.embedded._directory import Directory
from turnkeep.errors import EmbeddedError


@pytest.fixture(scope="module")
def above() -> Iterator[Path]:
    with passable() as path:
        yield path


@pytest.fixture
def place(above: Path) -> Iterator[Path]:
    """A stopped database."""
    directory = above / "db"
    EmbeddedPostgres.start(directory).release()
    stop(directory)
    with stopped_at_end(directory):
        yield directory


@pytest.fixture
def new_place(above: Path) -> Iterator[Path]:
    """A directory to be. Nothing may be left running in it."""
    directory = above / "new"
    yield directory
    assert processes(directory) == []
    shutil.rmtree(directory)


def select(use: EmbeddedPostgres, statement: str) -> tuple[object, ...]:
    with psycopg.connect(use.conninfo) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row
    return row


def test_it_is_durable_in_utf8_and_listens_on_a_private_socket_only(place: Path) -> None:
    with EmbeddedPostgres.start(place) as use:
        assert select(
            use,
            "SELECT current_setting('fsync'), current_setting('synchronous_commit'),"
            " current_setting('full_page_writes'), current_setting('listen_addresses'),"
            " current_setting('server_encoding'), current_database()::text, current_user::text",
        ) == ("on", "on", "on", "", "UTF8", "turnkeep", "postgres")
        assert mode(place / "socket") == 0o700
        assert mode(place / "data") == 0o700
        assert mode(place / "log") == 0o700
        assert mode(place) in (0o700, 0o711)
        files = [path for path in place.iterdir() if path.is_file()]
        assert {path.name: mode(path) for path in files} == {path.name: 0o600 for path in files}


def test_status_tells_about_a_running_a_stopped_and_no_server(new_place: Path) -> None:
    none = status(new_place)
    assert (none.running, none.version, none.data_bytes, none.keeper_pid) == (False, None, 0, None)
    assert not new_place.exists()
    with EmbeddedPostgres.start(new_place) as use:
        running = status(new_place)
        assert running.running
        assert running.postmaster_pid == use.postmaster_pid()
        assert running.keeper_pid in processes(new_place, "keep")
        assert running.socket_dir == new_place / "socket"
        assert running.version
        assert running.version.startswith("18.")
        assert running.data_bytes > 10_000_000
        assert running.log_path
        assert running.log_path.parent == new_place / "log"
        assert running.server_user != "root"
        assert running.conninfo == use.conninfo
    stop(new_place)
    stopped = status(new_place)
    assert (stopped.running, stopped.version, stopped.socket_dir, stopped.conninfo) == (False, "18", None, None)
    with pytest.raises(EmbeddedError, match="no embedded Postgres runs"):
        use.postmaster_pid()


def test_the_environment_does_not_lead_elsewhere(place: Path) -> None:
    misleading = {
        "PGHOST": "192.0.2.1",
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "1",
        "PGDATA": "/nowhere",
        "PGDATABASE": "nothing",
        "PGUSER": "nobody",
        "LC_ALL": "xx_XX",
        "TMPDIR": "/nowhere",
        "PYTHONPATH": f"/nowhere:{SOURCE}",
    }
    user = User(place, environment=misleading)
    user.do("start")
    assert user.sql("SELECT current_database()") == [["turnkeep"]]
    user.kill()


def test_the_directory_comes_from_the_environment(place: Path) -> None:
    user = User(None, environment={"TURNKEEP_EMBEDDED_DIR": str(place)})
    user.do("start")
    assert user.do("directory") == str(place)
    user.kill()


def test_a_long_path_and_an_odd_one_get_a_private_socket_in_tmp(above: Path) -> None:
    for directory in (above / ("long" * 30) / "db", above / "odd, 'name' @\u00e9"):
        with EmbeddedPostgres.start(directory) as use:
            sockets = status(directory).socket_dir
            assert sockets
            assert sockets.parent == Path("/tmp")
            assert mode(sockets) == 0o700
            assert select(use, "SELECT 1") == (1,)
            assert f"requirepeer={status(directory).server_user}" in use.conninfo
        stop(directory)
        assert not sockets.exists()


def test_a_socket_directory_made_by_somebody_else_is_refused(above: Path) -> None:
    directory = Directory(above / ("long" * 30) / "db")
    directory.claim()
    os.close(directory.open_lock("users.lock"))
    made = directory.socket_directory
    made.mkdir()
    made.chmod(0o777)
    try:
        with pytest.raises(EmbeddedError, match=f"{made}.*not private"):
            EmbeddedPostgres.start(directory.path)
        assert mode(made) == 0o777
    finally:
        made.rmdir()
    with EmbeddedPostgres.start(directory.path):
        assert mode(made) == 0o700
    stop(directory.path)


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(new_place: Path) -> None:
    new_place.mkdir()
    (new_place / "thesis.tex").touch()
    with pytest.raises(EmbeddedError, match="not empty"):
        EmbeddedPostgres.start(new_place)
    assert os.listdir(new_place) == ["thesis.tex"]


def test_restored_data_are_taken(place: Path, new_place: Path) -> None:
    new_place.mkdir()
    new_place.chmod(0o755)
    subprocess.run(["cp", "-a", str(place / "data"), str(new_place)], check=True)
    with EmbeddedPostgres.start(new_place) as use:
        assert select(use, "SELECT 1") == (1,)
    stop(new_place)


def test_a_directory_that_everybody_may_write_is_refused(new_place: Path) -> None:
    new_place.mkdir()
    new_place.chmod(0o777)
    with pytest.raises(EmbeddedError, match="chmod o-w"):
        EmbeddedPostgres.start(new_place)
    new_place.chmod(0o755)


def test_data_of_another_major_version_is_refused_with_both_named(place: Path) -> None:
    version = place / "data" / "PG_VERSION"
    made_by = version.read_text()
    version.write_text("15\n")
    with pytest.raises(EmbeddedError, match=r"made by Postgres 15,.* is Postgres 18\. .*ump the database"):
        EmbeddedPostgres.start(place)
    version.write_text(made_by)


def test_a_server_that_does_not_come_up_says_why(place: Path) -> None:
    settings = place / "data" / "postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "no_such_setting = 1\n")
    for _ in range(2):
        with pytest.raises(EmbeddedError, match=r'(?s)^the embedded .* times while starting.*"no_such_setting"'):
            EmbeddedPostgres.start(place)
    settings.write_text(good)
    EmbeddedPostgres.start(place).release()


def test_a_start_that_takes_too_long_says_so_and_is_no_user_any_more(new_place: Path) -> None:
    with pytest.raises(EmbeddedError, match="did not serve in time"):
        EmbeddedPostgres.start(new_place, timeout=0)
    stop(new_place)
    assert processes(new_place) == []


def test_old_logs_are_removed(place: Path) -> None:
    for day in range(10):
        (place / "log" / f"postgres-2000010{day}-000000.log").touch()
    with EmbeddedPostgres.start(place):
        until(lambda: len(list((place / "log").glob("*.log"))) == 4, "the removal of the oldest logs")
        assert not (place / "log" / "postgres-20000105-000000.log").exists()


def test_a_dropped_database_is_made_again(place: Path) -> None:
    with EmbeddedPostgres.start(place) as use:
        admin = use.conninfo.replace("dbname=turnkeep", "dbname=postgres")
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("DROP DATABASE turnkeep")
        use.ensure()
        assert select(use, "SELECT 1") == (1,)


def test_many_sessions_do_not_pass_for_a_dead_server(place: Path) -> None:
    with EmbeddedPostgres.start(place) as use:
        postmaster = use.postmaster_pid()
        sessions = [psycopg.connect(use.conninfo) for _ in range(100)]
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(use.conninfo)
        use.ensure()
        assert use.postmaster_pid() == postmaster
        for session in sessions:
            session.close()


def test_the_keeper_loads_no_database_driver_and_importing_loads_none(place: Path) -> None:
    code = "import sys; sys.modules['psycopg'] = None; sys.modules['turnkeep'] = type(sys)('turnkeep');"
    code += f"sys.modules['turnkeep'].__path__ = [{str(Path(turnkeep.__file__).parent)!r}];"
    code += "import turnkeep.embedded, turnkeep.embedded._keeper"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
