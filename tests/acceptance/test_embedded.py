"""The embedded Postgres lives while it has users: whatever is killed, whoever comes or goes."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.embedded_users import Remains, User, alive, keepers, kill, processes, until
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.embedded._programs import find_wheel
from turnkeep.errors import EmbeddedError

Users = Callable[[], User]


@pytest.fixture(scope="module")
def above() -> Iterator[Path]:
    """A directory through which also an unprivileged user may pass."""
    path = Path(tempfile.mkdtemp(prefix="turnkeep-embedded-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["used"])
def place(above: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory that was used before, stopped, or a new one. Nothing may be left running in it."""
    directory = above / request.param
    yield directory
    stop(directory)
    assert processes(directory) == []
    if request.param == "new":
        shutil.rmtree(directory, ignore_errors=True)


new_place = pytest.mark.parametrize("place", ["new"], indirect=True)


@pytest.fixture
def users(place: Path) -> Iterator[Users]:
    """Make a process that uses the directory."""
    made = []

    def make() -> User:
        made.append(User(place))
        return made[-1]

    yield make
    for user in made:
        user.kill()


def is_gone(place: Path, remains: Remains) -> None:
    """Wait until nothing of the server is left, and no way to it."""
    try:
        until(lambda: not remains.left(), "the end of the server's processes and shared memory")
    except AssertionError as error:
        raise AssertionError(f"left: {remains.left()}") from error
    assert not (place / "socket").exists()


def serves(user: User) -> bool:
    """Whether the user gets a session, without doing anything for it."""
    try:
        return bool(user.sql("SELECT true"))
    except AssertionError:
        return False


def table(user: User) -> None:
    user.sql("CREATE TABLE IF NOT EXISTS said (text text)")
    user.sql("TRUNCATE said")
    user.sql("INSERT INTO said VALUES ('committed')")


# -- users come and go


def test_two_processes_share_one_server_which_outlives_the_first(place: Path, users: Users) -> None:
    first, second = users(), users()
    assert first.do("start") == second.do("start")
    postmaster = first.do("postmaster")
    table(first)
    first.kill()
    assert second.sql("SELECT * FROM said") == [["committed"]]
    assert second.do("postmaster") == postmaster


def test_killing_the_last_user_stops_the_server_and_leaves_nothing(place: Path, users: Users) -> None:
    first, second = users(), users()
    first.do("start")
    second.do("start")
    remains = Remains(place, first.do("postmaster"))
    first.kill()
    assert remains.left()
    second.kill()
    is_gone(place, remains)
    assert status(place).running is False


