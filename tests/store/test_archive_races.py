"""Whoever is at a conversation while it is archived, or brought back: whole, in whatever order they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer, branches_held, conversation_held, gate, in_order, table_held, until
from tests.store.whole_rows import rich, rows
from turnkeep import (
    Archiving,
    AsyncBranch,
    AsyncStore,
    ConflictError,
    Conversation,
    ConversationArchivedError,
    Erased,
    Lease,
    LeaseHeldError,
    NotFoundError,
    Posted,
    Saved,
    TurnOpenError,
)
from turnkeep.store._erasure import look

USER = {"role": "user", "content": "x"}
HOT = ("branch", "message", "checkpoint", "request")
Call = Callable[[AsyncStore, AsyncBranch], Awaitable[Any]]

# Who races with an archiving, what that comes to where it is first, the archiving then, and what it comes to second.
RIVALS: dict[str, tuple[Call, type, type, type]] = {
    "begin_turn": (lambda _, b: b.begin_turn(USER, key="new"), Saved, TurnOpenError, ConversationArchivedError),
    "post": (lambda s, _: s.post("c", USER, key="new"), Posted, ConflictError, ConversationArchivedError),
    "claim": (lambda _, b: b.claim(owner="me"), Lease, LeaseHeldError, ConversationArchivedError),
    "fork": (lambda s, _: s.fork("c", branch=0), AsyncBranch, Archiving, ConversationArchivedError),
    "end": (lambda s, _: s.end("c"), Conversation, Archiving, ConversationArchivedError),
    "reopen": (lambda s, _: s.reopen("c"), Conversation, Archiving, ConversationArchivedError),
    "delete_branch": (lambda s, _: s.delete_branch("c", 2), bool, Archiving, ConversationArchivedError),
    "archive": (lambda s, _: s.archive("c"), Archiving, Archiving, Archiving),
    "erase": (lambda s, _: s.erase("c"), Erased, NotFoundError, Erased),
}


@pytest.fixture
async def branch(store: AsyncStore) -> AsyncBranch:
    await rich(store, "c")
    return await store.conversation("c")


def held(dsn: str, branch: AsyncBranch) -> AbstractContextManager[None]:
    return branches_held(dsn, branch.conversation_id)


def check_whole(dsn: str, *, archived: bool | None) -> None:
    """All of a conversation is in the tables, or in the archive, or it is nowhere."""
    found = rows(dsn)
    assert bool(found["archive"]) == bool(archived)
    assert any(found[table] for table in HOT) == (archived is False)
    assert bool(found["conversation"]) == (archived is not None)


@pytest.mark.parametrize("name", RIVALS)
async def test_what_comes_before_an_archiving_is_seen_by_it(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch, name: str
) -> None:
    call, first, then, _ = RIVALS[name]
    done, archived = await in_order(observer, held(dsn, branch), call(store, branch), store.archive("c"))
    assert type(done) is first, done
    assert type(archived) is then, archived
    check_whole(dsn, archived=None if name == "erase" else then is Archiving)
    if then is Archiving:
        await store.unarchive("c")
        check_whole(dsn, archived=False)


@pytest.mark.parametrize("name", RIVALS)
async def test_what_comes_behind_an_archiving_finds_it_archived(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch, name: str
) -> None:
    call, _, _, second = RIVALS[name]
    archived, refused = await in_order(observer, held(dsn, branch), store.archive("c"), call(store, branch))
    assert isinstance(archived, Archiving), archived
    assert isinstance(refused, second), refused
    check_whole(dsn, archived=None if name == "erase" else True)


async def test_a_save_that_an_archiving_waits_for_is_in_it(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch
) -> None:
    await branch.begin_turn(USER)
    saved, archived = await in_order(
        observer, held(dsn, branch), branch.save([{"said": "last"}], final=True), store.archive("c")
    )
    assert isinstance(saved, Saved)
    assert isinstance(archived, Archiving)
    assert (await store.restore("c")).messages[-1] == {"said": "last"}


@pytest.mark.parametrize("what", ["idle", "ended"])
async def test_one_that_is_used_after_it_was_listed_is_not_archived(
    dsn: str, store: AsyncStore, branch: AsyncBranch, advance: Callable[[timedelta], None], what: str
) -> None:
    age: dict[str, Any] = {f"{what}_seconds": 3600.0}
    if what == "ended":
        await store.end("c")
    advance(timedelta(days=2))
    assert await store.to_archive(**age) == [branch.conversation_id]
    if what == "ended":
        await store.reopen("c")
    await branch.begin_turn(USER)
    await branch.save([{"said": "last"}], final=True)
    done = await store.archive("c", **age)
    assert (done.skipped, done.repeated) == (True, False)
    check_whole(dsn, archived=False)
    advance(timedelta(days=4))
    assert (await store.archive("c", **age)).skipped is (what == "ended")


async def test_an_update_beside_an_archiving_is_in_it_or_refused(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch
) -> None:
    with conversation_held(dsn, branch.conversation_id):
        update = asyncio.create_task(store.update("c", title="new"))
        await observer.see_waiting(1)
        archiving = asyncio.create_task(store.archive("c"))
        await observer.see_waiting(2)
    assert not (await archiving).repeated
    updated: Any = (await asyncio.gather(update, return_exceptions=True))[0]
    title = (await store.describe("c")).title
    assert isinstance(updated, Conversation if title == "new" else ConversationArchivedError), updated
    check_whole(dsn, archived=True)


async def test_one_that_is_made_anew_beside_an_archiving_is_not_half_there(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch
) -> None:
    archived, made = await in_order(
        observer, held(dsn, branch), store.archive("c"), asyncio.to_thread(create, dsn, branch)
    )
    assert isinstance(archived, Archiving)
    assert "is archived" in str(made)
    check_whole(dsn, archived=True)


def create(dsn: str, branch: AsyncBranch) -> object:
    """Make it by plain SQL, waiting for its branch's row as the first maker of another process does."""
    with Observer(dsn) as maker:
        maker.rows(
            "SELECT FROM turnkeep.branch WHERE conversation_id = %s AND branch = 0 FOR UPDATE", branch.conversation_id
        )
        return maker.rows("SELECT outcome FROM turnkeep.create_v2(%s, 'c', NULL)", branch.conversation_id)


