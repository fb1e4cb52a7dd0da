"""Both stores, event loop's and threads', under the same tests."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest

import turnkeep
from tests.conftest import Server, _database
from tests.store.in_threads import open_in_threads

OpenStore = Callable[..., AbstractAsyncContextManager[turnkeep.AsyncStore]]

# The modules whose tests run over both; elsewhere those that ask for `open_store`.
BOTH = (
    "archive",
    "exact",
    "forks",
    "leases",
    "lists",
    "races",
    "requests",
    "transactions",
    "transfer",
    "turns",
    "whole_lists",
    "conversations",
)
# What they tell of the database, or of text, is the same for both, and takes long.
ONCE = {
    "test_a_write_too_large_to_compare_is_known_by_its_id",
    "test_all_interrupted_turns_come_back_however_many",
    "test_a_message_beyond_the_limit_is_refused_with_its_size",
    "test_a_key_begun_by_two_processes_at_once_begins_one_turn",
    "test_a_save_changes_no_index_of_the_branch",
    "test_no_language_can_claim_a_lease_that_is_none",
}

LIKE_NEW = (
    "DROP TABLE IF EXISTS public.ledger",
    "DELETE FROM turnkeep.archive",
    "DELETE FROM turnkeep.request",
    "DELETE FROM turnkeep.document",
    "DELETE FROM turnkeep.checkpoint",
    "DELETE FROM turnkeep.message",
    "DELETE FROM turnkeep.branch",
    "DELETE FROM turnkeep.conversation",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END $$",
    "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
    " AS $$ SELECT pg_catalog.clock_timestamp() $$",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test over both stores where that tells something new."""
    asked_for = "open_store" in inspect.signature(metafunc.function).parameters
    both = metafunc.module.__name__.rpartition("test_")[2] in BOTH and "store" in metafunc.fixturenames
    if (both or asked_for) and metafunc.function.__name__ not in ONCE:
        metafunc.parametrize("kind", ["loop", "threads"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with parameters, run one over the store for threads."""
    seen: set[str] = set()
    dropped = []
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("kind") == "threads":  # type: ignore[attr-defined]
            name = item.nodeid.partition("[")[0]
            if name in seen:
                dropped.append(item)
            seen.add(name)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Which store: the event loop's or the threads'."""
    return getattr(request, "param", "loop")


@pytest.fixture(scope="session")
def shared(server: Server, template: str) -> Iterator[str]:
    """One database for all tests over the store for threads: what a database does, the others have tested."""
    yield from _database(server, template)


@pytest.fixture
def dsn(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The conninfo of a migrated database with nothing in it."""
    if kind == "loop":
        yield request.getfixturevalue("dsn")
        return
    shared: str = request.getfixturevalue("shared")
    yield shared
    with psycopg.connect(shared, autocommit=True) as connection:
        for statement in LIKE_NEW:
            connection.execute(statement)


@pytest.fixture
def open_store(kind: str) -> OpenStore:
    """`turnkeep.open`, or what stands for it over `turnkeep.open_sync`."""
    return turnkeep.open if kind == "loop" else open_in_threads


@pytest.fixture
async def store(dsn: str, open_store: OpenStore) -> AsyncIterator[turnkeep.AsyncStore]:
    """An open store on a new migrated database."""
    async with open_store(dsn) as opened:
        yield opened


@pytest.fixture
async def other(dsn: str, open_store: OpenStore) -> AsyncIterator[turnkeep.AsyncStore]:
    """Another process's store, as far as the database can tell."""
    async with open_store(dsn) as opened:
        yield opened
