"""What is stored is data: it is never run, never taken for SQL, never another tenant's, and goes when it is erased."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import turnkeep
from tests.observing import Observer
from turnkeep import AsyncStore

USER = {"role": "user", "content": "go"}


@dataclass
class Plan:
    """What an application may have in its state."""

    steps: int


class Touching:
    """What unpickles to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


async def test_unsafe_deserialization_makes_nothing_of_what_a_row_holds(
    store: AsyncStore, dsn: str, tmp_path: Path
) -> None:
    file = tmp_path / "pwned"
    touch = f"touch {file}"
    hostile: dict[str, Any] = {
        "pickle": base64.b64encode(pickle.dumps(Touching(file))).decode(),
        "lc": {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": touch}},
        "py/reduce": [{"py/function": "os.system"}, {"py/tuple": [touch]}],
        "__class__": "subprocess.Popen",
        "!!python/object/apply:os.system": [touch],
        "$type": "System.Diagnostics.Process",
    }
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state={})
    await branch.save([], tool_calls=[{"id": "1"}])
    with psycopg.connect(dsn) as connection:
        text = turnkeep.jsontext.encode(hostile, "m")
        connection.execute("UPDATE turnkeep.checkpoint SET state = %s", (text,))
        connection.execute("UPDATE turnkeep.message SET body = %s", (text,))
        connection.execute("UPDATE turnkeep.checkpoint SET tool_calls = %s WHERE sub_step = 1", (f"[{text}]",))
    restored = await store.restore("c")
    assert restored.messages == [hostile]
    assert restored.state == hostile
    assert [call.call for call in restored.pending] == [hostile]
    assert type(restored.state["lc"]) is dict
    assert not file.exists()