@pytest.mark.parametrize("name", ["archive", "unarchive", "erase", "post", "conversation"])
async def test_what_comes_beside_an_unarchiving_finds_all_of_it_or_waits(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch, name: str
) -> None:
    await store.archive("c")
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "archive": lambda: store.archive("c"),
        "unarchive": lambda: store.unarchive("c"),
        "erase": lambda: store.erase("c"),
        "post": lambda: store.post("c", USER, key="new"),
        "conversation": lambda: store.conversation("c"),
    }
    with table_held(dsn, "turnkeep.archive"):
        back = asyncio.create_task(store.unarchive("c"))
        await observer.see_waiting(1)  # its rows are there, and not committed
        rival = asyncio.ensure_future(calls[name]())
        await until(lambda: rival.done() or len(observer.waiting()) >= 2, "the rival")
    ended: list[Any] = [*await asyncio.gather(back, rival, return_exceptions=True)]
    unarchived, done = ended
    # What is erased while an unarchiving is repeated is not there any more: there is nothing left of it either way.
    late = (NotFoundError,) if name == "erase" else ()
    assert isinstance(unarchived, (Archiving, *late)), unarchived
    match name:
        case "archive":
            assert done.repeated  # it was archived still
            check_whole(dsn, archived=False)
        case "unarchive":
            assert done.repeated
            check_whole(dsn, archived=False)
        case "erase":
            assert isinstance(done, Erased), done
            check_whole(dsn, archived=None)
        case "post":
            assert isinstance(done, ConversationArchivedError), done
            check_whole(dsn, archived=False)
        case _:
            assert isinstance(done, AsyncBranch | ConversationArchivedError), done
            check_whole(dsn, archived=False)


async def test_an_erasure_before_an_unarchiving_leaves_nothing(
    dsn: str, store: AsyncStore, observer: Observer, branch: AsyncBranch
) -> None:
    await store.archive("c")
    erased, back = await in_order(
        observer, conversation_held(dsn, branch.conversation_id), store.erase("c"), store.unarchive("c")
    )
    assert isinstance(erased, Erased)
    assert isinstance(back, NotFoundError)
    check_whole(dsn, archived=None)


async def test_an_import_beside_the_same_conversation_being_made_is_one_of_both(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    from tests.store.whole_rows import exported, imported

    await rich(store, "c")
    data = await exported(store)
    await store.erase("c")
    with gate(dsn, "turnkeep.conversation", "INSERT"):
        made = asyncio.ensure_future(store.conversation("c"))
        await observer.see_waiting(1)
        brought = asyncio.ensure_future(imported(store, data))
        await observer.see_waiting(2)
    branch, conflict = await asyncio.gather(made, brought, return_exceptions=True)
    assert isinstance(branch, AsyncBranch)
    assert isinstance(conflict, turnkeep.ConflictError), conflict
    assert len(rows(dsn)["branch"]) == 1


async def test_what_erasing_an_archived_conversation_would_remove_is_counted(store: AsyncStore) -> None:
    conversation = await rich(store, "c")
    counts = (await look(store, conversation)).counts
    assert counts.checkpoints > 0
    await store.archive("c")
    assert (await look(store, conversation)).counts == counts
    assert await store.erase("c") == counts
