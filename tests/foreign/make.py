# mypy: ignore-errors
# ruff: noqa: S608
"""Writes what LangGraph's Postgres saver and the OpenAI Agents SDK really store, as SQL to be loaded by tests.

Run in an environment of its own: `pip install langgraph-checkpoint-postgres langchain-core "openai-agents[sqlalchemy]"
asyncpg`, then `python tests/foreign/make.py DSN` on an empty database.
"""

import asyncio
import sys
import uuid
from pathlib import Path

import psycopg

HERE = Path(__file__).parent


def langgraph(dsn: str) -> None:
    """Threads: with tools and a fork, with state of odd types, one of a subgraph."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.postgres import PostgresSaver

    def put(saver, config, messages, state, version, parent_step):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages, **state}
        checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], version)
        return saver.put(config, checkpoint, {"source": "loop", "step": parent_step}, checkpoint["channel_versions"])

    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        first = [
            SystemMessage("Be brief.", id="m0"),
            HumanMessage("Wetter in Köln? \U0001f600", id="m1"),
        ]
        called = AIMessage(
            content="",
            id="m2",
            tool_calls=[
                {"id": "call_1", "name": "weather", "args": {"city": "Köln", "days": 2}},
                {"id": "call_2", "name": "news", "args": {}},
            ],
            usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        )
        results = [
            ToolMessage("7 °C", tool_call_id="call_1", name="weather", id="m3"),
            ToolMessage([{"type": "text", "text": "nothing"}], tool_call_id="call_2", name="news", id="m4"),
        ]
        config = {"configurable": {"thread_id": "support-7", "checkpoint_ns": ""}}
        state = {
            "count": 1,
            "who": uuid.UUID(int=7),
            "raw": b"\x00\xff",
            "tags": {"a"},
            "nested": {"k": [1, None]},
        }
        config = put(saver, config, first, state, "1", 0)
        saver.put_writes(config, [("messages", called)], "task-1")
        config = put(saver, config, [*first, called], state, "2", 1)
        config = put(saver, config, [*first, called, *results], {**state, "count": 2}, "3", 2)
        put(saver, config, [*first, called, *results, AIMessage("7 °C, and nothing new.", id="m5")], state, "4", 3)
        inner = {"configurable": {"thread_id": "support-7", "checkpoint_ns": "researcher:1"}}
        put(saver, inner, [HumanMessage("look it up", id="n1"), AIMessage("looked", id="n2")], {}, "1", 0)
        waits = {"configurable": {"thread_id": "waits", "checkpoint_ns": ""}}
        put(saver, waits, [HumanMessage("hello", id="w1"), called], {}, "1", 0)
        put(saver, {"configurable": {"thread_id": "no messages", "checkpoint_ns": ""}}, [], {"x": 1.5}, "1", 0)


async def agents(dsn: str) -> None:
    """Sessions: two turns with a tool, and one that was cut in the middle of a call."""
    from agents.extensions.memory import SQLAlchemySession

    url = dsn.replace("postgresql://", "postgresql+asyncpg://")
    session = SQLAlchemySession.from_url("user-1", url=url, create_tables=True)
    await session.add_items(
        [
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "weather",
                "arguments": '{"city": "Köln"}',
                "id": "fc_1",
            },
            {"type": "function_call_output", "call_id": "c1", "output": "7 °C"},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "7 °C", "annotations": []}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "thanks"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "welcome"}]},
        ]
    )
    cut = SQLAlchemySession.from_url("cut", url=url)
    await cut.add_items(
        [
            {"role": "user", "content": "order 7"},
            {"type": "function_call", "call_id": "c9", "name": "order", "arguments": "{}"},
        ]
    )


def dump(dsn: str, tables: list[str], file: str) -> None:
    """The tables' definitions and rows as SQL that any psycopg connection can run."""
    with psycopg.connect(dsn) as connection:
        parts = []
        for table in tables:
            columns = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            parts.append(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)});")
            for row in connection.execute(f"SELECT {', '.join(f'{name}::text' for name, _ in columns)} FROM {table}"):
                values = ", ".join("NULL" if one is None else psycopg.sql.quote(one, connection) for one in row)
                parts.append(f"INSERT INTO {table} VALUES ({values});")
    (HERE / file).write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    langgraph(sys.argv[1])
    asyncio.run(agents(sys.argv[1]))
    dump(sys.argv[1], ["checkpoints", "checkpoint_blobs", "checkpoint_writes"], "langgraph.sql")
    dump(sys.argv[1], ["agent_sessions", "agent_messages"], "agents_sdk.sql")