def test_releasing_the_last_use_stops_the_server(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    user.do("start")
    remains = Remains(place, user.do("postmaster"))
    user.do("release")
    assert serves(user)
    user.do("release")
    is_gone(place, remains)


@new_place
def test_eight_processes_start_at_once_on_an_empty_directory(place: Path, users: Users) -> None:
    crowd = [users() for _ in range(8)]
    for user in crowd:
        user.begin("start")
    assert len({user.answer() for user in crowd}) == 1
    assert len({user.do("postmaster") for user in crowd}) == 1
    until(lambda: len(keepers(place)) == 2, "one keeper and one that stands by, of all that were tried")


def test_a_user_arriving_when_the_last_one_goes_gets_service(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    for _ in range(6):
        arriving = users()
        arriving.do("status")  # it has loaded everything
        user.kill()
        arriving.do("start")
        assert arriving.sql("SELECT * FROM said") == [["committed"]]
        user = arriving


def test_a_user_arriving_while_the_keeper_stops_the_server_waits_for_the_next(place: Path, users: Users) -> None:
    user, arriving = users(), users()
    user.do("start")
    table(user)
    postmaster = user.do("postmaster")
    arriving.do("status")
    os.kill(postmaster, signal.SIGSTOP)
    user.kill()
    until(lambda: keeper_stops(place), "the keeper's stopping the server")
    arriving.begin("start")
    os.kill(postmaster, signal.SIGCONT)
    arriving.answer()
    assert arriving.sql("SELECT * FROM said") == [["committed"]]
    assert arriving.do("postmaster") != postmaster


def test_a_forked_child_and_a_spawned_program_are_no_users(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    remains = Remains(place, user.do("postmaster"))
    children = [user.do("fork", False), user.do("spawn")]
    user.kill()
    is_gone(place, remains)
    assert all(alive(child) for child in children)
    kill(*children)


def test_a_forked_child_becomes_a_user_by_ensure(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    postmaster = user.do("postmaster")
    remains = Remains(place, postmaster)
    child = user.do("fork", True)
    user.kill()
    for _ in range(5):
        with EmbeddedPostgres.start(place) as use:
            assert use.postmaster_pid() == postmaster
    kill(child)
    is_gone(place, remains)


# -- processes are killed


def test_a_killed_postmaster_comes_back_by_itself_with_what_was_committed(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    remains = Remains(place, user.do("postmaster"))
    for _ in range(3):
        postmaster = user.do("postmaster")
        kill(postmaster)
        until(lambda: serves(user), "the server, by itself")
        assert user.sql("SELECT * FROM said") == [["committed"]]
        assert user.do("postmaster") != postmaster
    user.kill()
    is_gone(place, remains)


def test_a_process_that_outlives_its_postmaster_does_not_keep_the_next_away(place: Path, users: Users) -> None:
    user, busy = users(), users()
    user.do("start")
    busy.do("start")
    busy.begin("sql", "SELECT count(*) FROM generate_series(1, 100000000000)")
    computing = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%100000000000%' AND pid <> pg_backend_pid()"
    [[backend]] = until(lambda: user.sql(computing), "a session that computes")
    kill(user.do("postmaster"))
    user.do("ensure")
    assert not alive(backend)


def test_ensure_waits_for_a_killed_postmaster(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    kill(user.do("postmaster"))
    user.do("ensure")
    assert user.sql("SELECT * FROM said") == [["committed"]]


def test_a_killed_keeper_is_succeeded_and_the_server_goes_on(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    postmaster = user.do("postmaster")
    remains = Remains(place, postmaster)
    for _ in range(3):
        keeper = until(lambda: status(place).keeper_pid, "a keeper")
        until(lambda: len(keepers(place)) == 2, "one that stands by")
        kill(keeper)
        until(partial(is_succeeded, place, keeper), "another keeper, by itself")
        assert user.do("postmaster") == postmaster
    user.kill()
    is_gone(place, remains)


@pytest.mark.parametrize("how", ["ensure", "start"])
def test_when_all_keepers_were_killed_a_user_brings_a_new_one(place: Path, users: Users, how: str) -> None:
    user = users()
    user.do("start")
    postmaster = user.do("postmaster")
    remains = Remains(place, postmaster)
    kill_keepers(place)
    assert serves(user)
    arriving = users()
    (user if how == "ensure" else arriving).do(how)
    assert status(place).keeper_pid
    assert user.do("postmaster") == postmaster
    user.kill()
    arriving.kill()
    is_gone(place, remains)


def test_the_keeper_and_the_last_user_killed_together_leave_nothing(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    remains = Remains(place, user.do("postmaster"))
    until(lambda: len(keepers(place)) == 2, "one that stands by")
    keeper = status(place).keeper_pid
    assert keeper
    kill(keeper, user.process.pid)
    is_gone(place, remains)


def test_the_keeper_and_the_postmaster_killed_together_come_back(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    until(lambda: len(keepers(place)) == 2, "one that stands by")
    keeper, postmaster = status(place).keeper_pid, user.do("postmaster")
    assert keeper
    kill(keeper, postmaster)
    until(lambda: serves(user), "the server, by itself")
    assert user.sql("SELECT * FROM said") == [["committed"]]


def test_all_keepers_and_the_postmaster_killed_together_come_back_by_ensure(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    remains = Remains(place, user.do("postmaster"))
    kill_keepers(place, user.do("postmaster"))
    assert not serves(user)
    user.do("ensure")
    assert user.sql("SELECT * FROM said") == [["committed"]]
    user.kill()
    is_gone(place, remains)


def test_the_last_user_and_the_postmaster_killed_together_leave_nothing(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    postmaster = user.do("postmaster")
    remains = Remains(place, postmaster)
    kill(postmaster, user.process.pid)
    is_gone(place, remains)


def test_a_postmaster_killed_while_it_is_being_stopped_leaves_nothing(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    postmaster = user.do("postmaster")
    remains = Remains(place, postmaster)
    os.kill(postmaster, signal.SIGSTOP)  # so that it is still there when it is killed
    user.kill()
    until(lambda: keeper_stops(place), "the keeper's stopping the server")
    kill(postmaster)
    is_gone(place, remains)


@new_place
def test_killing_all_in_the_middle_of_initdb_is_mended_by_the_next_start(place: Path, users: Users) -> None:
    user = users()
    user.begin("start")
    made = until(lambda: list(place.glob("data.new-*/global/pg_control")), "a half-made cluster")
    [half_made] = {path.parents[1] for path in made}
    kill(*processes(place), user.process.pid)
    assert half_made.exists()
    assert not (place / "data").exists()
    user = users()
    user.do("start")
    assert serves(user)
    assert list(place.glob("data.new-*")) == []


@new_place
def test_a_user_killed_while_starting_leaves_nothing(place: Path, users: Users) -> None:
    user = users()
    user.begin("start")
    until(lambda: list(place.glob("data.new-*")), "the start of initdb")
    user.kill()
    until(lambda: not processes(place), "the end of everything")
    assert not (place / "socket").exists()


# -- what a dead server left


def stopped_with_pid_file_of(place: Path, users: Users, pid: int) -> None:
    """Leave the directory as after a crash in which the postmaster's pid went to another process."""
    user = users()
    user.do("start")
    table(user)
    postmaster = user.do("postmaster")
    kept = (place / "data" / "postmaster.pid").read_text()
    kill_keepers(place, postmaster, user.process.pid)
    until(lambda: not processes(place), "the end of the server's processes")
    with (place / "data" / "postmaster.pid").open("r+") as file:
        file.truncate()
        file.write(kept.replace(str(postmaster), str(pid), 1))


def server_uid(place: Path) -> int | None:
    """Whoever runs the server, if that is another user than we are."""
    if os.geteuid() != 0:
        return None
    name = status(place).server_user
    assert name
    return pwd.getpwnam(name).pw_uid


def test_a_stale_pid_file_naming_a_living_process_is_no_server(place: Path, users: Users) -> None:
    with EmbeddedPostgres.start(place):
        uid = server_uid(place)
    other = subprocess.Popen(["sleep", "1000"], user=uid)
    try:
        stopped_with_pid_file_of(place, users, other.pid)
        user = users()
        user.do("start")
        assert user.sql("SELECT * FROM said") == [["committed"]]
        assert alive(other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_stale_pid_file_naming_a_zombie_is_no_server(place: Path, users: Users) -> None:
    with EmbeddedPostgres.start(place):
        uid = server_uid(place)
    zombie = subprocess.Popen(["true"], user=uid)
    try:
        until(lambda: not alive(zombie.pid), "a zombie")
        stopped_with_pid_file_of(place, users, zombie.pid)
        user = users()
        user.do("start")
        assert user.sql("SELECT * FROM said") == [["committed"]]
    finally:
        zombie.wait()


def test_a_server_started_by_hand_is_left_alone(place: Path) -> None:
    with EmbeddedPostgres.start(place):
        uid = server_uid(place)
    stop(place)
    programs = find_wheel() / "bin"
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir()
    if uid:
        os.chown(elsewhere, uid, -1)
    command = [str(programs / "postgres"), "-D", str(place / "data"), "-c", "listen_addresses="]
    command += ["-c", f"unix_socket_directories={elsewhere}"]
    by_hand = subprocess.Popen(command, user=uid, group=uid and pwd.getpwuid(uid).pw_gid)
    try:
        pid_file = place / "data" / "postmaster.pid"
        until(lambda: pid_file.exists() and "ready" in pid_file.read_text(), "a server started by hand")
        with pytest.raises(EmbeddedError, match=f"process {by_hand.pid} already runs"):
            EmbeddedPostgres.start(place)
        assert alive(by_hand.pid)
        assert pid_file.exists()
    finally:
        by_hand.terminate()
        by_hand.wait()


# -- stop


def test_stop_stops_it_whoever_uses_it_until_a_user_asks_again(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    remains = Remains(place, user.do("postmaster"))
    assert stop(place) is True
    is_gone(place, remains)
    assert not keepers(place), "somebody could start it again"
    assert not serves(user)
    assert stop(place) is False
    user.do("ensure")
    assert user.sql("SELECT * FROM said") == [["committed"]]


def test_stop_stops_a_server_whose_keepers_were_killed(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    remains = Remains(place, user.do("postmaster"))
    kill_keepers(place)
    assert stop(place) is True
    is_gone(place, remains)


@new_place
def test_stop_of_a_directory_that_was_never_used_does_nothing(place: Path) -> None:
    assert stop(place) is False
    assert not place.exists()


def test_a_released_use_does_not_come_back(place: Path) -> None:
    use = EmbeddedPostgres.start(place)
    use.release()
    use.release()
    with pytest.raises(EmbeddedError, match="released"):
        use.ensure()


# -- the directory


@new_place
def test_a_directory_deleted_under_its_users_ends_the_server_and_is_an_error(place: Path, users: Users) -> None:
    user = users()
    user.do("start")
    table(user)
    remains = Remains(place, user.do("postmaster"))
    place.rename(place.parent / "deleted")  # at once: while a server runs, it makes files
    until(lambda: not remains.left(), "the end of the server")
    with pytest.raises(AssertionError, match="deleted or replaced"):
        user.do("ensure")
    assert not place.exists()
    arriving = users()
    arriving.do("start")
    assert arriving.sql("SELECT to_regclass('said')") == [[None]]
    with pytest.raises(AssertionError, match="deleted or replaced"):
        user.do("ensure")


def is_succeeded(place: Path, keeper: int) -> bool:
    """Whether another keeper keeps."""
    return status(place).keeper_pid not in (None, keeper)


def keeper_stops(place: Path) -> bool:
    """Whether the keeper has the users' lock for itself."""
    with (place / "users.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def kill_keepers(place: Path, *others: int) -> None:
    """Kill the keeper and the one that stands by, neither of which gets to do anything about it."""
    until(lambda: len(keepers(place)) == 2, "a keeper and one that stands by")
    keeper = status(place).keeper_pid
    assert keeper
    os.kill(keeper, signal.SIGSTOP)
    kill(*(pid for pid in keepers(place) if pid != keeper))
    kill(keeper, *others)
