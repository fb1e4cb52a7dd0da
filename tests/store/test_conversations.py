"""Conversations as people use them: described, found, ended, reopened, erased; branches named, switched and deleted."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from turnkeep import AsyncStore

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
CALL = {"id": "call_1", "name": "look", "arguments": {}}


async def talk(store: AsyncStore, name: str, **details: Any) -> turnkeep.AsyncBranch:
    branch = await store.conversation(name, **details)
    await branch.begin_turn(USER)
    await branch.save([ANSWER], final=True)
    return branch


async def test_a_conversation_is_described_from_its_beginning(store: AsyncStore) -> None:
    metadata = {"user": {"id": 7}, "score": 1.5, "über": ["ü", None, True]}
    await store.conversation("parent", agent_id="boss")
    await store.conversation(
        "c", agent_id="a", parent="parent", title="A title", tags=["x", "y", "x"], metadata=metadata
    )
    found = await store.describe("c")
    assert (found.external_id, found.agent_id, found.title, found.tags) == ("c", "a", "A title", ("x", "y"))
    assert (found.metadata, found.version, found.tenant, found.ended_at) == (metadata, 0, None, None)
    assert found.parent == (await store.describe("parent")).conversation_id
    # One that is there keeps what it has.
    await store.conversation("c", title="Another", tags=["z"], metadata={})
    assert await store.describe("c") == found
    assert [one.external_id for one in await store.conversations(parent="parent")] == ["c"]


async def test_a_parent_must_be_there_and_be_another(store: AsyncStore) -> None:
    with pytest.raises(turnkeep.NotFoundError, match="parent"):
        await store.conversation("c", parent="nowhere")
    with pytest.raises(turnkeep.InvalidInputError, match="its own"):
        await store.conversation("c", parent="c")
    with pytest.raises(turnkeep.NotFoundError):
        await store.describe("c")


async def test_updates_merge_metadata_and_replace_the_rest(store: AsyncStore) -> None:
    await store.conversation("c", title="t", tags=["a"], metadata={"keep": 1, "change": 1, "remove": {"deep": None}})
    changed = await store.update("c", metadata={"change": {"n": None}, "remove": None, "new": []})
    assert changed.metadata == {"keep": 1, "change": {"n": None}, "new": []}
    assert (changed.title, changed.tags, changed.version) == ("t", ("a",), 1)
    changed = await store.update("c", title=None, tags=[])
    assert (changed.title, changed.tags, changed.version) == (None, (), 2)
    assert changed.metadata == {"keep": 1, "change": {"n": None}, "new": []}
    assert await store.describe("c") == changed


async def test_an_update_against_an_old_version_changes_nothing(store: AsyncStore) -> None:
    await store.conversation("c", title="first")
    seen = await store.describe("c")
    await store.update("c", title="second", version=seen.version)
    with pytest.raises(turnkeep.ConflictError, match="version 1"):
        await store.update("c", title="third", version=seen.version)
    assert (await store.describe("c")).title == "second"


async def test_writers_of_different_keys_at_once_lose_none(store: AsyncStore) -> None:
    await store.conversation("c")
    await asyncio.gather(*(store.update("c", metadata={f"key{number}": number}) for number in range(20)))
    found = await store.describe("c")
    assert (found.metadata, found.version) == ({f"key{number}": number for number in range(20)}, 20)


async def test_details_that_cannot_be_stored_are_refused_by_name(store: AsyncStore) -> None:
    await store.conversation("c")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("title", {"title": "x" * 1001}),
        ("title", {"title": "a\0b"}),
        ("title", {"title": 5}),
        ("tags", {"tags": "abc"}),
        (r"tags\[1\]", {"tags": ["a", ""]}),
        ("tags", {"tags": [f"t{number}" for number in range(101)]}),
        ("metadata", {"metadata": [1]}),
        (r"metadata\['a'\]\[0\]", {"metadata": {"a": ["x\0"]}}),
        (r"metadata\['a'\]", {"metadata": {"a": "\ud800"}}),
        ("metadata", {"metadata": {"n\0": 1}}),
        (r'metadata\["n"\]', {"metadata": {"n": float("nan")}}),
        ("metadata", {"metadata": {"n": "x" * 70_000}}),
        ("metadata", {"metadata": {"n": turnkeep.RawJSON("1e400")}}),
        ("nothing to update", {}),
        ("version", {"title": "x", "version": "1"}),
    ]
    for name, arguments in wrong:
        with pytest.raises(turnkeep.InvalidInputError, match=name):
            await store.update("c", **arguments)
    assert (await store.describe("c")).version == 0
    with pytest.raises(turnkeep.InvalidInputError, match="status"):
        await store.conversations(status="asleep")
    for call in (store.describe, store.end, store.reopen, store.branches):
        with pytest.raises(turnkeep.NotFoundError):
            await call("nowhere")
    with pytest.raises(turnkeep.NotFoundError):
        await store.update("nowhere", title="x")


async def test_lists_are_filtered_in_pages(store: AsyncStore) -> None:
    for number in range(9):
        await talk(
            store,
            f"c{number}",
            agent_id="even" if number % 2 == 0 else "odd",
            tags=["all", *(["third"] if number % 3 == 0 else [])],
            metadata={"n": number, "user": {"id": number % 2}},
        )

    async def names(**filters: Any) -> list[str]:
        found: list[str] = []
        page = await store.conversations(limit=2, **filters)
        while page:
            found += [one.external_id for one in page]
            page = await store.conversations(limit=2, before=page[-1], **filters)
        return found

    assert await names(tags=["third"]) == ["c6", "c3", "c0"]
    assert await names(tags=["all", "third"], agent_id="even") == ["c6", "c0"]
    assert await names(metadata={"user": {"id": 1}}) == ["c7", "c5", "c3", "c1"]
    assert await names(metadata={"n": 4}) == ["c4"]
    assert await names(tags=["none"]) == []
    branch = await store.conversation("c5")
    await branch.begin_turn(USER)
    await store.end("c8")
    assert await names(status="open") == ["c5"]
    assert await names(status=["ended", "open"]) == ["c5", "c8"]
    assert (await store.conversations(limit=1, status="ended"))[0].ended_at is not None


async def test_a_tenant_sees_its_own_names_and_lists(store: AsyncStore) -> None:
    one, two = store.tenant("one"), store.tenant("two")
    for tenant in (one, two, store):
        await talk(tenant, "ticket")
    ids = {(await tenant.describe("ticket")).conversation_id for tenant in (one, two, store)}
    assert len(ids) == 3
    assert (await one.describe("ticket")).tenant == "one"
    assert [summary.tenant for summary in await one.conversations()] == ["one"]
    assert sorted(str(summary.tenant) for summary in await store.conversations()) == ["None", "one", "two"]
    found = (await two.describe("ticket")).conversation_id
    assert found == turnkeep.conversation_uuid("ticket", tenant="two")
    assert (await one.restore(found)).messages == [USER, ANSWER]  # names are kept apart, and no more
    with pytest.raises(turnkeep.NotFoundError):
        await one.find(str(found))
    await one.post("ticket", "more", key="k")
    assert [summary.external_id for summary in await one.conversations(status="ready")] == ["ticket"]
    with pytest.raises(turnkeep.UsageError):
        async with one:
            pass
    with pytest.raises(turnkeep.InvalidInputError, match="tenant"):
        store.tenant("")


async def test_an_ended_conversation_takes_nothing_until_it_is_reopened(store: AsyncStore) -> None:
    branch = await talk(store, "c")
    fork = await store.fork("c", at=(0, 0), name="other")
    await store.post("c", "more", key="waits")
    ended = await store.end("c")
    assert ended.ended_at is not None
    assert (await store.end("c")).ended_at == ended.ended_at
    refused: list[Any] = [
        lambda: branch.begin_turn(USER),
        lambda: fork.save([ANSWER]),
        lambda: branch.claim(),
        lambda: store.post("c", "x"),
        lambda: store.fork("c"),
        lambda: store.resume("c"),
        lambda: store.wait_reply("c", "waits", seconds=60),
    ]
    for call in refused:
        with pytest.raises(turnkeep.ConversationEndedError):
            await call()
    assert await store.claim_waiting([""], limit=5) == []
    assert {one.status for one in await store.branches("c")} == {"ended"}
    assert (await store.restore("c")).messages == [USER, ANSWER]
    assert (await store.fork("c", into="copy")).messages == [USER, ANSWER]
    reopened = await store.reopen("c")
    assert reopened.ended_at is None
    assert [(one.branch, one.status) for one in await store.branches("c")] == [(0, "ready"), (1, "idle")]
    await fork.save([ANSWER], final=True)
    assert await branch.take_request() is not None


async def test_a_conversation_that_is_run_is_not_ended(store: AsyncStore) -> None:
    branch = await talk(store, "c")
    await branch.claim(owner="me")
    with pytest.raises(turnkeep.LeaseHeldError, match="me is running it"):
        await store.end("c")
    assert (await store.describe("c")).ended_at is None
    await branch.release()
    await store.end("c")


async def test_a_stopped_branch_is_stopped_again_after_it_was_reopened(store: AsyncStore) -> None:
    branch = await talk(store, "c")
    await branch.begin_turn(USER)
    await branch.claim()
    await branch.release(failure={"type": "waiting", "message": "a person is asked"})
    await store.end("c")
    await store.reopen("c")
    assert [one.status for one in await store.branches("c")] == ["waiting"]
    assert (await store.restore("c")).failure == {"type": "waiting", "message": "a person is asked"}


def tables(dsn: str) -> dict[str, int]:
    """The rows of every table but those of the schema's own."""
    with psycopg.connect(dsn) as connection:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'turnkeep' AND tablename <> 'migration'"
        ).fetchall()
        return {
            name: (
                connection.execute(sql.SQL("SELECT count(*) FROM turnkeep.{}").format(sql.Identifier(name))).fetchone()
                or (0,)
            )[0]
            for (name,) in names
        }


