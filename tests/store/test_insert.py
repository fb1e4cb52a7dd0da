"""INSERT INTO agent_checkpoints: any language writes with plain SQL, under the store's guarantees."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

import turnkeep
from tests.observing import Observer
from tests.store.plain_sql import connect
from tests.store.test_hostile import OBJECTS
from turnkeep import AsyncStore

ID = uuid.UUID(int=7)
OTHER = uuid.UUID(int=8)
USER = {"role": "user", "content": "weather?"}
ASKED = {"role": "assistant", "content": None}
TOOL = {"role": "tool", "content": "sunny"}
ANSWER = {"role": "assistant", "content": "It is sunny."}
CALL = {"id": "call_1", "name": "weather"}
RESULT = {"tool_call_id": "call_1"}
RETURNED = "turn_index, sub_step, phase, branch"
VECTOR = "[" + ",".join(["0.5"] * 768) + "]"
# A conversation, written again under another id.
COPY = """
INSERT INTO agent_checkpoints (conversation_id, turn_index, agent_id, messages, tool_calls, tool_results, state,
    embedding, sub_step, phase)
SELECT %s, turn_index, agent_id, messages, tool_calls, tool_results, state, embedding, sub_step, phase
FROM agent_checkpoints ORDER BY turn_index, sub_step
"""
KEPT = """
SELECT turn_index, sub_step, agent_id, messages, tool_calls, tool_results, state, embedding::text, phase
FROM agent_checkpoints GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 HAVING count(*) = 2
"""

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    with connect(dsn) as opened:
        yield opened


def insert(connection: Connection, turn: int, messages: Any = None, returning: Any = RETURNED, **columns: Any) -> Any:
    """Insert a row and give what it says is stored."""
    row = {"conversation_id": ID, "turn_index": turn, "messages": messages, **columns}
    values = [Jsonb(value) if isinstance(value, dict | list) else value for value in row.values()]
    query = sql.SQL("INSERT INTO agent_checkpoints ({}) VALUES ({}) RETURNING {}").format(
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join([sql.Placeholder()] * len(row)),
        sql.SQL(returning),
    )
    return connection.execute(query, values).fetchone()


def rows(connection: Connection, columns: Any = RETURNED) -> list[Any]:
    query = sql.SQL("SELECT {} FROM agent_checkpoints ORDER BY conversation_id, turn_index, sub_step")
    return connection.execute(query.format(sql.SQL(columns))).fetchall()


def refused(code: str, connection: Connection, observer: Observer, match: str, *args: Any, **columns: Any) -> None:
    """See a row refused with this SQLSTATE, a message and a hint, and nothing of it kept."""
    before = observer.counts(), observer.heads()
    with pytest.raises(psycopg.Error, match=match) as raised:
        insert(connection, *args, **columns)
    assert raised.value.sqlstate == code
    assert raised.value.diag.message_hint
    assert (observer.counts(), observer.heads()) == before


def in_a_turn(connection: Connection) -> None:
    """A conversation with a tool call pending, as one who knows no phases writes it."""
    insert(connection, 0, [USER], agent_id="support", state={"step_count": 0})
    insert(connection, 0, [USER, ASKED], agent_id="support", tool_calls=[CALL], state={"step_count": 1})


async def test_a_whole_conversation_is_what_the_store_would_have_made(
    store: AsyncStore, connection: Connection
) -> None:
    in_a_turn(connection)
    insert(connection, 0, [USER, ASKED, TOOL], tool_results=[RESULT], agent_id="support")
    insert(connection, 0, [USER, ASKED, TOOL, ANSWER], state={"flags": {"is_final": True}})
    assert rows(connection) == [
        (0, 0, "input", 0), (0, 1, "tool_calls", 0), (0, 2, "tool_results", 0), (0, 3, "final", 0)
    ]  # fmt: skip
    restored = await store.restore(ID)
    assert restored.external_id == str(ID)
    assert restored.messages == [USER, ASKED, TOOL, ANSWER]
    assert (restored.state, restored.agent_id) == ({"flags": {"is_final": True}}, "support")
    assert (restored.turn_open, restored.status, restored.pending) == (False, "idle", ())
    branch = await store.conversation(ID)
    await branch.begin_turn(USER)
    assert len((await store.restore(ID)).messages) == 5


async def test_each_message_is_stored_once(store: AsyncStore, connection: Connection, observer: Observer) -> None:
    messages = [{"role": "user", "content": f"{n}" * 100} for n in range(30)]
    for count in range(1, 31):
        insert(connection, 0, messages[:count])
    assert observer.counts()["message"] == 30
    summary = {"role": "system", "content": "what was said"}
    insert(connection, 0, [summary, *messages[20:]])
    insert(connection, 0, [*messages[:5], *messages[20:]])
    insert(connection, 0, [*messages[:5], summary, *messages[20:]])
    insert(connection, 0, [*messages[:5], summary, *messages[20:], ANSWER])
    assert observer.counts()["message"] == 30 + 1 + 5 + 2
    assert (await store.restore(ID)).messages == [*messages[:5], summary, *messages[20:], ANSWER]
    insert(connection, 0, [])
    assert (await store.restore(ID)).messages == []


@pytest.mark.parametrize("seed", range(3))
async def test_any_list_after_any_other_comes_back(store: AsyncStore, connection: Connection, seed: int) -> None:
    import random

    chance = random.Random(seed)
    pool = [{"role": "user", "n": n} for n in range(2)]  # lists that are alike in many ways
    for sub_step in range(40):
        messages = chance.choices(pool, k=chance.randrange(0, 7))
        stored = insert(connection, 0, messages, "sub_step, messages", sub_step=sub_step)
        assert stored == (sub_step, messages)
        assert (await store.restore(ID)).messages == messages
    assert [row[0] for row in rows(connection, "sub_step")] == list(range(40))


def test_what_is_stored_comes_back_by_returning(connection: Connection) -> None:
    first = insert(connection, 0, [USER], "*", state={"a": 1}, created_at="1999-01-01")
    insert(connection, 0, [USER, ASKED], tool_calls=[CALL])
    third = insert(connection, 0, None, "*", tool_results=[RESULT])
    seen = rows(connection, "*")
    assert [first, third] == [seen[0], seen[2]]
    assert first[5].year > 1999
    assert third[6] == [USER, ASKED]
    assert third[9] == {"a": 1, "sub_step": 2}


def test_a_turn_that_is_one_row_is_opened_and_ended(connection: Connection) -> None:
    row = insert(connection, 0, [USER, ANSWER], embedding=VECTOR, agent_id="a")
    assert row == (0, 1, "final", 0)
    assert rows(connection) == [(0, 0, "input", 0), (0, 1, "final", 0)]
    assert [embedding is None for (embedding,) in rows(connection, "embedding")] == [True, False]
    assert insert(connection, 0, [USER, ANSWER], embedding=VECTOR, agent_id="a") == row
    assert insert(connection, 0, [USER, ANSWER], embedding=VECTOR, sub_step=0) == row
    assert insert(connection, 1, [USER, ANSWER, USER, ANSWER], phase="final")[:3] == (1, 1, "final")


def test_a_turn_that_goes_on_is_not_one_that_its_first_row_has_ended(
    connection: Connection, observer: Observer
) -> None:
    insert(connection, 0, [USER])
    refused("TK004", connection, observer, "head is 0.0", 0, [USER], phase="final", sub_step=0)


def test_the_next_turn_ends_the_one_before(connection: Connection) -> None:
    first = insert(connection, 0, [USER], "id")[0]
    insert(connection, 1, [USER, USER], parent_turn_id=first)
    assert rows(connection)[1:] == [(0, 1, "final", 0), (1, 0, "input", 0)]
    assert insert(connection, 0, [USER]) == (0, 0, "input", 0)  # known again beneath the row that ended its turn
    assert insert(connection, 1, [USER, USER], parent_turn_id=first) == (1, 0, "input", 0)
    assert len(rows(connection)) == 3


async def test_a_request_that_waits_is_taken_up_when_a_row_ends_the_turn(
    store: AsyncStore, connection: Connection
) -> None:
    insert(connection, 0, [USER])
    await store.post(ID, USER, key="k")
    insert(connection, 0, [USER, ANSWER], phase="final")
    assert (await store.restore(ID)).status == "ready"


@pytest.mark.parametrize("sub_step", [{"sub_step": 1}, {"state": {"sub_step": 1}}, {"state": {"sub_step": 1.0}}, {}])
def test_the_place_is_what_the_row_says_or_the_next_one(connection: Connection, sub_step: dict[str, Any]) -> None:
    insert(connection, 0, [USER])
    assert insert(connection, 0, [USER, ASKED], **sub_step) == (0, 1, "step", 0)
    assert insert(connection, 0, [USER, ASKED], **sub_step) == (0, 1, "step", 0)
    assert len(rows(connection)) == 2


@pytest.mark.parametrize("state", [{"sub_step": 1.5}, {"sub_step": "9"}, {"sub_step": 1e300}, [5], None])
def test_a_sub_step_that_is_no_whole_number_names_no_place(connection: Connection, state: Any) -> None:
    insert(connection, 0, [USER])
    assert insert(connection, 0, [USER, ASKED], state=state) == (0, 1, "step", 0)


@pytest.mark.parametrize(
    ("turn", "columns", "head"),
    [
        (2, {}, "head is 0.1"),
        (-1, {}, "head is 0.1"),
        (0, {"sub_step": 3}, "head is 0.1"),
        (0, {"sub_step": 0}, "head is 0.1"),
        (0, {"sub_step": 1}, "head is 0.1"),
        (0, {"state": {"sub_step": 1}}, "head is 0.1"),
        (1, {"sub_step": 1}, "head is 0.1"),
        (0, {"parent_turn_id": 1}, "extends 2"),
        (0, {"parent_turn_id": 99}, "extends 2"),
        (1, {"conversation_id": OTHER}, "the first turn is 0"),
        (0, {"conversation_id": OTHER, "parent_turn_id": 1}, "extends nothing"),
    ],
)
def test_another_place_is_refused_and_the_head_named(
    connection: Connection, observer: Observer, turn: int, columns: dict[str, Any], head: str
) -> None:
    in_a_turn(connection)
    refused("TK004", connection, observer, head, turn, [USER, ASKED, TOOL], **columns)


def test_other_content_at_the_same_place_is_refused(connection: Connection, observer: Observer) -> None:
    insert(connection, 0, [USER])
    row = {"messages": [USER, ASKED], "tool_calls": [CALL], "state": {"a": 1}}
    insert(connection, 0, sub_step=1, **row)
    others: list[dict[str, Any]] = [
        {"messages": [USER, TOOL]}, {"messages": [USER, ASKED, ASKED]}, {"messages": [USER]}, {"messages": None},
        {"tool_calls": [{"id": "call_2"}]}, {"tool_calls": None}, {"tool_results": [RESULT]}, {"state": {"a": 2}},
        {"state": None}, {"phase": "final"}, {"phase": "step"},
    ]  # fmt: skip
    for other in others:
        refused("TK004", connection, observer, "head is 0.1", 0, **{"sub_step": 1, **row, **other})
    assert insert(connection, 0, sub_step=1, **row, phase="tool_calls", agent_id="other") == (0, 1, "tool_calls", 0)
    assert insert(connection, 0, **{**row, "state": {"sub_step": 1, "a": 1}}) == (0, 1, "tool_calls", 0)
    insert(connection, 0, tool_results=[RESULT])
    insert(connection, 0, phase="final", embedding=VECTOR)
    refused("TK004", connection, observer, "another embedding", 0, phase="final", embedding=VECTOR.replace("5", "25"))
    assert insert(connection, 0, sub_step=1, **row) == (0, 1, "tool_calls", 0)
    assert len(rows(connection)) == 4


def test_a_pending_call_is_named_before_the_turn_can_end(connection: Connection, observer: Observer) -> None:
    in_a_turn(connection)
    named = r"weather \(call_1\) of turn 0\.1"
    refused("TK001", connection, observer, named, 1, [USER, ASKED, USER])
    refused("TK001", connection, observer, named, 0, [USER, ASKED, USER], phase="final")
    refused(
        "TK001", connection, observer, "call_9", 0, tool_calls=[{"id": "call_9"}], phase="final", conversation_id=OTHER
    )
    insert(connection, 0, [USER, ASKED, TOOL, ANSWER], tool_results=[RESULT], phase="final")
    refused("TK002", connection, observer, "has ended", 0, [USER])
    refused("TK002", connection, observer, "has ended", 0, [USER], sub_step=3)


def test_results_settle_the_calls_they_name(connection: Connection, observer: Observer) -> None:
    in_a_turn(connection)
    same = [{"id": "x", "n": 1}, {"id": "x", "n": 2}, {"tool_use_id": "u", "id": "other"}, {"n": 3}]
    insert(connection, 0, tool_calls=same, tool_results=[RESULT])
    refused("22023", connection, observer, "pending: call", 0, tool_results=[RESULT])
    refused("22023", connection, observer, r"tool_results\[1\]", 0, tool_results=[{"id": "x"}, {}])
    insert(connection, 0, tool_results=[{"call_id": "x", "id": "no"}, {"tool_use_id": "u"}, {"id": "x"}])
    answers = connection.execute("SELECT answers FROM checkpoint ORDER BY sub_step DESC LIMIT 1").fetchone()
    assert answers == ([0, 2, 0, 0, 2, 2, 0, 2, 1],)
    insert(connection, 0, tool_results=[{"the only one": 1}])
    assert connection.execute("SELECT count(*) FROM pending_calls").fetchone() == (0,)
    refused("22023", connection, observer, "pending: none", 0, tool_results=[{}])


async def test_a_started_row_says_that_all_pending_calls_are_about_to_run(
    store: AsyncStore, connection: Connection, observer: Observer
) -> None:
    insert(connection, 0, [USER])
    refused("22023", connection, observer, "pending: none", 0, phase="started")
    insert(connection, 0, tool_calls=[CALL, {"id": "call_2"}])
    refused("22023", connection, observer, "only says", 0, [USER, TOOL], phase="started")
    refused("22023", connection, observer, "only says", 0, tool_results=[RESULT], phase="started")
    assert insert(connection, 0, phase="started") == (0, 2, "started", 0)
    assert [call.attempts for call in (await store.restore(ID)).pending] == [1, 1]


async def test_a_live_lease_is_respected(
    store: AsyncStore, connection: Connection, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    in_a_turn(connection)
    branch = await store.conversation(ID)
    await branch.claim(owner="worker 5", seconds=60)
    refused("55P03", connection, observer, "worker 5", 0, tool_results=[RESULT])
    refused("55P03", connection, observer, "worker 5", 1, [USER])
    again = insert(connection, 0, [USER, ASKED], tool_calls=[CALL], state={"step_count": 1})
    assert again == (0, 1, "tool_calls", 0)  # a retry is harmless all the same
    advance(timedelta(seconds=61))
    insert(connection, 0, tool_results=[RESULT])
    with pytest.raises(turnkeep.LeaseLostError):
        await branch.save([TOOL], tool_results=[RESULT])


async def test_what_has_ended_takes_no_row(store: AsyncStore, connection: Connection, observer: Observer) -> None:
    insert(connection, 0, [USER, ANSWER], phase="final")
    await store.end(ID)
    refused("TK003", connection, observer, "ended", 1, [USER])
    assert insert(connection, 0, [USER, ANSWER], phase="final") == (0, 1, "final", 0)
    await store.reopen(ID)
    insert(connection, 1, [USER])


async def test_a_row_goes_to_the_current_branch_or_the_one_it_names(
    store: AsyncStore, connection: Connection, observer: Observer
) -> None:
    in_a_turn(connection)
    fork = await store.fork(ID, at=(0, 1))
    insert(connection, 0, [USER, ASKED, ANSWER], branch=fork.branch, tool_results=[RESULT], phase="final")
    assert rows(connection) == [(0, 0, "input", 0), (0, 1, "tool_calls", 0)]
    past = insert(connection, 0, [USER], branch=1, state={"step_count": 0}, sub_step=0)
    assert past == (0, 0, "input", 0)  # the other one's
    await store.switch(ID, fork.branch)
    assert insert(connection, 1, [USER]) == (1, 0, "input", 1)
    refused("P0002", connection, observer, "no branch 5", 1, [USER], branch=5)
    refused("P0002", connection, observer, "no branch 1", 0, [USER], branch=1, conversation_id=OTHER)


@pytest.mark.parametrize(
    ("code", "match", "columns"),
    [
        ("23502", "needed", {"conversation_id": None}),
        ("23502", "needed", {"turn_index": None}),
        ("428C9", "by the database", {"id": 5}),
        ("22023", "phase", {"phase": "begin"}),
        ("22023", "phase", {"phase": "step", "embedding": VECTOR}),
        ("22023", "phase step", {"phase": "step", "turn_index": 1}),
        ("22023", "phase input", {"phase": "input"}),
        ("22023", "array of objects", {"messages": Jsonb({"role": "user"})}),
        ("22023", r"messages\[1\] is of type string", {"messages": [USER, "text"]}),
        ("22023", "tool_calls: an array", {"tool_calls": Jsonb({"id": "x"})}),
        ("22023", "tool_results: an array", {"tool_results": Jsonb("x")}),
        ("54000", "state: more than 500", {"state": Jsonb(json.loads("[" * 501 + "]" * 501))}),
        ("54000", r"messages\[0\]: more than 500", {"messages": [{"a": json.loads("[" * 500 + "]" * 500)}]}),
        ("54000", r"tool_calls\[0\]: \d+ bytes", {"tool_calls": ["x" * (64 << 20)]}),
    ],
)
def test_what_no_checkpoint_can_be_made_of_is_refused(
    connection: Connection, observer: Observer, code: str, match: str, columns: dict[str, Any]
) -> None:
    insert(connection, 0, [USER])
    refused(code, connection, observer, match, **{"turn": 0, "messages": [USER, ASKED], **columns})


def test_an_embedding_of_other_dimensions_is_refused(connection: Connection, observer: Observer) -> None:
    before = observer.counts()
    with pytest.raises(psycopg.Error, match="768 dimensions"):
        insert(connection, 0, [USER], embedding="[1,2,3]")
    assert observer.counts() == before


def test_a_history_is_copied_by_one_statement_or_not_at_all(connection: Connection, observer: Observer) -> None:
    in_a_turn(connection)
    insert(connection, 0, phase="started")
    insert(connection, 0, [USER, ASKED, TOOL], tool_results=[RESULT])
    insert(connection, 0, [USER, ASKED, TOOL, ANSWER], phase="final", embedding=VECTOR)
    insert(connection, 1, [USER, ASKED, TOOL, ANSWER, USER])
    before = observer.counts()
    with pytest.raises(psycopg.Error):
        connection.execute(COPY.replace("ORDER BY turn_index", "ORDER BY -turn_index").encode(), (OTHER,))
    assert observer.counts() == before
    connection.execute(COPY.encode(), (OTHER,))
    count = observer.counts()["checkpoint"]
    assert count == 2 * before["checkpoint"]
    assert len(connection.execute(KEPT).fetchall()) == count / 2  # each is there twice


def test_copy_from_writes_too(connection: Connection) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY agent_checkpoints (conversation_id, turn_index, messages) FROM STDIN") as copy,
    ):
        for count in range(1, 4):
            copy.write_row((ID, 0, json.dumps([USER] * count)))
    assert [row[:3] for row in rows(connection)] == [(0, 0, "input"), (0, 1, "step"), (0, 2, "step")]


def test_on_conflict_do_nothing_is_allowed(connection: Connection, observer: Observer) -> None:
    statement = (
        "INSERT INTO agent_checkpoints (conversation_id, turn_index, messages) VALUES (%s, 0, '[{}]')"
        " ON CONFLICT DO NOTHING RETURNING id"
    )
    assert connection.execute(statement, (ID,)).fetchall() == connection.execute(statement, (ID,)).fetchall()
    assert observer.counts()["checkpoint"] == 1


@pytest.mark.parametrize("statement", ["UPDATE agent_checkpoints SET phase = 'x'", "DELETE FROM agent_checkpoints"])
def test_checkpoints_are_not_changed(connection: Connection, statement: str) -> None:
    for _ in range(2):  # with no row to change, and with one
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="never change"):
            connection.execute(statement.encode())
        insert(connection, 0, [USER])


async def test_who_sends_what_is_shown_keeps_what_is_not(store: AsyncStore, connection: Connection) -> None:
    raw = turnkeep.RawJSON(r'{"role": "user", "content": "a\u0000b"}')
    branch = await store.conversation(ID)
    await branch.begin_turn([raw, USER])
    ((shown,),) = connection.execute("SELECT messages FROM agent_checkpoints").fetchall()
    insert(connection, 0, [*shown, ANSWER])
    assert (await store.restore(ID)).message_texts[0] == raw.text


def test_a_message_too_large_to_show_is_known_again(connection: Connection, observer: Observer) -> None:
    large = {"role": "user", "content": "x" * (17 << 20)}
    insert(connection, 0, [large])
    insert(connection, 0, [large, USER])
    insert(connection, 0, [large, USER])
    assert observer.counts()["message"] == 2
    insert(connection, 0, [{**large, "content": "y" * (17 << 20)}, USER])
    assert observer.counts()["message"] == 3


@pytest.mark.parametrize("path", ["public,pg_catalog,turnkeep", "public,turnkeep", "turnkeep,public,pg_catalog"])
def test_objects_of_the_same_name_in_public_change_nothing(dsn: str, path: str) -> None:
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={path}") as connection:
        connection.execute(OBJECTS)
        in_a_turn(connection)
        in_a_turn_again = insert(connection, 0, [USER, ASKED], tool_calls=[CALL], state={"step_count": 1})
        assert in_a_turn_again == (0, 1, "tool_calls", 0)
        assert connection.execute("SELECT call_id, attempts FROM pending_calls").fetchall() == [("call_1", 0)]
        insert(connection, 0, [ASKED, USER, TOOL], tool_results=[RESULT])
        insert(connection, 1, [ASKED, USER, TOOL, ANSWER], embedding=VECTOR)
        assert connection.execute("SELECT index, body FROM agent_messages").fetchall() == list(
            enumerate([ASKED, USER, TOOL, ANSWER])
        )
        assert [row[:3] for row in rows(connection)][2:] == [
            (0, 2, "tool_results"), (0, 3, "final"), (1, 0, "input"), (1, 1, "final")
        ]  # fmt: skip
