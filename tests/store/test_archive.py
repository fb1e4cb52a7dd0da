"""The archive: put away and back identical, readable there, closed to writers, damage named."""

from __future__ import annotations

import dataclasses
import lzma
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.store.whole_rows import rich, rows
from turnkeep import AsyncStore, ConversationArchivedError, CorruptionError, LeaseHeldError, TurnOpenError
from turnkeep.store import _payload

USER = {"role": "user", "content": "x"}


async def test_what_is_put_away_comes_back_as_it_was(store: AsyncStore, dsn: str) -> None:
    conversation = await rich(store, "c", ended=True)
    other = await rich(store, "other")
    before, beside = rows(dsn, [conversation], exact=True), rows(dsn, [other], exact=True)
    done = await store.archive("c")
    assert (done.repeated, done.branches, done.requests) == (False, 3, 4)
    away = rows(dsn, [conversation])
    assert [len(away[table]) for table in ("branch", "message", "checkpoint", "request", "archive")] == [0, 0, 0, 0, 1]
    assert away["document"]
    assert (await store.describe("c")).archived_at is not None
    back = await store.unarchive("c")
    assert not back.repeated
    after = rows(dsn, [conversation], exact=True)
    del before["document"], after["document"]  # asked to be filled again
    assert after == before
    assert rows(dsn, [other], exact=True) == beside
    await store.reopen("c")
    branch = await store.conversation("c")
    await branch.begin_turn(USER)


async def test_archiving_and_unarchiving_twice_is_harmless(store: AsyncStore, other: AsyncStore, dsn: str) -> None:
    await rich(store, "c")
    assert (await store.unarchive("c")).repeated
    await store.archive("c")
    there = rows(dsn, exact=True)
    again = await other.archive("c")
    assert again.repeated
    assert again.bytes > 0
    assert rows(dsn, exact=True) == there
    assert not (await store.unarchive("c")).repeated
    assert (await other.unarchive("c")).repeated
    for call in (store.archive, store.unarchive):
        with pytest.raises(turnkeep.NotFoundError):
            await call("nobody")


async def test_an_archived_conversation_reads_as_before(store: AsyncStore) -> None:
    await rich(store, "c")
    places = [(0, 0), (0, 1), (1, 2), (2, 4), (3, 1)]

    async def read() -> list[Any]:
        seen: list[Any] = [await store.branches("c")]
        for branch in (None, 0, 1, "side ü", 2):
            seen += [await store.restore("c", branch=branch), await store.history("c", branch=branch)]
        seen += [await store.restore("c", at=place) for place in places]
        seen += [await store.history("c", limit=3, before=(2, 1)), await store.history("c", branch="side ü", limit=2)]
        return seen

    before = await read()
    assert before[1].messages
    await store.archive("c")
    assert await read() == before
    for missing in ({"branch": 9}, {"branch": "nobody"}, {"at": (9, 0)}):
        with pytest.raises(turnkeep.NotFoundError):
            await store.restore("c", **missing)
    (listed,) = await store.archived()
    assert (listed.external_id, listed.title, listed.tags) == ("c", "About c é", ("vip", "eu"))
    assert await store.conversations() == []
    assert str(listed.conversation_id) == str(await store.find("c"))


async def test_open_calls_and_waiting_requests_of_an_ended_one_are_read_and_go_on(store: AsyncStore) -> None:
    branch = await store.conversation("c", agent_id="a")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1", "name": "f"}, {"id": "2"}])
    await branch.mark_started(branch.pending[:1])
    side = await store.fork("c")
    await store.post("c", {"role": "user", "content": "later"}, key="k")
    await store.end("c")
    before = await store.restore("c"), await store.restore("c", branch=side.branch)
    assert [call.attempts for call in before[0].pending] == [1, 0]
    await store.archive("c")
    assert (await store.restore("c"), await store.restore("c", branch=side.branch)) == before
    await store.unarchive("c")
    await store.reopen("c")
    again = await store.conversation("c")
    await again.save([{"role": "tool"}], tool_results=[{"tool_call_id": "1"}, {"tool_call_id": "2"}], final=True)
    assert (await store.post("c", {"role": "user", "content": "later"}, key="k")).repeated
    assert await again.take_request()