async def test_an_erased_conversation_leaves_nothing_with_its_children(store: AsyncStore, dsn: str) -> None:
    await talk(store, "stays")
    before = tables(dsn)
    branch = await talk(store, "c", metadata={"a": 1})
    await store.fork("c", at=(0, 0))
    await store.post("c", "waits", key="k")
    await talk(store, "child", parent="c")
    await talk(store, "grandchild", parent="child")
    erased = await store.erase("c")
    assert (erased.conversations, erased.branches, erased.messages, erased.requests) == (3, 4, 6, 1)
    assert tables(dsn) == before
    assert (await store.erase("c")).conversations == 0
    for call in (lambda: branch.begin_turn(USER), lambda: branch.refresh(), lambda: branch.claim()):
        with pytest.raises(turnkeep.NotFoundError):
            await call()
    with pytest.raises(turnkeep.NotFoundError):
        await store.restore("child")
    assert (await store.conversation("c")).messages == []


async def test_branches_form_a_tree_with_names(store: AsyncStore) -> None:
    await talk(store, "c")
    await talk(store, "c")
    await store.fork("c", at=(0, 1), name="early")
    await store.fork("c", branch="early", name="earlier still")
    await store.fork("c")
    found = await store.branches("c")
    assert [(one.branch, one.name, one.parent, one.current) for one in found] == [
        (0, "main", None, True),
        (1, "early", (0, 0, 1), False),
        (2, "earlier still", (0, 0, 1), False),
        (3, None, (0, 1, 1), False),
    ]
    handle = await store.conversation("c", branch="early")
    assert handle.branch == 1
    await handle.begin_turn(USER)
    assert (await store.restore("c", branch="early")).turn_index == 1
    assert (await store.history("c", branch="early"))[0].branch == 1
    for call in (store.conversation, store.restore, store.history, store.fork, store.resume):
        with pytest.raises(turnkeep.NotFoundError, match="nobody"):
            await call("c", branch="nobody")


