"""G9: plain SQL reads everything, in the published shape, with the published query."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from turnkeep import AsyncStore

PUBLISHED = (
    "SELECT * FROM agent_checkpoints WHERE conversation_id = %s ORDER BY turn_index DESC, created_at DESC LIMIT 1"
)
COLUMNS = [
    ("id", "bigint"), ("conversation_id", "uuid"), ("turn_index", "integer"), ("agent_id", "text"),
    ("parent_turn_id", "bigint"), ("created_at", "timestamp with time zone"), ("messages", "jsonb"),
    ("tool_calls", "jsonb"), ("tool_results", "jsonb"), ("state", "jsonb"), ("embedding", "vector"),
    ("branch", "integer"), ("sub_step", "integer"), ("phase", "text"),
]  # fmt: skip


async def talk(store: AsyncStore, name: str, turns: int, first: int = 0, agent: str = "support") -> Any:
    branch = await store.conversation(name, agent_id=agent)
    for turn in range(first, first + turns):
        call = {"id": f"call_{turn}", "name": "look"}
        await branch.begin_turn({"role": "user", "content": f"question {turn}"}, state={"step_count": turn})
        await branch.save([{"role": "assistant", "content": None}], tool_calls=[call])
        await branch.save([{"role": "tool", "content": "x"}], tool_results=[{"tool_call_id": call["id"]}])
        await branch.save([{"role": "assistant", "content": f"answer {turn}"}], final=True)
    return branch


def connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, options="-c search_path=turnkeep,public")


@pytest.mark.pgvector
@pytest.mark.parametrize("view", ["agent_checkpoints", "all_checkpoints"])
async def test_the_columns_are_those_that_are_published(store: AsyncStore, dsn: str, view: str) -> None:
    with connect(dsn) as connection:
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (view,),
        ).fetchall()
    assert rows == COLUMNS


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
        connection.execute("UPDATE conversation SET current_branch = 1")
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


async def test_lookups_by_agent_use_an_index(store: AsyncStore, dsn: str) -> None:
    await talk(store, "c", 1)
    await talk(store, "d", 1, agent="sales")
    with connect(dsn) as connection:
        rows = connection.execute("SELECT DISTINCT conversation_id FROM agent_checkpoints WHERE agent_id = 'sales'")
        assert len(rows.fetchall()) == 1
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT id FROM agent_checkpoints WHERE agent_id = 'sales'").fetchall()
    assert "checkpoint_agent" in str(plan)


async def test_the_recursive_walk_reaches_the_first_checkpoint(store: AsyncStore, dsn: str) -> None:
    branch = await talk(store, "c", 5)
    with connect(dsn) as connection:
        rows = connection.execute(
            """
            WITH RECURSIVE walk AS (
                (SELECT id, conversation_id, parent_turn_id FROM agent_checkpoints WHERE conversation_id = %s
                 ORDER BY turn_index DESC, created_at DESC LIMIT 1)
                UNION ALL
                SELECT p.id, p.conversation_id, p.parent_turn_id FROM walk AS w
                JOIN agent_checkpoints AS p ON p.conversation_id = w.conversation_id AND p.id = w.parent_turn_id
            ) SELECT count(*) FROM walk
            """,
            (branch.conversation_id,),
        ).fetchall()
    assert rows == [(20,)]