async def test_code_rename_loses_no_value_since_no_class_is_stored(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    with pytest.raises(turnkeep.UnstorableError, match=r"dataclasses\.asdict"):
        await branch.begin_turn(USER, state={"plan": Plan(3)})
    plan = {"__class__": "app.models.Plan", "steps": 3}
    await branch.begin_turn(USER, state={"plan": plan})
    for _ in range(2):  # load, save, load
        async with turnkeep.open(dsn) as restarted:
            again = await restarted.conversation("c")
            assert again.state == {"plan": plan}
            await again.save([], state=again.state)
    assert (await store.restore("c")).state == {"plan": plan}


HOSTILE = [
    "a') OR 1=1 --",
    "$gt; DROP TABLE turnkeep.message",
    "\"quoted\" 'twice' %s %(x)s {} \\ \\' $$ $1",
    "k" * 200,
    "tenant_id",
]


async def test_sql_injection_texts_are_only_texts_wherever_they_are_passed(store: AsyncStore, dsn: str) -> None:
    with Observer(dsn) as observer:
        tables = observer.counts().keys()
        for text in HOSTILE:
            branch = await store.conversation(
                text, agent_id=text, title=text, tags=[text], metadata={text: {text: text}}
            )
            await branch.begin_turn({text: text}, key=text, state={text: text})
            await branch.save([], tool_calls=[{"id": text, "name": text}])
            await branch.save([], tool_results=[{"id": text}], final=True)
            await store.fork(text, name=text)
            await store.post(text, text, key=text + "2")
            assert (await store.describe(text)).metadata == {text: {text: text}}
            (found,) = await store.conversations(metadata={text: {text: text}}, tags=[text], agent_id=text)
            assert (found.external_id, found.title, found.tags) == (text, text, (text,))
            assert await store.find(text) == found.conversation_id
        assert observer.counts().keys() == tables
        assert observer.counts()["conversation"] == len(HOSTILE)


async def test_sql_injection_a_filter_that_nothing_matches_gives_nothing(store: AsyncStore) -> None:
    for number in range(3):
        await store.conversation(str(number), metadata={"n": number}, tags=["t"])
    filters: list[dict[str, Any]] = [
        *({text: 1} for text in HOSTILE),
        {"x": {"$gt; DROP TABLE": 1}},
        {"tenant_id": "acme"},
        {"n": {"$gt": 0}},
        {"k" * 10_000: 1},
    ]
    for metadata in filters:
        assert await store.conversations(metadata=metadata) == []
    assert await store.conversations(tags=["t' OR '1'='1"]) == []
    for unstorable in ({"a\0": 1}, {"\ud800": 1}):
        with pytest.raises(turnkeep.UnstorableError, match="metadata"):
            await store.conversations(metadata=unstorable)
    with pytest.raises(TypeError, match="tenant_id"):
        await store.conversations(tenant_id="acme")  # type: ignore[call-arg]
    with pytest.raises(turnkeep.InvalidInputError, match="status"):
        await store.conversations(status="tenant_id")
    assert len(await store.conversations()) == 3


async def test_sql_injection_no_filter_shows_another_tenants_conversations(store: AsyncStore) -> None:
    for name in ("acme", "globex"):
        await store.tenant(name).conversation("c", metadata={"n": 1}, tags=["t"], agent_id="a")
    acme = store.tenant("acme")
    for found in (
        await acme.conversations(),
        await acme.conversations(metadata={"n": 1}),
        await acme.conversations(metadata={}, tags=["t"], agent_id="a", status="idle"),
    ):
        assert [summary.tenant for summary in found] == ["acme"]
    assert await acme.conversations(metadata={"tenant": "globex"}) == []


CANARY = "canary-5e1f0c"


def places_of_canary(dsn: str) -> set[str]:
    """The tables in whose rows the canary can be read."""
    found = set()
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'turnkeep'").fetchall()
        for (table,) in tables:
            query = sql.SQL("SELECT count(*) FROM {} AS t WHERE t::text LIKE {}").format(
                sql.Identifier("turnkeep", table), sql.Literal(f"%{CANARY}%")
            )
            if connection.execute(query).fetchall() != [(0,)]:
                found.add(table)
    return found


async def test_deletion_leaves_no_trace_in_any_table_and_others_whole(store: AsyncStore, dsn: str) -> None:
    canary = {"role": "user", "content": CANARY, CANARY: 1}
    doomed = await store.conversation(CANARY, agent_id=CANARY, title=CANARY, tags=[CANARY], metadata={"x": CANARY})
    await doomed.begin_turn(canary, key=CANARY, state=canary)
    await doomed.save([canary], tool_calls=[{"id": CANARY}], state=canary)
    await doomed.save([canary], tool_results=[{"id": CANARY, "content": CANARY}], final=True)
    fork = await store.fork(CANARY, at=(0, 1), name=CANARY)
    await fork.save([canary])
    lease = await fork.claim(owner=CANARY)
    await fork.release(failure={"type": "x", "message": CANARY})
    assert lease.owner == CANARY
    child = await store.conversation(f"{CANARY} child", parent=CANARY)
    await child.begin_turn(canary)
    await store.post(CANARY, canary, key=f"{CANARY} posted")
    copy = await store.fork(CANARY, at=(0, 0), into="copy")
    kept = await store.conversation("kept")
    await kept.begin_turn({"role": "user", "content": "others"})
    assert places_of_canary(dsn) >= {"conversation", "branch", "message", "checkpoint", "request"}

    assert (await store.erase(CANARY)).conversations == 2
    with Observer(dsn) as observer:
        after = observer.counts()
        assert await store.erase(CANARY) == turnkeep.Erased(0, 0, 0, 0, 0)
        assert observer.counts() == after
    with pytest.raises(turnkeep.NotFoundError):
        await doomed.save([canary])
    assert (await store.restore("kept")).messages == [{"role": "user", "content": "others"}]
    assert (await store.restore(copy.conversation_id)).messages == [canary]  # a copy is a conversation of its own
    await store.erase("copy")
    assert places_of_canary(dsn) == set()


async def test_deletion_of_a_branch_cuts_no_ancestor_of_a_live_head(store: AsyncStore) -> None:
    main = await store.conversation("c")
    await main.begin_turn({"role": "user", "content": 0})
    for number in range(1, 100):
        await main.save([{"role": "tool", "content": number}])
    fork = await store.fork("c", at=(0, 60))
    await store.switch("c", fork.branch)
    with pytest.raises(turnkeep.ConflictError):
        await store.delete_branch("c", 0)
    await store.switch("c", 0)
    spare = await store.fork("c", at=(0, 50))
    await spare.save([{"role": "tool", "content": "spare"}])
    await store.delete_branch("c", spare.branch)
    assert [m["content"] for m in (await store.restore("c")).messages] == [*range(100)]
    assert [m["content"] for m in (await store.restore("c", branch=fork.branch)).messages] == [*range(61)]
    again = await store.fork("c", at=(0, 60), fork_id=uuid.uuid4())
    assert len((await store.restore("c", branch=again.branch)).messages) == 61


async def test_branching_both_lines_are_whole_after_an_edit_and_switching_to_and_fro(
    store: AsyncStore, dsn: str
) -> None:
    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    main = await store.conversation("c")
    for number in range(1, 6):
        await main.begin_turn(user(f"turn {number}"))
        await main.save([{"role": "assistant", "content": f"answer {number}"}], final=True)
    fork = await store.fork("c", at=(1, 1))
    for text in ("turn 3, edited", "turn 4, anew", "turn 5, anew"):
        await fork.begin_turn(user(text))
        await fork.save([{"role": "assistant", "content": "answer"}], final=True)
    await store.switch("c", fork.branch)

    async def users() -> list[str]:
        async with turnkeep.open(dsn) as restarted:
            messages = (await restarted.restore("c")).messages
        return [message["content"] for message in messages if message["role"] == "user"]

    old = [f"turn {number}" for number in range(1, 6)]
    new = ["turn 1", "turn 2", "turn 3, edited", "turn 4, anew", "turn 5, anew"]
    assert await users() == new
    await store.switch("c", 0)
    assert await users() == old
    await store.switch("c", fork.branch)
    assert await users() == new


async def test_branching_a_fork_beside_a_writer_is_a_prefix_and_its_retry_the_same_fork(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": 0})

    async def append() -> None:
        for number in range(1, 40):
            await branch.save([{"role": "tool", "content": number}])

    async def fork(number: int) -> turnkeep.AsyncBranch:
        fork_id = uuid.uuid4()
        made = await store.fork("c", fork_id=fork_id, at=(0, 0) if number % 2 else None)
        assert (await store.fork("c", fork_id=fork_id, at=(0, 0) if number % 2 else None)).branch == made.branch
        return made

    appending = asyncio.ensure_future(append())
    forks = await asyncio.gather(*map(fork, range(8)))
    await appending
    assert len({one.branch for one in forks}) == 8
    for one in forks:
        contents = [message["content"] for message in (await store.restore("c", branch=one.branch)).messages]
        assert contents == [*range(len(contents))]
    assert len((await store.restore("c")).messages) == 40
