"""What only threads have: many of them on one store, Ctrl-C between any two instructions, forks of the process."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held, until

USER = {"role": "user", "content": "weather?"}
STEP = {"role": "assistant", "content": "let me see"}
INTERRUPTED = Path(__file__).with_name("interrupted.py")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as opened:
        yield opened


def open_turn(store: turnkeep.Store, name: str = "c") -> turnkeep.Branch:
    branch = store.conversation(name)
    branch.begin_turn(USER)
    return branch


def test_a_turn_with_a_tool_and_a_transaction(dsn: str) -> None:
    with turnkeep.open_sync(dsn) as store:
        branch = store.conversation("c", agent_id="support")
        branch.begin_turn(USER, key="k")
        branch.save([STEP], tool_calls=[{"id": "1"}], state={"n": 1})
        with branch.transaction() as transaction:
            transaction.connection.execute("CREATE TABLE public.effect (n int)")
            transaction.save([{"role": "tool"}], tool_results=[{"tool_call_id": "1"}])
        branch.save([STEP], final=True)
        assert store.restore("c").messages == branch.messages == [USER, STEP, {"role": "tool"}, STEP]
        assert [one.external_id for one in store.conversations()] == ["c"]
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT * FROM public.effect").fetchall() == []


def test_many_threads_share_a_store(dsn: str, threads: ThreadPoolExecutor) -> None:
    with turnkeep.open_sync(dsn, pool_size=4) as store:

        def converse(number: int) -> list[Any]:
            branch = open_turn(store, f"c{number}")
            for step in range(10):
                branch.save([{"n": step}])
            branch.save([STEP], final=True)
            return store.restore(f"c{number}").messages

        expected = [USER, *({"n": step} for step in range(10)), STEP]
        assert all(messages == expected for messages in threads.map(converse, range(32)))


def test_writes_of_one_branch_follow_each_other(dsn: str, threads: ThreadPoolExecutor) -> None:
    with turnkeep.open_sync(dsn) as store:
        branch = open_turn(store)

        def save(number: int) -> int:
            saved = branch.save([{"n": number}])
            assert {"n": number} in branch.messages  # read while others write
            return saved.sub_step

        assert sorted(threads.map(save, range(100))) == [*range(1, 101)]
        restored = store.restore("c")
        assert sorted(message["n"] for message in restored.messages[1:]) == [*range(100)]
        assert branch.messages == restored.messages


def test_a_store_outlives_its_connections(dsn: str, observer: Observer, threads: ThreadPoolExecutor) -> None:
    with turnkeep.open_sync(dsn, pool_size=4) as store:
        branches = [open_turn(store, f"c{number}") for number in range(8)]
        for _ in range(3):
            observer.rows(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'turnkeep'"
            )
            assert [*threads.map(lambda branch: branch.save([STEP]).repeated, branches)] == [False] * 8
            branches[0].save([STEP])  # by the main thread


GIVE_UP = """
import sys, turnkeep
try:
    with turnkeep.open_sync(sys.argv[1], timeout=0.5):
        pass
except turnkeep.UnavailableError:
    print("given up")
