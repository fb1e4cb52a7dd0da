"""Lists come in pages that neither skip nor repeat."""

from __future__ import annotations

import uuid

import pytest

import turnkeep
from turnkeep import AsyncStore


async def talk(store: AsyncStore, name: str, agent: str | None = None) -> None:
    branch = await store.conversation(name, agent_id=agent)
    await branch.begin_turn({"role": "user", "content": name})
    await branch.save([{"role": "assistant"}], final=True)


async def test_conversations_come_newest_turn_first_in_pages(store: AsyncStore) -> None:
    for number in range(7):
        await talk(store, f"c{number}", agent="odd" if number % 2 else "even")
    await talk(store, "c0")
    names, page = [], await store.conversations(limit=3)
    while page:
        names += [summary.external_id for summary in page]
        page = await store.conversations(limit=3, before=page[-1])
    assert names == ["c0", "c6", "c5", "c4", "c3", "c2", "c1"]
    odd = await store.conversations(agent_id="odd")
    assert [summary.external_id for summary in odd] == ["c5", "c3", "c1"]
    assert (odd[0].turn_index, odd[0].status, odd[0].branch_name) == (0, "idle", "main")
    assert (await store.conversations(agent_id="nobody")) == []


async def test_history_comes_newest_first_in_pages(store: AsyncStore) -> None:
    for _ in range(4):
        await talk(store, "c")
    places: list[tuple[int, int]] = []
    page = await store.history("c", limit=3)
    while page:
        places += [(c.turn_index, c.sub_step) for c in page]
        page = await store.history("c", limit=3, before=places[-1])
    assert places == [(turn, sub_step) for turn in (3, 2, 1, 0) for sub_step in (1, 0)]
    newest = (await store.history("c", limit=1))[0]
    assert (newest.phase, newest.messages, newest.tool_calls) == ("final", 8, 0)


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_size(store: AsyncStore, limit: int) -> None:
    with pytest.raises(turnkeep.InvalidInputError, match="limit"):
        await store.conversations(limit=limit)


async def test_a_conversation_is_found_by_name_id_or_prefix(store: AsyncStore) -> None:
    ids = [uuid.UUID("00ab0000-0000-4000-8000-000000000001"), uuid.UUID("00ab0000-0000-4000-8000-0000000000ff")]
    for own in ids:
        await talk(store, str(own))
    await talk(store, "by name")
    assert await store.find("by name") == turnkeep.conversation_uuid("by name")
    assert await store.find(str(ids[0])) == ids[0]
    assert await store.find(str(turnkeep.conversation_uuid("by name"))[:8]) == turnkeep.conversation_uuid("by name")
    assert await store.find(str(ids[0])[:-1]) == ids[0]
    with pytest.raises(turnkeep.InvalidInputError, match="several"):
        await store.find("00ab0000")
    for nothing in ("00ab000", "ffff0000", "nobody"):
        with pytest.raises(turnkeep.NotFoundError):
            await store.find(nothing)
