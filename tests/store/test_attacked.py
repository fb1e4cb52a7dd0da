"""Ways that once led to something lost, doubled or wrong."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, gate, until
from turnkeep import AsyncStore, RawJSON
from turnkeep.store._inbox import waiting

USER = {"role": "user", "content": "go"}
ANSWER = {"role": "assistant", "content": "gone"}


async def talk(store: AsyncStore, name: str) -> turnkeep.AsyncBranch:
    branch = await store.conversation(name)
    await branch.begin_turn(USER)
    await branch.save([ANSWER], final=True)
    return branch


async def test_what_is_made_while_an_erasure_is_at_it_is_whole_or_gone(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    with ExitStack() as stack:
        stack.enter_context(gate(dsn, "turnkeep.message", "DELETE"))
        erase = asyncio.ensure_future(store.erase("c"))  # it has found no branch, and comes to the messages
        await until(
            lambda: observer.rows("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), "the erasure"
        )
        branch = await store.conversation("c")
        await branch.begin_turn(USER)
        opened = asyncio.create_task(asyncio.to_thread(stack.close))
        await erase
        await opened
    assert observer.traces([branch.conversation_id]) == {}
    with pytest.raises(turnkeep.NotFoundError):
        await branch.save([ANSWER])


async def test_what_is_made_while_an_end_looks_for_it_is_ended_whole_or_not_at_all(
    dsn: str, store: AsyncStore, observer: Observer
) -> None:
    with gate(dsn, "turnkeep.branch", "UPDATE"):
        end = asyncio.ensure_future(store.end("c"))  # it has found no branch
        await until(
            lambda: end.done() or observer.rows("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
            "the end",
        )
        await store.conversation("c")
    await asyncio.gather(end, return_exceptions=True)
    ended = (await store.describe("c")).ended_at is not None
    assert [one.status for one in await store.branches("c")] == ["ended" if ended else "idle"]


async def test_a_request_that_waits_is_told_with_its_time_in_utc(store: AsyncStore, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{connection.info.dbname}\" SET timezone = 'Asia/Kolkata'".encode())
    async with turnkeep.open(dsn) as opened:
        posted = await opened.post("c", "hello", agent_id="a")
        ((received,),) = [(one.received_at,) for one in await waiting(opened, posted.conversation_id, 0)]
    assert received.utcoffset() == timedelta(0)


@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
async def test_an_erasure_sees_what_it_has_waited_for_whatever_the_default_isolation(
    dsn: str, observer: Observer, default: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{default}'".encode())
    async with turnkeep.open(dsn) as store:
        parent = await talk(store, "parent")
        with psycopg.connect(dsn) as creator:
            child = uuid.uuid4()
            creator.execute("SELECT turnkeep.create_v2(%s, 'child', NULL, NULL, %s)", (child, parent.conversation_id))
            erase = asyncio.ensure_future(store.erase("parent"))
            await observer.see_waiting(1)
            creator.commit()
        assert (await erase).conversations == 2
        assert observer.traces([parent.conversation_id, child]) == {}


@pytest.mark.parametrize("function", ["erase_v1(%s)", "delete_branch_v1(%s, 1)"])
async def test_sql_that_would_not_see_others_is_refused(store: AsyncStore, dsn: str, function: str) -> None:
    branch = await talk(store, "c")
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.InvalidTransactionState):
            connection.execute(f"SELECT turnkeep.{function}".encode(), (branch.conversation_id,))
    assert len((await store.restore("c")).messages) == 2


async def test_numbers_that_a_float_cannot_tell_apart_are_different(store: AsyncStore) -> None:
    one, two = (RawJSON(f'{{"cents": 12345678901234567.{cents}}}') for cents in ("01", "99"))
    branch = await store.conversation("c")
    await branch.save_all([one])
    await branch.save_all([two])
    assert (await store.restore("c")).message_texts == (two.text,)
    other = await store.conversation("d")
    await other.begin_turn(one, key="k")
    with pytest.raises(turnkeep.KeyReusedError):
        await other.begin_turn(two, key="k")


@pytest.mark.parametrize("final", [False, True])
async def test_a_list_that_had_not_changed_is_not_written_over_what_came_later(store: AsyncStore, final: bool) -> None:
    branch = await store.conversation("c")
    whole = [USER, ANSWER]
    await branch.save_all(whole, final=True)
    write_id = uuid.uuid4()
    first = await branch.save_all(whole, final=final, write_id=write_id)
    if not final:
        await branch.save([], final=True)
    await talk(store, "c")
    again = await (await store.conversation("c")).save_all(whole, final=final, write_id=write_id)
    assert (again.turn_index, again.sub_step, again.repeated) == (first.turn_index, first.sub_step, True)
    assert len((await store.restore("c")).messages) == 4


async def test_a_save_that_changes_nothing_is_refused_where_another_would_be(store: AsyncStore) -> None:
    async def ready() -> turnkeep.AsyncBranch:
        return await talk(store, str(uuid.uuid4()))

    stale = await ready()
    await (await store.conversation(stale.external_id)).save_all([ANSWER], final=True)
    with pytest.raises(turnkeep.ConflictError):
        await stale.save_all(stale.messages)
    ended = await ready()
    await store.end(ended.external_id)
    with pytest.raises(turnkeep.ConversationEndedError):
        await ended.save_all(ended.messages)
    held = await ready()
    await (await store.conversation(held.external_id)).claim()
    with pytest.raises(turnkeep.LeaseHeldError):
        await held.save_all(held.messages)
    lost = await ready()
    await lost.claim()
    (other,) = [await store.conversation(lost.external_id)]
    await lost.release()
    await other.claim()
    with pytest.raises(turnkeep.LeaseHeldError):
        await lost.save_all(lost.messages)
    erased = await ready()
    await store.erase(erased.external_id)
    with pytest.raises(turnkeep.NotFoundError):
        await erased.save_all(erased.messages)


async def test_a_whole_turn_is_there_with_both_its_sub_steps_or_not_at_all(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c")
    call = {"id": "call_1", "name": "look", "arguments": {}}
    content: dict[str, Any] = {
        "tool_calls": [call],
        "tool_results": [{"tool_call_id": "call_1"}],
        "state": {"n": 1},
        "final": True,
    }
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no end'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON turnkeep.checkpoint FOR EACH ROW"
            " WHEN (NEW.phase = 'final') EXECUTE FUNCTION public.refuse()"
        )
        with pytest.raises(turnkeep.DatabaseError, match="no end"):
            await branch.save_all([USER], **content)
        connection.execute("DROP FUNCTION public.refuse() CASCADE")
    assert (branch.turn_index, branch.turn_open, len(await store.history("c"))) == (0, False, 2)
    saved = await branch.save_all([USER], **content)
    assert (saved.turn_index, saved.sub_step, branch.pending, branch.state) == (1, 1, (), {"n": 1})
    await branch.begin_turn(USER)
    assert (await store.restore("c")).messages == [USER, USER]


async def test_a_copy_of_a_conversation_from_the_future_goes_on_in_order(
    store: AsyncStore, dsn: str, advance: Any
) -> None:
    advance(timedelta(hours=1))
    await talk(store, "c")
    advance(timedelta(0))
    copy = await store.fork("c", into="copy")
    await copy.begin_turn(USER)
    times = [one.created_at for one in await store.history("copy")]
    assert times == sorted(times, reverse=True)


async def test_a_copy_is_found_again_after_its_source_is_gone(store: AsyncStore) -> None:
    await talk(store, "c")
    fork_id = uuid.uuid4()
    await store.fork("c", into="copy", fork_id=fork_id)
    await store.erase("c")
    assert (await store.fork("c", into="copy", fork_id=fork_id)).messages == [USER, ANSWER]


async def test_an_update_repeated_after_another_changes_nothing_more(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c")
    with psycopg.connect(dsn, autocommit=True) as connection:
        ids = [uuid.uuid4() for _ in range(3)]
        outcomes = [
            connection.execute(
                "SELECT outcome FROM turnkeep.update_v1(%s, %s, NULL, ARRAY['title'], %s, NULL, NULL)",
                (branch.conversation_id, update_id, str(number)),
            ).fetchone()
            for number, update_id in enumerate([*ids, ids[0]])
        ]
    assert outcomes == [("updated",), ("updated",), ("updated",), ("repeated",)]
    assert (await store.describe("c")).title == "2"


async def test_metadata_stay_within_their_limit_however_they_grow(store: AsyncStore) -> None:
    await store.conversation("c")
    await store.update("c", metadata={"a": "x" * 60_000})
    await store.update("c", metadata={"b": "x" * 60_000})
    with pytest.raises(turnkeep.InvalidInputError, match="128 KiB"):
        await store.update("c", metadata={"c": "x" * 60_000})
    assert set((await store.update("c", metadata={"a": None, "c": "x"})).metadata) == {"b", "c"}


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"messages": [{"t": "a\0b"}]}, {"messages": [{"t": "x\0y"}]}),
        ({"messages": [{"t": 1}]}, {"messages": [{"t": 1.0}]}),
        ({"tool_calls": [{"id": "1", "n": 1}]}, {"tool_calls": [{"id": "1", "n": 1.0}]}),
        ({"tool_calls": [{"id": "a\0"}]}, {"tool_calls": [{"id": "b\0"}]}),
    ],
)
async def test_a_write_id_with_other_content_is_refused_whatever_jsonb_makes_of_it(
    store: AsyncStore, first: dict[str, Any], other: dict[str, Any]
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    write_id = uuid.uuid4()
    await branch.save(**first, write_id=write_id)
    assert (await branch.save(**first, write_id=write_id)).repeated
    with pytest.raises(turnkeep.KeyReusedError):
        await branch.save(**other, write_id=write_id)


@pytest.mark.parametrize("view", ["agent_checkpoints", "all_checkpoints"])
@pytest.mark.parametrize("change", ["UPDATE turnkeep.{} SET phase = 'step'", "DELETE FROM turnkeep.{}"])
async def test_no_view_of_checkpoints_lets_them_change(store: AsyncStore, dsn: str, view: str, change: str) -> None:
    await talk(store, "c")
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.FeatureNotSupported, match="never change"):
        connection.execute(change.format(view).encode())
    assert len(await store.history("c")) == 2


async def test_what_only_stands_for_a_value_is_not_stored_in_its_place(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([USER, {"odd": "\0"}], state={"odd": "\0"})
    insert = (
        "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, sub_step, messages, state)"
        " SELECT conversation_id, 0, 1, {}, {} FROM turnkeep.agent_checkpoints WHERE conversation_id = %s"
    )
    for messages, state in (
        ("jsonb_build_array(messages -> 1, messages -> 0)", "NULL"),
        ("NULL", """state - 'sub_step' || '{"n": 2}'"""),
    ):
        with (
            psycopg.connect(dsn) as connection,
            pytest.raises(psycopg.errors.InvalidParameterValue, match="stands for"),
        ):
            connection.execute(insert.format(messages, state).encode(), (branch.conversation_id,))
    with psycopg.connect(dsn) as connection:  # kept where it is, it is what it stands for
        connection.execute(insert.format("""messages || '[{"new": 1}]'""", "NULL").encode(), (branch.conversation_id,))
    restored = await store.restore("c")
    assert restored.messages == [USER, {"odd": "\0"}, {"new": 1}]
    assert restored.state == {"odd": "\0"}


@pytest.mark.parametrize("name", ["3", "a:b", "a@1.1"])
async def test_a_branchs_name_is_no_number_and_no_place(store: AsyncStore, name: str) -> None:
    await talk(store, "c")
    with pytest.raises(turnkeep.InvalidInputError, match="name"):
        await store.fork("c", name=name)


async def test_few_digits_name_no_conversation_but_the_one_of_that_name(store: AsyncStore) -> None:
    branch = await talk(store, "c")
    digits = branch.conversation_id.hex
    assert await store.find(digits[:8]) == branch.conversation_id
    with pytest.raises(turnkeep.NotFoundError):
        await store.find(digits[:7])