"""


def gives_up(dsn: str) -> bool:
    """Whether a process gives up opening a store, by itself: libpq would wait for an hour."""
    command = [sys.executable, "-c", GIVE_UP, f"{dsn} connect_timeout=3600"]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout == b"given up\n"


def test_a_server_that_is_not_there_is_told_within_the_timeout() -> None:
    assert gives_up("host=127.0.0.1 port=9")


def test_a_server_that_never_answers_is_told_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert gives_up(f"host=127.0.0.1 port={deaf.getsockname()[1]}")


def test_a_call_of_the_main_thread_ends_at_the_deadline(dsn: str, observer: Observer) -> None:
    with turnkeep.open_sync(dsn, timeout=2) as store:
        branch = open_turn(store)
        before = observer.counts(), observer.heads()
        with branches_held(dsn, branch.conversation_id):
            with pytest.raises(turnkeep.UnavailableError, match="write_id"):
                branch.save([STEP])
            assert not observer.waiting()
        assert (observer.counts(), observer.heads()) == before
        branch.save([STEP])


def test_a_store_used_before_open_or_after_close_says_so(dsn: str) -> None:
    store = turnkeep.open_sync(dsn)
    with pytest.raises(turnkeep.UsageError, match=r"with turnkeep\.open_sync"):
        store.restore("c")
    with store:
        branch = open_turn(store)
    calls: list[Callable[[], object]] = [
        lambda: branch.save([STEP]),
        branch.refresh,
        branch.claim,
        lambda: store.fork("c"),
    ]
    for call in calls:
        with pytest.raises(turnkeep.UsageError, match="closed"):
            call()


async def test_a_store_closed_under_waiting_calls_ends_them(
    dsn: str, observer: Observer, threads: ThreadPoolExecutor
) -> None:
    store = turnkeep.open_sync(dsn, pool_size=1)
    store.open()
    branch = open_turn(store)
    with branches_held(dsn, branch.conversation_id):
        save = threads.submit(branch.save, [STEP])
        await observer.see_waiting(1)
        queued = threads.submit(store.restore, "c")
        pool = store._database._pool
        await until(lambda: pool.get_stats().get("requests_waiting"), "a call that waits for a connection")
        store.close()
        with pytest.raises(turnkeep.UsageError):
            queued.result(60)
    assert save.result(60).sub_step == 1


# -- Ctrl-C

SAVE = """
import sys, uuid, turnkeep
with turnkeep.open_sync(sys.argv[1], pool_size=2, timeout=60) as store:
    branch = store.conversation("c")
    for number in range(4):  # more than there are connections
        write_id = uuid.uuid4()
        input()
        try:
            branch.save([{"n": number}], write_id=write_id)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        input()
        print(branch.save([{"n": number}], write_id=write_id), flush=True)
"""


async def test_a_save_ended_by_ctrl_c_has_ended_in_the_server_and_can_be_repeated(
    dsn: str, store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SAVE, dsn, stdin=PIPE, stdout=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(4):
        with branches_held(dsn, branch.conversation_id):
            child.stdin.write(b"\n")
            await observer.see_waiting(1)
            child.send_signal(signal.SIGINT)
            assert await child.stdout.readline() == b"interrupted\n"
            assert not observer.waiting()
            assert len(observer.in_transaction()) == 1  # the holder's
        child.stdin.write(b"\n")
        assert f"sub_step={number + 1}, repeated=False".encode() in await child.stdout.readline()
    assert await child.wait() == 0
    assert (await store.restore("c")).messages == [USER, *({"n": number} for number in range(4))]


@pytest.mark.parametrize("what", ["saves", "transactions"])
def test_ctrl_c_at_any_moment_loses_no_write_and_no_connection(dsn: str, observer: Observer, what: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.ledger (n int)")
    rounds, rng = 150, random.Random(7)
    command = [sys.executable, "-W", "error", str(INTERRUPTED), dsn, what, str(rounds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        while child.poll() is None and not observer.rows("SELECT FROM turnkeep.conversation OFFSET 1"):
            time.sleep(rng.expovariate(400))
            child.send_signal(signal.SIGINT)
        told = json.loads(child.stdout.readline())
        assert child.wait(60) == 0
    assert told["interrupts"] > 20
    assert told["handle"] == [None, *range(rounds)]
    assert told["connections"] == 2
    assert told["helpers"] < 5
    assert not observer.in_transaction()
    with turnkeep.open_sync(dsn) as store:
        assert [message.get("n") for message in store.restore("c").messages] == told["handle"]
    if what == "transactions":
        assert observer.rows("SELECT n FROM public.ledger ORDER BY n") == [(number,) for number in range(rounds)]


# -- fork

FORK = """
import os, sys, turnkeep
with turnkeep.open_sync(sys.argv[1]) as store:
    branch = store.conversation("c")
    branch.begin_turn({"role": "user"})
    child = os.fork()
    if child == 0:
        try:
            branch.save([])
        except turnkeep.UsageError as error:
            assert "forked" in str(error)
            with turnkeep.open_sync(sys.argv[1]) as own:
                own.conversation("d").begin_turn({"role": "user"})
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    branch.save([], final=True)
    assert store.restore("d").turn_open
"""


def test_a_fork_of_the_process_is_told_and_leaves_the_store_alone(dsn: str) -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, dsn], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
