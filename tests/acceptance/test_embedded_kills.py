"""The embedded Postgres comes back, or leaves nothing, whichever of its processes are killed."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.embedded_users import (
    Remains,
    User,
    alive,
    is_gone,
    keeper_stops,
    keepers,
    kill,
    kill_keepers,
    processes,
    serves,
    table,
    until,
)
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.embedded._programs import find_wheel
from turnkeep.errors import EmbeddedError

Users = Callable[[], User]


new_place = pytest.mark.parametrize("place", ["new"], indirect=True)


def is_succeeded(place: Path, keeper: int) -> bool:
    """Whether another keeper keeps."""
    return status(place).keeper_pid not in (None, keeper)


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