async def test_what_is_open_or_waits_or_runs_is_not_archived(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c", agent_id="a")
    await store.post("c", USER, key="k")
    with pytest.raises(turnkeep.ConflictError, match=r"1 requests wait on it; nothing was archived.*turnkeep end"):
        await store.archive("c")
    await branch.claim(owner="somebody")
    with pytest.raises(LeaseHeldError, match="somebody is running it"):
        await store.archive("c")
    await branch.take_request()
    await branch.release()
    before = rows(dsn)
    with pytest.raises(TurnOpenError, match="a turn is open; nothing was archived"):
        await store.archive("c")
    assert rows(dsn) == before
    await store.end("c")
    await store.archive("c")


Writes = dict[str, Callable[[AsyncStore, turnkeep.AsyncBranch], Awaitable[Any]]]
WRITES: Writes = {
    "conversation": lambda store, _: store.conversation("c"),
    "post": lambda store, _: store.post("c", USER, key="new"),
    "post again": lambda store, _: store.post("c", USER, key="key 0"),
    "fork": lambda store, _: store.fork("c"),
    "fork into": lambda store, _: store.fork("c", into="d"),
    "update": lambda store, _: store.update("c", title="new"),
    "end": lambda store, _: store.end("c"),
    "reopen": lambda store, _: store.reopen("c"),
    "switch": lambda store, _: store.switch("c", 1),
    "delete_branch": lambda store, _: store.delete_branch("c", 1),
    "resume": lambda store, _: store.resume("c"),
    "begin_turn": lambda _, branch: branch.begin_turn(USER),
    "take_request": lambda _, branch: branch.take_request(),
    "claim": lambda _, branch: branch.claim(),
}


@pytest.mark.parametrize("write", WRITES)
async def test_each_write_is_refused_with_the_remedy(store: AsyncStore, dsn: str, write: str) -> None:
    await rich(store, "c")
    branch = await store.conversation("c")
    await store.archive("c")
    before = rows(dsn, exact=True)
    with pytest.raises(ConversationArchivedError, match=r"is archived; nothing was written.*turnkeep unarchive"):
        await WRITES[write](store, branch)
    assert rows(dsn, exact=True) == before


async def test_plain_sql_is_refused_too(store: AsyncStore, dsn: str) -> None:
    conversation = await rich(store, "c")
    await store.archive("c")
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.DatabaseError, match="is archived"):
        connection.execute(
            "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages) VALUES (%s, 9, '[]')",
            (conversation,),
        )


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "a flipped byte": lambda payload: payload[:60] + bytes([payload[60] ^ 1]) + payload[61:],
    "cut off": lambda payload: payload[:-20],
    "empty": lambda payload: b"",
    "another content": lambda payload: lzma.compress(lzma.decompress(payload).replace(b"so", b"no")),
    "no lines": lambda payload: lzma.compress(b"hello\n"),
}


@pytest.mark.parametrize("digest", ["as it was", "made to fit"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_named_and_nothing_is_changed(store: AsyncStore, dsn: str, damage: str, digest: str) -> None:
    conversation = await rich(store, "c")
    await store.archive("c")
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((payload,),) = connection.execute("SELECT payload FROM turnkeep.archive").fetchall()
        connection.execute("UPDATE turnkeep.archive SET payload = %s", (DAMAGES[damage](payload),))
        if digest == "made to fit":
            connection.execute("UPDATE turnkeep.archive SET digest = sha256(payload)")
    before = rows(dsn, exact=True)
    for call in (store.unarchive, store.restore, store.history, store.branches):
        with pytest.raises(CorruptionError, match=f"the archive of conversation {conversation}"):
            await call("c")
    assert rows(dsn, exact=True) == before


async def test_what_is_too_large_for_a_row_is_refused_before_anything_is_removed(
    store: AsyncStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rich(store, "c")
    before = rows(dsn, exact=True)
    monkeypatch.setattr(_payload, "MAX_PAYLOAD_BYTES", 300)
    with pytest.raises(turnkeep.TransferError, match="too much for a row; nothing was changed"):
        await store.archive("c")
    assert rows(dsn, exact=True) == before


async def test_those_to_archive_are_found_by_their_end_and_by_their_rest(
    store: AsyncStore, advance: Callable[[timedelta], None]
) -> None:
    old, idle = await rich(store, "old", ended=True), await rich(store, "idle")
    busy = await store.conversation("busy")
    await busy.begin_turn(USER)
    advance(timedelta(days=31))
    new = await rich(store, "new", ended=True)
    assert await store.to_archive(ended_seconds=30 * 86_400) == [old]
    assert await store.to_archive(idle_seconds=30 * 86_400) == sorted([old, idle])
    assert await store.to_archive(ended_seconds=0) == sorted([old, new])
    assert await store.to_archive(ended_seconds=0, agent_id="nobody") == []
    assert await store.to_archive(ended_seconds=0, limit=1) == [min(old, new)]
    assert await store.to_archive(ended_seconds=0, limit=1, after=min(old, new)) == [max(old, new)]
    await store.archive(old)
    assert await store.to_archive(idle_seconds=30 * 86_400) == [idle]


async def test_erasing_an_archived_conversation_leaves_nothing(store: AsyncStore, dsn: str) -> None:
    conversation = await rich(store, "c")
    found = rows(dsn, [conversation])
    await store.archive("c")
    done = await store.erase("c")
    kinds = ("conversation", "branch", "checkpoint", "message", "request")
    assert [*dataclasses.astuple(done)][:5] == [len(found[kind]) for kind in kinds]
    assert not any(rows(dsn).values())
    assert (await rich(store, "c")) is not None


async def test_a_large_conversation_goes_in_and_comes_back(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("large")
    text = "All happy families are alike; each unhappy family is unhappy in its own way. " * 40
    await branch.begin_turn(USER)
    for number in range(1200):
        await branch.save([{"role": "assistant", "content": f"{number} {text}"}], state={"n": number})
    await branch.save([{"role": "assistant", "content": "x" * 9_000_000}])
    await branch.save([{"role": "assistant", "content": "y" * 9_000_000}], final=True)
    before = rows(dsn, exact=True)
    done = await store.archive("large")
    assert (done.messages, done.checkpoints) == (1203, 1203)
    assert done.raw_bytes > 16 * 1024 * 1024
    assert done.bytes < done.raw_bytes / 4
    await store.unarchive("large")
    after = rows(dsn, exact=True)
    del before["document"], after["document"]
    assert after == before
