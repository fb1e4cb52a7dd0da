"""A pruned conversation, with its gaps, in the hands of everything else: archive, export, documents, compare, show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import run
from tests.observing import Observer
from turnkeep import AsyncStore

MONTH = timedelta(days=30)


async def pruned(dsn: str, store: AsyncStore, advance: Callable[[timedelta], None]) -> dict[Any, Any]:
    """A conversation of which messages, checkpoints and the parents of others are gone; all that is left of it."""
    branch = await store.conversation("c")
    for number in range(4):
        await branch.begin_turn([{"role": "user", "content": f"q{number}"}, {"n": number}])
        await branch.save([{"role": "assistant", "content": f"a{number}"}], tool_calls=[{"id": "1"}])
        if number == 2:
            await store.fork("c", name="side")
        await branch.save([], tool_results=[{"tool_call_id": "1"}], final=True)
    await branch.begin_turn({"role": "user", "content": "last"})
    kept = [branch.messages[1], {"summary": 1}, *branch.messages[-3:]]
    await branch.save_all(kept, final=True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 't', next_try_at = NULL")
    advance(2 * MONTH)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).messages > 0
    return await left(store, "c")


async def left(store: AsyncStore, name: str) -> dict[Any, Any]:
    found = {}
    for branch in await store.branches(name):
        for one in await store.history(name, branch=branch.branch):
            at = (one.turn_index, one.sub_step)
            checkpoint = await store.restore(name, branch=branch.branch, at=at)
            found[branch.branch, *at] = (checkpoint.message_texts, checkpoint.state_text, checkpoint.pending)
    return found


async def test_it_is_archived_and_comes_back_the_same(
    dsn: str, store: AsyncStore, observer: Observer, advance: Any
) -> None:
    before = await pruned(dsn, store, advance)
    await store.delete_branch("c", "side")  # an open turn can't be put away
    before = {place: said for place, said in before.items() if place[0] == 0}
    await store.archive("c")
    assert (await store.restore("c")).message_texts == before[0, 4, 1][0]
    assert await store.prune("c", older_than=MONTH) == turnkeep.Pruned(conversations=1)
    assert await store.prune("c", older_than=MONTH, dry_run=True) == turnkeep.Pruned(conversations=1)
    await store.unarchive("c")
    assert await left(store, "c") == before
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"})
    await branch.save([{"role": "assistant"}], final=True)
    assert (await store.restore("c")).message_texts[:-2] == before[0, 4, 1][0]


async def test_what_it_shows_and_compares(dsn: str, store: AsyncStore, advance: Any) -> None:
    await pruned(dsn, store, advance)
    assert run("show", "c", dsn=dsn).code == 0
    gone = run("show", "c@1.0", dsn=dsn)
    assert (gone.code, "has been pruned" in gone.err) == (3, True), gone.err
    assert run("diff", "c", "c:side", dsn=dsn).code in (0, 1)
    assert run("diff", "c@1.0", "c", dsn=dsn).code == 3
    assert run("ls", dsn=dsn).code == 0


async def test_a_copy_of_it_has_its_documents_made(
    dsn: str, store: AsyncStore, observer: Observer, advance: Any
) -> None:
    await pruned(dsn, store, advance)
    await store.fork("c", into="copy")
    from turnkeep.search import fill_documents

    report = await fill_documents(store, 100)
    assert report is not None
    ((text,),) = observer.rows(
        "SELECT text FROM turnkeep.document WHERE conversation_id = %s AND chunk = 0",
        turnkeep.conversation_uuid("copy"),
    )
    assert "last" in text


@pytest.mark.parametrize("keep", ["last-per-turn", "heads"])
async def test_documents_are_the_same_made_before_and_after(
    dsn: str, store: AsyncStore, observer: Observer, advance: Any, keep: Any
) -> None:
    from turnkeep.search import fill_documents

    texts = []
    for name, prune_first in (("a", False), ("b", True)):
        branch = await store.conversation(name)
        for number in range(4):
            await branch.begin_turn({"role": "user", "content": f"question {number}"})
            await branch.save([{"role": "assistant", "content": f"thinking {number}"}], tool_calls=[{"id": "1"}])
            await branch.save([{"role": "tool", "content": "r"}], tool_results=[{"tool_call_id": "1"}])
            await branch.save([{"role": "assistant", "content": f"answer {number}"}], final=True)
        if prune_first:
            advance(2 * MONTH)
            held = await store.prune(name, keep=keep, older_than=MONTH)
            assert bool(held.held_back) is (keep == "heads")
        while await filled(store, fill_documents, observer):
            pass
        texts.append(
            observer.rows(
                "SELECT turn_index, chunk, text FROM turnkeep.document WHERE conversation_id = %s ORDER BY 1, 2",
                turnkeep.conversation_uuid(name),
            )
        )
    assert texts[0] == texts[1]
    assert all(text for *_, text in texts[0])


async def filled(store: AsyncStore, fill: Any, observer: Observer) -> bool:
    """Make documents, and say whether some are left."""
    await fill(store, 100)
    return bool(observer.rows("SELECT 1 FROM turnkeep.document WHERE text IS NULL"))
