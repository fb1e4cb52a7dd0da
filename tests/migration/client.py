"""A client of whatever release it is run with: one operation a line of standard input, its outcome a line of JSON.

It uses what the first release has, and nothing later.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import turnkeep

CALL = {"id": "call_1", "name": "look", "arguments": {"at": "it"}}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


class Client:
    """A store, and the handles it has taken."""

    def __init__(self, store: turnkeep.AsyncStore) -> None:
        self.store = store
        self.handles: dict[str, turnkeep.AsyncBranch] = {}

    async def take(self, name: str) -> Any:
        """A handle, made once and kept; brought up to date where it is there."""
        if name in self.handles:
            await self.handles[name].refresh()
        else:
            self.handles[name] = await self.store.conversation(name, agent_id="agent")
        return self.place(name)

    async def turn(self, name: str, text: str) -> Any:
        """A turn with a tool call, under a lease."""
        branch = self.handles[name]
        await branch.claim(owner="client", seconds=30)
        await branch.begin_turn(said("user", text), key=text, state={"text": text})
        await branch.save([said("assistant", "I look")], tool_calls=[CALL])
        await branch.mark_started(branch.pending)
        await branch.save([said("tool", "seen")], tool_results=[{"tool_call_id": "call_1"}])
        await branch.renew()
        await branch.save([said("assistant", f"so: {text}")], final=True)
        await branch.release()
        return self.place(name)

    async def open_turn(self, name: str, text: str) -> Any:
        """A turn left in the middle of a call."""
        branch = self.handles[name]
        await branch.begin_turn(said("user", text))
        await branch.save([said("assistant", "I look")], tool_calls=[CALL])
        return self.place(name)

    async def end_turn(self, name: str) -> Any:
        """The result of that call, and the turn's end."""
        branch = self.handles[name]
        await branch.save([said("tool", "seen")], tool_results=[{"tool_call_id": "call_1"}])
        await branch.save([said("assistant", "done")], final=True)
        return self.place(name)

    async def request(self, name: str, text: str) -> Any:
        """A request posted, claimed, taken up and answered."""
        await self.store.post(name, text, key=f"request {text}", agent_id="agent")
        (branch,) = await self.store.claim_waiting(["agent"], limit=1)
        await branch.take_request()
        async with branch.transaction() as transaction:
            await transaction.save([said("assistant", text.upper())], final=True)
        await branch.release()
        reply = await self.store.wait_reply(name, f"request {text}", seconds=10)
        return reply.content

    async def fork(self, name: str) -> Any:
        """A branch at the head, with a turn of its own."""
        branch = await self.store.fork(name)
        await branch.begin_turn(said("user", "otherwise"))
        await branch.save([said("assistant", "yes")], final=True)
        return [branch.branch, branch.turn_index, branch.sub_step]

    async def read(self, name: str) -> Any:
        """All that can be read of a conversation."""
        found = await self.store.restore(name)
        places = [[one.turn_index, one.sub_step] for one in await self.store.history(name)]
        listed = sorted(one.external_id for one in await self.store.conversations(limit=100))
        return {
            "messages": found.messages,
            "state": found.state,
            "pending": [str(call) for call in found.pending],
            "places": places,
            "listed": listed,
            "interrupted": len(await self.store.interrupted()),
        }

    def place(self, name: str) -> Any:
        branch = self.handles[name]
        return [branch.turn_index, branch.sub_step, len(branch.messages)]


async def main(dsn: str, migrate: bool) -> None:
    if migrate:
        turnkeep.migrate(dsn)
    async with turnkeep.open(dsn) as store:
        client = Client(store)
        print(json.dumps(turnkeep.__version__), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            operation, *arguments = json.loads(line)
            try:
                outcome = await getattr(client, operation)(*arguments)
            except turnkeep.TurnkeepError as error:
                outcome = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "--migrate" in sys.argv))
