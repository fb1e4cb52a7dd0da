"""G9: plain SQL reads everything, in the published shape, with the published query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.store.plain_sql import connect
from turnkeep import AsyncStore, RawJSON

PUBLISHED = (
    "SELECT * FROM agent_checkpoints WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1"
)
COLUMNS = [
    ("id", "bigint"), ("conversation_id", "uuid"), ("turn_index", "integer"), ("agent_id", "text"),
    ("parent_turn_id", "bigint"), ("created_at", "timestamp with time zone"), ("messages", "jsonb"),
    ("tool_calls", "jsonb"), ("tool_results", "jsonb"), ("state", "jsonb"), ("embedding", "vector"),
    ("branch", "integer"), ("sub_step", "integer"), ("phase", "text"),
    ("parent_turn_index", "integer"), ("parent_sub_step", "integer"), ("parent_branch", "integer"),
]  # fmt: skip
MESSAGES = [
    ("conversation_id", "uuid"), ("branch", "integer"), ("index", "integer"), ("role", "text"), ("body", "jsonb"),
    ("body_text", "text"),
]  # fmt: skip
PENDING = [
    ("conversation_id", "uuid"), ("branch", "integer"), ("turn_index", "integer"), ("sub_step", "integer"),
    ("index", "integer"), ("call_id", "text"), ("name", "text"), ("call", "jsonb"), ("attempts", "integer"),
    ("uncertain", "boolean"), ("issued_conversation", "uuid"), ("issued_branch", "integer"),
    ("issued_at", "timestamp with time zone"), ("agent_id", "text"), ("status", "text"), ("lease_owner", "text"),
    ("lease_until", "timestamp with time zone"),
]  # fmt: skip
PUBLIC = {
    "agent_checkpoints": COLUMNS, "all_checkpoints": COLUMNS, "agent_messages": MESSAGES, "all_messages": MESSAGES,
    "pending_calls": PENDING,
}  # fmt: skip
WALK = """
WITH RECURSIVE walk AS (
    (SELECT * FROM agent_checkpoints WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1)
    UNION ALL
    SELECT p.* FROM walk AS w JOIN agent_checkpoints AS p
        ON p.conversation_id = w.conversation_id AND
) SELECT turn_index, sub_step, branch FROM walk
"""
BY_PLACE = WALK.replace(
    "AND\n",
    "AND p.turn_index = w.parent_turn_index AND p.sub_step = w.parent_sub_step AND p.branch = w.parent_branch\n",
)
BY_ID = WALK.replace("AND\n", "AND p.id = w.parent_turn_id\n")


async def talk(store: AsyncStore, name: str, turns: int, first: int = 0, agent: str = "support") -> Any:
    branch = await store.conversation(name, agent_id=agent)
    for turn in range(first, first + turns):
        call = {"id": f"call_{turn}", "name": "look"}
        await branch.begin_turn({"role": "user", "content": f"question {turn}"}, state={"step_count": turn})
        await branch.save([{"role": "assistant", "content": None}], tool_calls=[call])
        await branch.save([{"role": "tool", "content": "x"}], tool_results=[{"tool_call_id": call["id"]}])
        await branch.save([{"role": "assistant", "content": f"answer {turn}"}], final=True)
    return branch


@pytest.mark.pgvector
@pytest.mark.parametrize("view", PUBLIC)
def test_the_columns_are_those_that_are_published(dsn: str, view: str) -> None:
    with connect(dsn) as connection:
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (view,),
        ).fetchall()
    assert rows == PUBLIC[view]


async def test_the_published_query_gives_the_newest_checkpoint_whole(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c", 3)
    await talk(store, "other", 5)
    with connect(dsn) as connection:
        (row,) = connection.execute(PUBLISHED, (branch.conversation_id,)).fetchall()
        names = [name for name, _ in COLUMNS]
        newest = dict(zip(names, row, strict=True))
        parents = connection.execute(
            "SELECT id, parent_turn_id FROM agent_checkpoints WHERE conversation_id = %s ORDER BY turn_index, sub_step",
            (branch.conversation_id,),
        ).fetchall()
    restored = await store.restore("c")
    assert newest["messages"] == restored.messages
    assert newest["state"] == {"step_count": 2, "sub_step": 3}
    assert (newest["turn_index"], newest["sub_step"], newest["phase"]) == (2, 3, "final")
    assert newest["agent_id"] == "support"
    assert [parent for _, parent in parents] == [None, *(own for own, _ in parents[:-1])]


@pytest.mark.parametrize("turns", [10, 100, 300])
async def test_the_published_query_goes_by_index_and_builds_no_other_rows_messages(
    store: AsyncStore, dsn: str, turns: int
) -> None:
    branch = await talk(store, "c", turns)
    for number in range(5):
        await talk(store, f"other {number}", 20)
    with connect(dsn) as connection:
        connection.execute("ANALYZE")
        (plan,) = connection.execute("EXPLAIN (ANALYZE, FORMAT JSON, VERBOSE) " + PUBLISHED, (branch.conversation_id,))
    text = json.dumps(plan[0])
    assert '"Index Name": "checkpoint_pkey"' in text
    if turns > 10:  # with less than a page of rows to look at, reading them is as well
        assert '"Scan Direction": "Backward"' in text

    def computing(node: dict[str, Any]) -> list[int]:
        own = [node["Actual Rows"]] if any("messages_of(" in column for column in node.get("Output", [])) else []
        return own + [rows for child in node.get("Plans", []) for rows in computing(child)]

    assert computing(plan[0][0]["Plan"])
    assert set(computing(plan[0][0]["Plan"])) == {1}


async def test_the_reference_view_follows_the_current_branch_with_its_history(store: AsyncStore, dsn: str) -> None:
    await talk(store, "c", 3)
    fork = await store.fork("c", at=(1, 3))
    await fork.begin_turn({"role": "user", "content": "another way"})
    query = "SELECT turn_index, sub_step, branch FROM agent_checkpoints ORDER BY turn_index, sub_step"
    with connect(dsn) as connection:
        assert {row[2] for row in connection.execute(query)} == {0}
        await store.switch("c", 1)
        assert connection.execute(query).fetchall() == [
            *((turn, sub_step, 0) for turn in (0, 1) for sub_step in range(4)),
            (2, 0, 1),
        ]
        everything = connection.execute("SELECT count(*) FROM all_checkpoints").fetchone()
        (newest,) = connection.execute(PUBLISHED, (fork.conversation_id,)).fetchall()
    assert everything == (13,)
    assert newest[6] == (await store.restore("c")).messages


@pytest.mark.parametrize("state", ["[1,2]", "3", '"text"', "true", "null"])
async def test_a_state_that_is_no_object_is_left_as_it_is(store: AsyncStore, dsn: str, state: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user"}, state=json.loads(state))
    with connect(dsn) as connection:
        row = connection.execute("SELECT state::text FROM agent_checkpoints").fetchone()
    assert row == (json.dumps(json.loads(state)),)


async def test_values_too_large_to_show_do_not_fail_a_query(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([{"role": "user"}, {"content": "x" * 17_000_000}], state={"a": "x" * 17_000_000})
    with connect(dsn) as connection:
        row = connection.execute("SELECT messages, state FROM agent_checkpoints").fetchone()
        assert row is not None
        assert row[0][0] == {"role": "user"}
        assert "17000014 bytes" in row[0][1]["turnkeep_unrepresentable"]
        assert "17000008 bytes" in row[1]["turnkeep_unrepresentable"]
        connection.execute(
            "UPDATE message SET size = 70000000 WHERE position = 0"
        )  # what a checkpoint of that size has
        row = connection.execute("SELECT messages FROM agent_checkpoints").fetchone()
    assert row is not None
    assert "87000014 bytes" in row[0]["turnkeep_unrepresentable"]


@pytest.mark.parametrize("walk", [BY_PLACE, BY_ID], ids=["place", "id"])
async def test_the_recursive_walk_gives_the_whole_history(store: AsyncStore, dsn: str, walk: str) -> None:
    branch = await talk(store, "c", 3)
    fork = await store.fork("c", at=(1, 1))
    await fork.save(tool_results=[{"tool_call_id": "call_1"}], final=True)
    await talk(store, "other", 1)
    with connect(dsn) as connection:
        rows = connection.execute(walk.encode(), (branch.conversation_id,)).fetchall()
        assert rows == [(turn, sub_step, 0) for turn in (2, 1, 0) for sub_step in (3, 2, 1, 0)]
        await store.switch("c", fork.branch)
        expected = [(1, 2, 1), (1, 1, 0), (1, 0, 0), *((0, sub_step, 0) for sub_step in (3, 2, 1, 0))]
        assert connection.execute(walk.encode(), (branch.conversation_id,)).fetchall() == expected


async def test_the_messages_at_a_head_come_one_by_one_in_order(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c", 2)
    await talk(store, "other", 1)
    fork = await store.fork("c", at=(0, 1), name="retry")
    exact = RawJSON(r'{"role":"tool", "content":"\u0000", "n": 1e5000}')
    await fork.save([exact], tool_results=[1], answers=fork.pending, final=True)
    query = "SELECT index, role, body, body_text FROM agent_messages WHERE conversation_id = %s"
    for number in (branch.branch, fork.branch):
        await store.switch("c", number)
        restored = await store.restore("c")
        with connect(dsn) as connection:
            rows = connection.execute(query, (branch.conversation_id,)).fetchall()
            every = connection.execute(
                "SELECT index, role, body, body_text FROM all_messages WHERE conversation_id = %s AND branch = %s"
                " ORDER BY index",
                (branch.conversation_id, number),
            ).fetchall()
        assert [row[0] for row in rows] == list(range(len(restored.message_texts)))
        assert tuple(row[3] for row in rows) == restored.message_texts
        assert every == rows
    assert [row[1] for row in rows] == ["user", "assistant", "tool"]
    assert rows[0][2] == {"role": "user", "content": "question 0"}
    assert "turnkeep_unrepresentable" in rows[2][2]


async def test_the_messages_of_a_list_that_was_put_together_anew_are_in_its_order(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c", 3)
    kept = branch.messages
    await branch.begin_turn({"role": "user", "content": "go on"})
    await branch.save_all([{"role": "system", "content": "a summary"}, *kept[8:], kept[0]])
    with connect(dsn) as connection:
        rows = connection.execute("SELECT index, body FROM agent_messages").fetchall()
    assert rows == list(enumerate((await store.restore("c")).messages))
    assert len(rows) == 6
