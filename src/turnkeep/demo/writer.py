"""The process that is killed: it plays the conversations through the store, and asks the client before each save.

It speaks JSON lines. Its first line on stdin is its order: `database`, `conversations` to play, `open` intents to
repeat, `seconds` that a conversation takes, `sabotage` and, for the saboteur, the `acknowledged` places. Then
it says `{"intent": …}`, waits for `{"go": write_id}`, saves, and says `{"acknowledged": write_id, …}`. It ends with
its client. Of its predecessor it knows what is in the database, and from its client what that had begun to save.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import turnkeep
from turnkeep.demo.ledger import Intent
from turnkeep.demo.saves import Save, saves_of
from turnkeep.demo.script import Script, load_scripts

_BEFORE_THE_FIRST = (-1, 0)


class ClientPipe:
    """The client at the other end of stdin and stdout."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self._asked: dict[str, asyncio.Future[None]] = {}

    def tell(self, record: Mapping[str, Any]) -> None:
        """Say something to the client."""
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()

    async def ask(self, intent: Intent) -> None:
        """State an intent, and return when the client has it on disk."""
        go = self._asked[intent.write_id] = asyncio.get_running_loop().create_future()
        self.tell({"intent": asdict(intent)})
        await go

    async def order(self) -> dict[str, Any]:
        """The first line."""
        order: dict[str, Any] = json.loads(await self._lines.readline())
        return order

    async def listen(self) -> None:
        """Pass on the client's permissions. Raises `EOFError` when the client is gone."""
        while line := await self._lines.readline():
            self._asked.pop(json.loads(line)["go"]).set_result(None)
        raise EOFError("the client is gone")


class Player:
    """Plays one conversation from where it stands to its end."""

    def __init__(
        self, store: turnkeep.AsyncStore, client: ClientPipe, script: Script, order: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._client = client
        self._script = script
        self._saves = saves_of(script)
        self._pause = order["seconds"] / len(self._saves)
        self._sabotage = bool(order["sabotage"])
        self._acknowledged = order["acknowledged"].get(script.external_id, _BEFORE_THE_FIRST)
        self._open = [Intent(**one) for one in order["open"] if one["conversation"] == script.external_id]

    async def play(self) -> None:
        """Restore the conversation, and go on from there: the ordinary way, crash or none."""
        name = self._script.external_id
        try:
            branch = await self._store.conversation(name, agent_id=self._script.agent_id)
            stands_at = (branch.turn_index, branch.sub_step)
            at = self._index(tuple(self._acknowledged) if self._sabotage else stands_at) + 1
            for intent in self._open:
                index = self._index(intent.place)
                await self._save(branch, self._saves[index], intent.write_id)
                at = max(at, index + 1)
            for save in self._saves[at:]:
                await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))  # the model, or a tool
                intent = Intent(name, *save.place, str(uuid.uuid4()))
                await self._client.ask(intent)
                await self._save(branch, save, intent.write_id)
        except turnkeep.TurnkeepError as error:
            self._client.tell({"stuck": name, "why": f"{type(error).__name__}: {error}"})
        else:
            self._client.tell({"ended": name})

    def _index(self, place: tuple[int, ...]) -> int:
        if place == _BEFORE_THE_FIRST:
            return -1
        return next(index for index, save in enumerate(self._saves) if save.place == place)

    async def _save(self, branch: turnkeep.AsyncBranch, save: Save, write_id: str) -> None:
        if self._sabotage:
            self._client.tell({"acknowledged": write_id, "repeated": False})
        saved = await write(branch, save, uuid.UUID(write_id))
        if not self._sabotage:
            self._client.tell({"acknowledged": write_id, "repeated": saved.repeated})


async def write(branch: turnkeep.AsyncBranch, save: Save, write_id: uuid.UUID) -> turnkeep.Saved:
    """Make one save of a script, the way an agent's loop would."""
    if save.sub_step == 0:
        return await branch.begin_turn(save.messages, write_id=write_id)
    return await branch.save(
        save.messages,
        tool_calls=save.tool_calls or None,
        tool_results=save.tool_results or None,
        state=save.state if save.has_state else turnkeep.UNCHANGED,
        final=save.final,
        write_id=write_id,
    )


async def _restore_all(store: turnkeep.AsyncStore) -> dict[str, Any]:
    started = time.perf_counter()
    interrupted = await store.restore_interrupted()
    return {
        "restored": len(interrupted),
        "messages": sum(len(checkpoint.message_texts) for checkpoint in interrupted),
        "pending": sum(len(checkpoint.pending) for checkpoint in interrupted),
        "seconds": time.perf_counter() - started,
    }


async def _play_all(client: ClientPipe) -> None:
    order = await client.order()
    scripts = [script for script in load_scripts() if script.external_id in order["conversations"]]
    async with turnkeep.open(order["database"], pool_size=len(scripts)) as store, asyncio.TaskGroup() as group:
        listening = group.create_task(client.listen())
        client.tell(await _restore_all(store))
        await asyncio.gather(*(Player(store, client, script, order).play() for script in scripts))
        listening.cancel()


async def main() -> None:
    """Work until all conversations are played or the client is gone."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await _play_all(ClientPipe(lines))


if __name__ == "__main__":
    asyncio.run(main())
