"""Export and import: equal in another database, again without harm, and nothing half from a file that is damaged."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, BinaryIO, LiteralString, cast

import psycopg
import pytest

import turnkeep
from tests.conftest import Server, _database
from tests.observing import Observer, conversation_held, in_order
from tests.store.whole_rows import exported, imported, rich, rows
from turnkeep import AsyncStore, ConflictError, TransferError, transfer
from turnkeep.store import _async_transfer, _sync_transfer

USER = {"role": "user", "content": "x"}


@pytest.fixture
def other_dsn(server: Server, template: str) -> Any:
    """Another database."""
    yield from _database(server, template)


@pytest.fixture
async def target(other_dsn: str) -> AsyncIterator[AsyncStore]:
    """A store in it."""
    async with turnkeep.open(other_dsn) as opened:
        yield opened


async def many(store: AsyncStore) -> None:
    """Conversations of all kinds, children before their parents by id and the other way round."""
    await rich(store, "a")
    await rich(store, "ended", ended=True)
    await rich(store, "child", parent="a")
    await store.tenant("acme").conversation("a", title="a tenant's")
    branch = await store.conversation("waits", agent_id="worker")
    await branch.begin_turn(USER)
    await branch.save([{"role": "assistant"}], tool_calls=[{"id": "1", "name": "f"}])
    await store.post("waits", {"role": "user", "content": "later"}, key="later")
    await rich(store, "archived")
    await store.archive("archived")


async def test_everything_is_equal_in_another_database(
    store: AsyncStore, target: AsyncStore, dsn: str, other_dsn: str
) -> None:
    await many(store)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.conversation SET ttl = '1 year 2 mons -3 days 04:05:06.000007'")
    data = await exported(store)
    done = await imported(target, data)
    assert (done.conversations, done.there) == (6, 0)
    assert rows(other_dsn) == rows(dsn)
    again = await imported(target, data)
    assert (again.conversations, again.there) == (0, 6)
    assert rows(other_dsn) == rows(dsn)
    assert (await imported(store, data)).there == 6
    for name in ("a", "ended", "child", "archived"):
        assert await target.restore(name) == await store.restore(name)


async def test_an_imported_request_is_taken_up_and_an_imported_call_answered(
    store: AsyncStore, target: AsyncStore
) -> None:
    await many(store)
    await imported(target, await exported(store))
    branch = await target.conversation("waits")
    (call,) = branch.pending
    assert (call.attempts, call.uncertain) == (0, False)
    await branch.save([{"role": "tool"}], tool_results=[{"tool_call_id": "1"}], final=True)
    assert (await target.post("waits", {"role": "user", "content": "later"}, key="later")).repeated
    assert await branch.take_request()
    with pytest.raises(turnkeep.KeyReusedError):
        await target.post("waits", {"role": "user", "content": "other"}, key="later")
    first = await (await target.conversation("a", branch="side ü")).begin_turn(
        {"role": "user", "content": "again"}, key="on the side"
    )
    assert first.repeated


async def test_what_is_being_run_is_exported_as_waiting_and_its_lease_stays_behind(
    store: AsyncStore, target: AsyncStore, other_dsn: str
) -> None:
    branch = await store.conversation("c", agent_id="a")
    await branch.claim(owner="w", seconds=1000)
    await branch.begin_turn(USER)
    idle = await store.conversation("idle", agent_id="a")
    await idle.claim(owner="w", seconds=1000)
    data = await exported(store)
    assert b'"lease' not in data
    await imported(target, data)
    with psycopg.connect(other_dsn) as connection:
        found = connection.execute(
            "SELECT v.external_id, b.status, b.ready_at = b.updated_at, lease_token, lease_owner"
            " FROM turnkeep.branch AS b JOIN turnkeep.conversation AS v USING (conversation_id) ORDER BY 1"
        ).fetchall()
    assert found == [("c", "ready", True, 0, None), ("idle", "idle", None, 0, None)]
    taken = await target.conversation("c")
    await taken.claim(owner="other")
    await taken.save([USER], final=True)
    assert (await imported(store, data)).there == 2


async def test_another_content_under_the_same_id_is_a_conflict_and_the_others_come_in(
    store: AsyncStore, target: AsyncStore, other_dsn: str
) -> None:
    await many(store)
    data = await exported(store)
    await imported(target, data)
    await target.update("a", title="another")
    branch = await target.conversation("child")
    await branch.begin_turn(USER)
    await target.erase("ended")
    before = rows(other_dsn)
    with pytest.raises(ConflictError, match=r"'a'.*other content.*1 others were imported.*--as-copy") as caught:
        await imported(target, data)
    assert "'child'" in str(caught.value)
    after = rows(other_dsn)
    assert len(after["conversation"]) == len(before["conversation"]) + 1
    assert set(before["conversation"]) < set(after["conversation"])


async def test_copies_have_ids_of_their_own_and_nobody_does_their_work_twice(store: AsyncStore, dsn: str) -> None:
    await many(store)
    data = await exported(store)
    before = rows(dsn)
    done = await imported(store, data, as_copy=True)
    assert done.conversations == 6
    assert (await imported(store, data, as_copy=True)).there == 6
    everything = rows(dsn)
    for table in ("conversation", "branch", "message", "checkpoint", "archive"):
        assert set(before[table]) < set(everything[table])
        assert len(everything[table]) == 2 * len(before[table])
    assert everything["request"] == before["request"]
    listed = [one for one in await store.conversations(limit=100) if one.external_id == str(one.conversation_id)]
    copies = {one.title: one for one in listed}
    copy = await store.restore(copies["About a é"].conversation_id)
    assert copy.message_texts == (await store.restore("a")).message_texts
    child = await store.describe(copies["About child é"].conversation_id)
    assert child.parent == copies["About a é"].conversation_id
    (open_one,) = [one for one in listed if one.title is None and one.turn_index == 0]
    assert open_one.status == "idle"
    (call,) = (await store.restore(open_one.conversation_id)).pending
    assert call.uncertain
    assert not await store.tenant("none").conversations()


async def test_a_dry_run_checks_and_changes_nothing(store: AsyncStore, target: AsyncStore, other_dsn: str) -> None:
    await many(store)
    data = await exported(store)
    done = await imported(target, data, dry_run=True)
    assert (done.conversations, done.there) == (6, 0)
    assert not any(rows(other_dsn).values())
    await imported(target, await exported(store, "a"))
    done = await imported(target, data, dry_run=True)
    assert (done.conversations, done.there) == (5, 1)
    with pytest.raises(TransferError):
        await imported(target, data[:-50], dry_run=True)


async def test_children_come_along_where_that_is_said_and_filters_choose(store: AsyncStore) -> None:
    await many(store)

    def names(data: bytes) -> set[str]:
        found = map(json.loads, data.splitlines())
        return {line["external_id"] for line in found if line["kind"] == "conversation"}

    assert names(await exported(store, "a")) == {"a"}
    assert names(await exported(store, "a", children=True)) == {"a", "child"}
    assert names(await exported(store, agent_id="worker")) == {"waits"}
    assert names(await exported(store, tags=["vip"], metadata={"later": True})) == {"a", "ended", "child", "archived"}
    assert names(await exported(store.tenant("acme"))) == {"a"}
    assert await store.count_matching(agent_id="worker") == 1
    file = io.BytesIO()
    with pytest.raises(turnkeep.NotFoundError, match="nobody"):
        await store.export(file, ["a", "nobody"])
    assert file.getvalue() == b""


async def test_a_truncated_file_leaves_whole_conversations_and_the_rest_comes_later(
    store: AsyncStore, target: AsyncStore, other_dsn: str
) -> None:
    for name in ("a", "b", "c"):
        await rich(store, name)
    data = await exported(store)
    ends = [index for index in range(len(data)) if data.startswith(b'{"kind":"end"', index)]
    for cut in (0, 5, ends[0] // 2, ends[0] - 1, ends[0] + 5, ends[1], len(data) - 30, len(data) - 1):
        with pytest.raises(TransferError, match=r"line \d+ \(byte \d+\): .*(cut off|no line of JSON)") as caught:
            await imported(target, data[:cut], name="x.jsonl")
        assert caught.value.position is not None
        assert str(caught.value).startswith("x.jsonl, line ")
        whole = sum(end < cut and data.find(b"\n", end) < cut for end in ends)
        assert len(rows(other_dsn)["conversation"]) == whole
    done = await imported(target, data)
    assert (done.conversations, done.there) == (0, 3)


async def test_a_flipped_byte_is_found_wherever_it_is(store: AsyncStore, target: AsyncStore, other_dsn: str) -> None:
    await rich(store, "c")
    data = await exported(store)
    for place in range(40, len(data) - 40, len(data) // 40):
        with pytest.raises(TransferError, match="line"):
            await imported(target, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert not rows(other_dsn)["conversation"]


async def test_two_imports_at_once_make_each_conversation_once(
    store: AsyncStore, target: AsyncStore, dsn: str, other_dsn: str
) -> None:
    await many(store)
    data = await exported(store)
    done = await asyncio.gather(*(imported(target, data) for _ in range(3)))
    assert sum(one.conversations for one in done) == 6
    assert sum(one.there for one in done) == 12
    assert rows(other_dsn) == rows(dsn)


async def test_an_export_is_of_one_moment_while_others_write(store: AsyncStore, other: AsyncStore) -> None:
    await rich(store, "a")
    branch = await other.conversation("a")

    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            asyncio.run_coroutine_threadsafe(branch.begin_turn(USER), loop).result()
            return super().write(data)

    loop = asyncio.get_running_loop()
    file = Slow()
    before = await store.restore("a")
    await store.export(cast("BinaryIO", file))
    assert (await store.restore("a")).turn_index == before.turn_index + 1
    async with turnkeep.open(store.conninfo) as third:
        await third.erase("a")
        file.seek(0)
        await third.import_(file)
        assert await third.restore("a") == before


async def test_documents_travel_with_their_embeddings(
    store: AsyncStore, target: AsyncStore, dsn: str, other_dsn: str
) -> None:
    await rich(store, "c")
    vector = "[" + ",".join(["0.1", "-2.5e-05", *["0"] * 766]) + "]"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE turnkeep.document SET text = 'happy families', model = 'm', created_at = now(), next_try_at = NULL,"
            " embedding = %s WHERE turn_index < 2",
            (vector,),
        )
    await imported(target, await exported(store))
    query: LiteralString = (
        "SELECT branch, turn_index, chunk, text, model, created_at, embedding::text FROM turnkeep.document"
        " ORDER BY 1, 2, 3"
    )
    with psycopg.connect(dsn) as one, psycopg.connect(other_dsn) as two:
        assert one.execute(query).fetchall() == two.execute(query).fetchall()
        assert two.execute("SELECT count(*) FROM turnkeep.document WHERE tsv @@ 'happy'").fetchone() == (3,)
        two.execute("DELETE FROM turnkeep.document")
    await target.erase("c")
    await imported(target, await exported(store, documents=False))
    with psycopg.connect(other_dsn) as two:
        left = two.execute("SELECT count(*), count(text), count(next_try_at) FROM turnkeep.document").fetchone()
    assert left == (len(rows(dsn)["document"]), 0, len(rows(dsn)["document"]))


async def test_a_server_that_is_lost_behind_the_last_line_of_a_conversation_repeats_nothing(
    store: AsyncStore, target: AsyncStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await rich(store, name)
    for module in (_async_transfer, _sync_transfer):
        monkeypatch.setattr(module, "_CHUNK", 1)

    class Killing(io.BytesIO):
        def write(self, data: Any) -> int:
            if data.startswith(b'{"kind":"end"'):
                with psycopg.connect(dsn, autocommit=True, application_name="killer") as killer:
                    killer.execute(
                        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'turnkeep'"
                    )
            return super().write(data)

    file = Killing()
    assert (await store.export(cast("BinaryIO", file))).conversations == 2
    assert file.getvalue().count(b'{"kind":"conversation"') == 2
    assert (await imported(target, file.getvalue())).conversations == 2


@pytest.mark.parametrize(
    "metadata", ['{ "k" :1}', '{"k":1,"k":2}', '{"k": 1e2}', '{"z": 1, "a": "\\u0041", "zz": 1.50}', '{"k": [ ]}']
)
async def test_metadata_in_another_spelling_come_in_once_and_are_there_then(store: AsyncStore, metadata: str) -> None:
    data = with_header(await exported_of(store), metadata=metadata)
    assert (await imported(store, data)).conversations == 1
    assert (await imported(store, data)).there == 1
    assert (await imported(store, data, as_copy=True)).conversations == 1
    assert (await imported(store, data, as_copy=True)).there == 1


@pytest.mark.parametrize("metadata", ['{"k": "\\u0000"}', '{"k": 1e999999}', '{"\\ud800": 1}'])
async def test_metadata_that_no_store_holds_are_named_with_their_line(store: AsyncStore, metadata: str) -> None:
    data = with_header(await exported_of(store), metadata=metadata)
    with pytest.raises(TransferError, match=r"line 1 \(byte 0\): metadata can't be stored"):
        await imported(store, data)


async def test_what_the_database_refuses_is_named_with_its_conversation_and_line(
    store: AsyncStore, target: AsyncStore
) -> None:
    await rich(store, "c")
    lines = (await exported(store, documents=False)).splitlines(keepends=True)
    words = " ".join(f"{number:x}" for number in range(200_000))
    document = {"kind": "document", "branch": 0, "turn_index": 0, "chunk": 0, "text": words}
    lines.insert(-2, transfer.text(document) + b"\n")
    end = {**json.loads(lines[-2]), "document": 1}
    data = b"".join([*lines[:-2], transfer.text(end) + b"\n", lines[-1]])
    with pytest.raises(TransferError, match=rf"line {len(lines) - 1} .*conversation .* can't be stored: .*tsvector"):
        await imported(target, with_header(data))
    assert not await target.conversations()


async def test_a_tenants_store_takes_no_other_tenants_conversations(store: AsyncStore, target: AsyncStore) -> None:
    await store.tenant("b").conversation("c")
    data = await exported(store)
    with pytest.raises(TransferError, match="'c' is of tenant 'b', and this store is of tenant 'a'"):
        await imported(target.tenant("a"), data)
    assert (await imported(target.tenant("b"), data)).conversations == 1
    with pytest.raises(TransferError, match="is of no tenant"):
        await imported(target.tenant("b"), await exported_of(store))


async def test_parents_that_are_not_there_at_the_end_are_counted(store: AsyncStore, target: AsyncStore) -> None:
    await store.conversation("parent")
    await store.conversation("child", parent="parent")
    assert (await imported(target, await exported(store, "child"))).missing_parents == 1
    await target.erase("child")
    both = await imported(target, await exported(store, "child", "parent"))
    assert (both.conversations, both.missing_parents) == (2, 0)


@pytest.mark.parametrize("erase_first", [False, True])
async def test_a_child_that_is_imported_beside_the_erasure_of_its_parent_goes_with_it_or_says_so(
    store: AsyncStore, dsn: str, observer: Observer, erase_first: bool
) -> None:
    parent = await store.conversation("parent")
    await store.conversation("child", parent="parent")
    data = await exported(store, "child")
    await store.erase("child")
    calls = [imported(store, data), store.erase("parent")]
    held = conversation_held(dsn, parent.conversation_id)
    outcomes = await in_order(observer, held, *(reversed(calls) if erase_first else calls))
    brought = outcomes[erase_first]
    assert isinstance(brought, turnkeep.Transferred), brought
    assert len(rows(dsn)["conversation"]) == int(erase_first)
    assert brought.missing_parents or not erase_first


async def exported_of(store: AsyncStore) -> bytes:
    """An export of one conversation, which is gone."""
    await store.conversation("one")
    data = await exported(store, "one")
    await store.erase("one")
    return data


def with_header(data: bytes, **values: Any) -> bytes:
    """An export of one conversation with something else said of it."""
    lines = data.splitlines(keepends=True)
    lines[0] = transfer.text({**json.loads(lines[0]), **values}) + b"\n"
    digest = hashlib.sha256(b"".join(lines[:-2])).hexdigest()
    lines[-2] = transfer.text({**json.loads(lines[-2]), "sha256": digest}) + b"\n"
    return b"".join(lines)


async def test_an_old_release_of_the_same_moment_is_told_by_its_format(store: AsyncStore) -> None:
    await rich(store, "c")
    data = (await exported(store)).replace(b'"format":1,"release":"', b'"format":2,"release":"9.', 1)
    with pytest.raises(TransferError, match=r"line 1 \(byte 0\): format 2 is of a newer release \(9\."):
        await imported(store, data)


async def test_an_import_that_loses_its_server_leaves_nothing_half(
    store: AsyncStore, target: AsyncStore, other_dsn: str
) -> None:
    await rich(store, "a")
    await rich(store, "b")
    data = await exported(store)

    class Killing(io.BytesIO):
        lines = 0

        def readline(self, size: int | None = -1) -> bytes:
            Killing.lines += 1
            if Killing.lines == len(data.splitlines()) - 3:
                with psycopg.connect(other_dsn, autocommit=True, application_name="killer") as killer:
                    killer.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'turnkeep'"
                    )
            return super().readline(size)

    with pytest.raises(turnkeep.DatabaseError):
        await target.import_(cast("BinaryIO", Killing(data)))
    assert len(rows(other_dsn)["conversation"]) == 1
    assert (await imported(target, data)).conversations == 1


async def test_ids_and_times_survive_a_session_of_another_zone_and_style(
    store: AsyncStore, dsn: str, other_dsn: str, advance: Callable[[timedelta], None]
) -> None:
    from psycopg.conninfo import make_conninfo

    advance(timedelta(days=-200))
    await rich(store, "c")
    settings = "-c TimeZone=Asia/Kathmandu -c DateStyle=SQL,DMY -c IntervalStyle=sql_standard -c search_path=nowhere"
    async with turnkeep.open(make_conninfo(dsn, options=settings)) as there:
        data = await exported(there)
    here = (await exported(store)).splitlines()
    moment = here[0].partition(b'"exported_at":')[2][:34]
    there_moment = data.partition(b'"exported_at":')[2][:34]
    assert data.splitlines()[1:-2] == here[1:-2]
    assert data.splitlines()[0] == here[0].replace(moment, there_moment)
    async with turnkeep.open(make_conninfo(other_dsn, options=settings)) as there:
        await imported(there, data)
        assert isinstance((await there.restore("c")).conversation_id, uuid.UUID)
    assert rows(other_dsn)["checkpoint"] == rows(dsn)["checkpoint"]
