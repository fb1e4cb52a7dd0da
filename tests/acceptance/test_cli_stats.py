"""`turnkeep stats --watch`: rates, a server that goes away meanwhile, a terminal that changes its size."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, run
from tests.clusters import Cluster, room
from tests.observing import until

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of the test's own, with pg_stat_statements, to be killed."""
    with room() as place:
        one = Cluster(place / "cluster")
        one.initialise(shared_preload_libraries="'pg_stat_statements'")
        one.start()
        turnkeep.migrate(one.conninfo)
        yield one
        one.stop()


class Watching:
    """A `turnkeep stats --watch` under way, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], stream: int) -> None:
        self.process = process
        self.said = b""
        self._stream = stream
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._stream, 65536)
            except OSError:
                return
            if not read:
                return
            self.said += read

    @property
    def looks(self) -> list[dict[str, Any]]:
        """The objects it has printed, one a line."""
        return [json.loads(line) for line in self.said.decode().split("\n")[:-1]]

    def ended(self) -> int:
        """Interrupt it, as Ctrl-C does, and give its exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


@contextmanager
def watching(dsn: str, *arguments: str, terminal: bool = False) -> Iterator[Watching]:
    environment = PLAIN | {"TURNKEEP_DATABASE_URL": dsn, "TERM": "xterm-256color"}
    for fixed in ("COLUMNS", "LINES"):  # as a test run in parallel sets them
        environment.pop(fixed, None)
    ours, theirs = pty.openpty() if terminal else os.pipe()
    size(theirs, 24, 80, terminal)
    process = subprocess.Popen(
        [COMMAND, "stats", "--watch", "--interval", "0.2", *arguments],
        env=environment,
        stdout=theirs,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(theirs)
    try:
        yield Watching(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def size(stream: int, rows: int, columns: int, terminal: bool = True) -> None:
    """Give a terminal a size."""
    if terminal:
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def saves(looks: list[dict[str, Any]]) -> int:
    """How many saves the rates make together."""
    rates = [look["rates"] for look in looks if look["rates"] is not None]
    return round(sum(float(one["saves"]) * float(one["seconds"]) for one in rates))


async def test_each_look_is_a_line_with_rates_and_a_server_that_is_killed_is_waited_for(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
    with watching(cluster.conninfo, "--json") as watch:
        await until(lambda: len(watch.looks) >= 2, "two looks")
        assert watch.looks[0]["rates"] is None
        async with turnkeep.open(cluster.conninfo) as store:
            branch = await store.conversation("c")
            for _ in range(20):
                await branch.begin_turn(USER)
                await branch.save([], final=True)
        await until(lambda: saves(watch.looks) >= 40, "all saves")
        assert saves(watch.looks) == 40
        await until(lambda: watch.looks[-1]["save_times"]["calls"] == 40, "all of them timed")
        assert sum(look["rates"]["turns"] > 0 for look in watch.looks if look["rates"]) >= 1
        assert any(look["rates"]["save_mean_ms"] for look in watch.looks if look["rates"])
        times = watch.looks[-1]["save_times"]
        assert (
            times["min_ms"] <= times["mean_ms"] <= times["p50_at_most_ms"] <= times["p95_at_most_ms"] <= times["max_ms"]
        )
        cluster.kill()
        seen = len(watch.looks)
        cluster.start()
        await until(lambda: len(watch.looks) >= seen + 3, "looks after the restart")
        assert [look["rates"] for look in watch.looks[seen:]].count(None) == 1  # nothing is counted over a restart
        assert watch.looks[-1]["checkpoints"]["value"] == 40
        assert watch.ended() == 130


async def test_a_database_that_stays_away_is_said_and_an_interrupt_still_ends_it(cluster: Cluster) -> None:
    with watching(cluster.conninfo, terminal=True) as watch:
        await until(lambda: b"conversations" in watch.said, "the first look")
        cluster.kill()
        await until(lambda: b"NO ANSWER" in watch.said, "that there is no answer")
        assert watch.ended() == 130
        cluster.start()


async def test_a_terminal_is_drawn_in_place_at_its_size_and_left_as_it_was(dsn: str) -> None:
    with watching(dsn, terminal=True) as watch:
        await until(lambda: watch.said.count(b"\x1b[H") >= 3, "three looks in place")
        before = len(watch.said)
        frame = watch.said.decode().split("\x1b[H")[2]
        assert len(frame.split("\r\n")) <= 24
        size(watch._stream, 50, 40)
        watch.process.send_signal(signal.SIGWINCH)
        # At 40 columns the table does not fit, and each row becomes a list.
        await until(lambda: b"rows on disk  " in watch.said[before:], "a narrower look")
        assert watch.ended() == 130
    shown = watch.said.decode()
    assert shown.index("\x1b[?1049h") < shown.index("\x1b[?1049l")  # its own screen, and back
    assert "conversations" in shown[shown.index("\x1b[?1049l") :]


def test_an_interval_without_watch_or_of_no_length_is_refused(dsn: str) -> None:
    assert run("stats", "--interval", "1", dsn=dsn).code == 2
    assert run("stats", "--watch", "--interval", "0", dsn=dsn).code == 2


async def test_what_is_dead_is_measured_where_pgstattuple_is(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("c")
    for _ in range(5):
        await branch.begin_turn(USER)
        await branch.save([], final=True)
    await store.erase("c")
    assert json.loads(run("stats", "--json", "--exact", dsn=dsn).out)["tables"][0]["dead_bytes"] is None
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA elsewhere; CREATE EXTENSION pgstattuple SCHEMA elsewhere")
    tables = json.loads(run("stats", "--json", "--exact", dsn=dsn).out)["tables"]
    assert {one["name"]: one["dead_bytes"] > 0 for one in tables}["message"]
    assert run("stats", "--exact", dsn=dsn).out.count(" free") == 1
    found = json.loads(run("stats", "--json", dsn=dsn).out)
    assert (found["save_times"], found["documents"]["to_fill"]) == (None, 0)
