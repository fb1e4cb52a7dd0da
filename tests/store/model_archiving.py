"""Moves that change nothing: a conversation put away and brought back, or carried over in a file, is what it was."""

from __future__ import annotations

import io
import random
from contextlib import suppress

import turnkeep
from tests.store.model_moves import World, move


@move(2)
async def archive_and_back(world: World, rng: random.Random) -> None:
    """Where nothing stands in the way, it is read there as before, and takes no writes."""
    if not (conversation := world.conversation(rng)):
        return
    store = world.store(rng)
    seen = [await store.branches(conversation.name), await store.restore(conversation.name)]
    with suppress(turnkeep.LeaseHeldError, turnkeep.ConflictError):
        assert not (await store.archive(conversation.name)).repeated
        assert (await world.store(rng).archive(conversation.name)).repeated
        assert [await store.branches(conversation.name), await store.restore(conversation.name)] == seen
        try:
            await world.store(rng).post(conversation.name, {"role": "user"}, key="never")
        except turnkeep.ConversationArchivedError:
            pass
        else:
            raise AssertionError("an archived conversation has taken a request")
        assert not (await world.store(rng).unarchive(conversation.name)).repeated
    assert [await store.branches(conversation.name), await store.restore(conversation.name)] == seen


@move(2)
async def carry_over(world: World, rng: random.Random) -> None:
    """Exported with its children, erased and imported; or, where somebody runs it, there already."""
    if not (conversation := world.conversation(rng)):
        return
    store = world.store(rng)
    file = io.BytesIO()
    exported = await store.export(file, [conversation.name], children=True)
    file.seek(0)
    assert (await world.store(rng).import_(file)).there == exported.conversations
    statuses = {
        branch.status
        for line in file.getvalue().splitlines()
        if line.startswith(b'{"kind":"conversation"')
        for branch in await store.branches(line.partition(b'"conversation_id":"')[2][:36].decode())
    }
    if "running" in statuses:
        return
    await world.store(rng).erase(conversation.name)
    file.seek(0)
    assert (await world.store(rng).import_(file)).conversations == exported.conversations
