"""The kind archive-restore: what comes out is what went in, in another database too, and twice is once."""

from __future__ import annotations

import io
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.conftest import Server, _database
from tests.store.whole_rows import exported, imported, rich, rows
from turnkeep import AsyncStore

_BLOB = "iVBORw0KGgo=" * 20_000


@pytest.fixture
def other_dsn(server: Server, template: str) -> Any:
    yield from _database(server, template)


@pytest.mark.pgvector
async def test_archive_restore_is_equal_in_another_database_and_a_second_one_changes_nothing(
    store: AsyncStore, dsn: str, other_dsn: str
) -> None:
    names = [f"chat {number}" for number in range(5)]
    for number, name in enumerate(names):
        await rich(store, name, ended=number % 2 == 0)
        if number % 2:
            branch = await store.conversation(name)
            await branch.begin_turn({"role": "user", "content": [{"type": "image", "data": _BLOB}]})
            await branch.save([{"role": "assistant", "content": "a picture"}], final=True)
    vector = "[" + ",".join(str(number / 768) for number in range(768)) + "]"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE turnkeep.document SET text = 'a picture', model = 'm', next_try_at = NULL, created_at = now(),"
            " tsv = turnkeep.words_of('a picture'), embedding = %s",
            (vector,),
        )
    hot = rows(dsn)
    seen = [await store.restore(name) for name in names]
    for name in names:
        await store.archive(name)
    data = await exported(store)
    async with turnkeep.open(other_dsn) as target:
        assert (await imported(target, data)).conversations == 5
        assert rows(other_dsn) == rows(dsn)
        assert [one.archived_at for one in await target.archived()] == [
            one.archived_at for one in await store.archived()
        ]
        assert (await target.import_(io.BytesIO(data))).there == 5
        assert rows(other_dsn) == rows(dsn)
        for name in names:
            await target.unarchive(name)
        assert rows(other_dsn) == hot
        assert [await target.restore(name) for name in names] == seen
        copies = await imported(target, data, as_copy=True)
        assert (copies.conversations, len(rows(other_dsn)["conversation"])) == (5, 10)
        assert len(await target.archived()) == 5


async def test_archive_restore_packs_text_into_a_quarter(store: AsyncStore) -> None:
    """Agents quote: what a tool has given comes again in the answer, in results, and in what is asked next."""
    from pathlib import Path

    text = "\n".join(path.read_text() for path in sorted((Path(__file__).parents[2] / "docs").rglob("*.md")))
    branch = await store.conversation("agent")
    raw = 0
    for turn in range(30):
        piece = text[turn * 3000 : turn * 3000 + 3000]
        asked = {"role": "user", "content": piece[:200], "metadata": {"timestamp": "2026-11-30T12:00:00Z"}}
        call = {"id": f"call_{turn}", "function": {"name": "search", "arguments": f'{{"query": "{turn}"}}'}}
        found = {"tool_call_id": f"call_{turn}", "content": piece}
        messages: list[dict[str, Any]] = [
            asked,
            {"role": "assistant", "content": None, "metadata": {"tool_calls": [call]}},
            {"role": "tool", **found},
            {"role": "assistant", "content": piece[500:1500]},
        ]
        await branch.begin_turn(messages[0], state={"step_count": 0, "variables": {"turn": turn}})
        await branch.save([messages[1]], tool_calls=[call], state={"step_count": 1, "variables": {"turn": turn}})
        await branch.save([messages[2]], tool_results=[found])
        await branch.save([messages[3]], final=True)
    for one in await store.history("agent", limit=1000):
        whole = await store.restore("agent", at=(one.turn_index, one.sub_step))
        parts = (whole.state_text, whole.tool_calls_text, whole.tool_results_text)
        raw += sum(len(part.encode()) for part in parts if part is not None)
    raw += sum(len(message.encode()) for message in (await store.restore("agent")).message_texts)
    done = await store.archive("agent")
    assert done.bytes < raw / 4, (done.bytes, raw)