async def test_the_current_branch_is_what_is_read_and_posted_to(store: AsyncStore, dsn: str) -> None:
    await talk(store, "c")
    fork = await store.fork("c", at=(0, 0), name="other")
    await fork.save([{"role": "assistant", "content": "otherwise"}], final=True)
    await store.switch("c", "other")
    assert (await store.describe("c")).current_branch == 1
    assert (await store.restore("c")).messages[-1]["content"] == "otherwise"
    assert (await store.post("c", "go on")).branch == 1
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT branch, turn_index, sub_step FROM turnkeep.agent_checkpoints ORDER BY turn_index, sub_step"
        ).fetchall()
    assert rows == [(0, 0, 0), (1, 0, 1)]
    await store.switch("c", 0)
    await store.switch("c", 0)
    assert (await store.restore("c")).messages == [USER, ANSWER]
    for branch in (7, "nobody"):
        with pytest.raises(turnkeep.NotFoundError):
            await store.switch("c", branch)


async def test_a_branch_that_others_build_on_is_kept_whole(store: AsyncStore, dsn: str) -> None:
    await talk(store, "c")
    first = await store.fork("c", name="first")
    await first.begin_turn(USER, key="mine")
    await first.save([ANSWER], final=True)
    second = await store.fork("c", branch="first", name="second")
    before = tables(dsn)
    with pytest.raises(turnkeep.ConflictError, match=r"others go on from it \(2\)"):
        await store.delete_branch("c", "first")
    with pytest.raises(turnkeep.ConflictError, match="current"):
        await store.delete_branch("c", 0)
    await store.post("c", "x", branch=2)
    with pytest.raises(turnkeep.ConflictError, match="request waits"):
        await store.delete_branch("c", 2)
    await second.take_request()
    await second.claim(owner="me")
    with pytest.raises(turnkeep.LeaseHeldError, match="me is running"):
        await store.delete_branch("c", 2)
    await second.release()
    assert {**tables(dsn), "message": 0, "checkpoint": 0, "request": 0} == {
        **before,
        "message": 0,
        "checkpoint": 0,
        "request": 0,
    }
    assert await store.delete_branch("c", "second")
    assert await store.delete_branch("c", "first")
    assert not await store.delete_branch("c", 1)
    with pytest.raises(turnkeep.NotFoundError):
        await store.delete_branch("c", 9)
    left = {name: rows for name, rows in tables(dsn).items() if rows}
    assert left == {"conversation": 1, "branch": 1, "checkpoint": 2, "message": 2, "document": 1}
    assert (await store.fork("c")).branch == 3  # numbers are never used again


