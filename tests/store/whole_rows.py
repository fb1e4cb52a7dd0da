"""All rows of all tables, as text: what was put away or carried over must be there again, whatever it was."""

from __future__ import annotations

import io
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

import turnkeep
from tests.awkward_json import NUMBERS
from turnkeep import AsyncStore, RawJSON

TABLES = ("conversation", "branch", "message", "checkpoint", "request", "document", "archive")
# What a database numbers itself, and when something is next to be done about a document.
OWN = {
    "checkpoint": ("id",),
    "request": ("number",),
    "document": ("next_try_at",),
    "archive": ("digest", "payload", "raw_bytes"),
}
NEVER = {"conversation": ("kept_since",)}  # when it came here, or back
AWKWARD = (
    '{"role": "user",\n "content": "a\\u0000b \\ud800 \u2028 \\n", "role": "user"}',
    f'{{"role": "tool", "n": [{", ".join(NUMBERS)}]}}',
    '{"role":"assistant","content":"é 🚀 \U0010ffff \\\\u0000"}',
)


def rows(dsn: str, conversations: Sequence[uuid.UUID] | None = None, *, exact: bool = False) -> dict[str, list[Any]]:
    """The rows of each table, in order; with `exact`, a database's own numbers as well."""
    found = {}
    with psycopg.connect(dsn) as connection:
        for table in TABLES:
            columns = sql.SQL(", ").join(
                sql.SQL("t.{}::text").format(sql.Identifier(name))
                for (name,) in connection.execute(
                    "SELECT column_name FROM information_schema.columns"
                    " WHERE table_schema = 'turnkeep' AND table_name = %s ORDER BY ordinal_position",
                    (table,),
                )
                if (exact or name not in OWN.get(table, ())) and name not in NEVER.get(table, ())
            )
            query = sql.SQL(
                "SELECT {0} FROM turnkeep.{1} AS t WHERE %(ids)s::uuid[] IS NULL OR t.conversation_id = ANY (%(ids)s)"
                " ORDER BY {0}"
            ).format(columns, sql.Identifier(table))
            ids = None if conversations is None else list(conversations)
            found[table] = connection.execute(query, {"ids": ids}).fetchall()
    return found


async def rich(store: AsyncStore, name: str, *, ended: bool = False, parent: str | None = None) -> uuid.UUID:
    """A conversation with everything: forks of forks, odd JSON, calls, state, a compaction, a taken key, details."""
    branch = await store.conversation(
        name,
        agent_id="support",
        parent=parent,
        title=f"About {name} é",
        tags=["vip", "eu"],
        metadata={"n": 1.5, "k": []},
    )
    for number in range(3):
        await branch.begin_turn(RawJSON(AWKWARD[0]), key=f"key {number}", state={"step": number})
        calls = [{"id": "a", "name": "f"}, {"id": "b", "name": "g", "arguments": '{"x"'}]
        await branch.save([RawJSON(AWKWARD[2])], tool_calls=calls)
        await branch.save([RawJSON(AWKWARD[1])], tool_results=[{"tool_call_id": "b", "content": number}])
        await branch.save([{"role": "tool", "content": 1}], tool_results=[{"tool_call_id": "a"}], state=RawJSON("1.0"))
        await branch.save([{"role": "assistant", "content": "so"}], final=True)
    side = await store.fork(name, at=(1, 2), name="side ü")
    await side.save([{"role": "tool"}], tool_results=[{"tool_call_id": "a"}], final=True)
    await side.begin_turn({"role": "user", "content": "again"}, key="on the side")
    await side.save([{"role": "assistant", "content": "yes"}], final=True)
    await store.fork(name, branch="side ü", at=(1, 3))
    await branch.begin_turn({"role": "user", "content": "and now"})
    texts = (await store.restore(name)).message_texts
    await branch.save_all([{"role": "system", "content": "in short"}, *map(RawJSON, texts[-3:])], final=True)
    await store.update(name, metadata={"later": True})
    if ended:
        await store.end(name)
    return branch.conversation_id


async def exported(store: AsyncStore, *conversations: str, **options: Any) -> bytes:
    """An export of these conversations, or of all."""
    file = io.BytesIO()
    await store.export(file, list(conversations) or None, **options)
    return file.getvalue()


async def imported(store: AsyncStore, data: bytes, **options: Any) -> turnkeep.Transferred:
    """What an import of that comes to."""
    return await store.import_(io.BytesIO(data), **options)
