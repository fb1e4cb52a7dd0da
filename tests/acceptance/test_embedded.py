"""The embedded Postgres lives while it has users, whoever comes or goes, and until it is told to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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
    serves,
    table,
    until,
)
from turnkeep.embedded import EmbeddedPostgres, status, stop
from turnkeep.errors import EmbeddedError

Users = Callable[[], User]


new_place = pytest.mark.parametrize("place", ["new"], indirect=True)


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
    for _ in range(4):
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