async def test_a_branch_forked_from_inherited_history_does_not_need_the_one_between(store: AsyncStore) -> None:
    await talk(store, "c")
    between = await store.fork("c", name="between")
    await between.begin_turn(USER)
    leaf = await store.fork("c", branch="between", at=(0, 0), name="leaf")
    assert await store.delete_branch("c", "between")
    assert (await store.restore("c", branch=leaf.branch)).messages == [USER]


async def test_a_copy_is_whole_and_goes_its_own_way(store: AsyncStore, dsn: str) -> None:
    await talk(store, "c", agent_id="a", title="t", tags=["x"], metadata={"k": 1})
    fork = await store.fork("c", at=(0, 0))
    await fork.save_all([{"role": "system", "content": "short"}], state={"n": 1})
    await fork.save([{"role": "assistant", "tool_calls": [CALL]}], tool_calls=[CALL])
    (call,) = fork.pending
    copy = await store.fork("c", branch=fork.branch, into="copy", agent_id="b")
    assert copy.conversation_id != fork.conversation_id
    assert (copy.branch, copy.turn_index, copy.sub_step, copy.state) == (0, 0, 2, {"n": 1})
    assert copy.messages == fork.messages
    # A call from before is uncertain there, and keeps its origin: its idempotency key is the same.
    (copied,) = copy.pending
    assert (copied.uncertain, copied.branch, copied.conversation_id) == (True, call.branch, call.conversation_id)
    assert (copied.place, copied.call) == (call.place, call.call)
    again = await store.fork("copy", into="copy of the copy")
    assert again.pending == copy.pending
    for at in ((0, 0), (0, 1), (0, 2)):
        theirs, ours = await store.restore("c", branch=1, at=at), await store.restore("copy", at=at)
        assert (theirs.message_texts, theirs.state_text, theirs.phase, theirs.write_id) == (
            ours.message_texts,
            ours.state_text,
            ours.phase,
            ours.write_id,
        )
    described = await store.describe("copy")
    assert (described.title, described.tags, described.metadata, described.agent_id) == ("t", ("x",), {"k": 1}, "a")
    await copy.save([{"role": "tool"}], tool_results=[{"tool_call_id": "call_1"}])
    await copy.save([ANSWER], final=True)
    await store.erase("c")
    assert len((await store.restore("copy")).messages) == 4
    assert [(c.turn_index, c.sub_step) for c in await store.history("copy")] == [(0, 4), (0, 3), (0, 2), (0, 1), (0, 0)]
    with psycopg.connect(dsn) as connection:
        newest = connection.execute(
            "SELECT messages FROM turnkeep.agent_checkpoints WHERE conversation_id = %s"
            " ORDER BY turn_index DESC, created_at DESC LIMIT 1",
            (copy.conversation_id,),
        ).fetchone()
    assert newest == ((await store.restore("copy")).messages,)


async def test_a_copy_is_made_once_and_never_over_another(store: AsyncStore) -> None:
    await talk(store, "c")
    fork_id = uuid.uuid4()
    first = await store.fork("c", into="copy", fork_id=fork_id)
    await first.begin_turn(USER)
    again = await store.fork("c", into="copy", fork_id=fork_id)
    assert (again.conversation_id, again.turn_index) == (first.conversation_id, 1)
    for into in ("copy", "c"):
        with pytest.raises(turnkeep.ConflictError, match="already"):
            await store.fork("c", into=into)
    await store.conversation("empty")
    with pytest.raises(turnkeep.NotFoundError, match="no checkpoint"):
        await store.fork("empty", into="new")
    with pytest.raises(turnkeep.NotFoundError, match="no checkpoint"):
        await store.fork("c", at=(4, 0), into="new")
    with pytest.raises(turnkeep.NotFoundError):
        await store.fork("nowhere", into="new")
    with pytest.raises(turnkeep.NotFoundError):
        await store.describe("new")


async def test_many_forks_at_once_have_numbers_of_their_own(store: AsyncStore) -> None:
    await talk(store, "c")
    forks = await asyncio.gather(*(store.fork("c", at=(0, number % 2)) for number in range(20)))
    assert sorted(fork.branch for fork in forks) == list(range(1, 21))
    copies = await asyncio.gather(*(store.fork("c", into=f"copy {number}") for number in range(8)))
    assert all(copy.messages == [USER, ANSWER] for copy in copies)
