"""The process that is never killed, as a client: it posts, waits for replies, and keeps the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import turnkeep
from turnkeep.demo.events import Acknowledged, Ended, View
from turnkeep.demo.exchanges import posted
from turnkeep.demo.ledger import LedgerFile, Request
from turnkeep.demo.script import Script, ScriptTurn
from turnkeep.errors import TurnkeepError


def request_of(script: Script, turn: int) -> Request:
    """What a client posts to open that turn."""
    return Request(script.external_id, turn, f"{script.external_id}/{turn}")


class Client:
    """Plays its part of all conversations at once, in each one message after the other's reply.

    With `sabotage` it acknowledges a request before it is posted, and gives up what was not yet committed when
    Postgres is killed, as a process does that dies there.
    """

    def __init__(
        self, store: turnkeep.AsyncStore, ledger: LedgerFile, scripts: Sequence[Script], view: View, *, sabotage: bool
    ) -> None:
        self.playing = {script.external_id for script in scripts}
        self.stuck: list[str] = []
        self._store = store
        self._ledger = ledger
        self._scripts = scripts
        self._view = view
        self._sabotage = sabotage
        self._gate = asyncio.Event()
        self._gate.set()
        self._at_gate: set[str] = set()
        self._unsafe: set[asyncio.Task[Any]] = set()

    async def play(self) -> None:
        """Return when every conversation has come to its end, or is stuck."""
        async with asyncio.TaskGroup() as group:
            for script in self._scripts:
                group.create_task(self._play(script))

    # -- for the kills

    async def hold_posts(self, count: int, patience: float) -> list[str]:
        """Hold back what is about to be posted, until `count` conversations or, after a while, any are held."""
        self._gate.clear()
        deadline = asyncio.get_running_loop().time() + patience
        while self.playing and len(self._at_gate) < min(count, len(self.playing)):
            if self._at_gate and asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.01)
        return sorted(self._at_gate)

    def let_post(self) -> None:
        """Let what is held back be posted."""
        self._gate.set()

    def postgres_is_killed(self) -> None:
        """Lose, as a saboteur, what was acknowledged and not yet committed."""
        for task in self._unsafe:
            task.cancel()

    # -- a conversation

    async def _play(self, script: Script) -> None:
        why = None
        try:
            for number, turn in enumerate(script.turns):
                await self._take_turn(script, request_of(script, number), turn)
        except TurnkeepError as error:
            why = f"{type(error).__name__}: {error}"
            self.stuck.append(f"{script.external_id} is stuck: {why}")
        self.playing.discard(script.external_id)
        self._view.tell(Ended(script.external_id, why))

    async def _take_turn(self, script: Script, request: Request, turn: ScriptTurn) -> None:
        await self._pass_gate(request.conversation)
        self._ledger.intend(request)
        post = self._store.post(request.conversation, posted(turn), key=request.key, agent_id=script.agent_id)
        if self._sabotage:
            self._acknowledge(request)
            await self._unless_killed(post)
        else:
            await post
            self._acknowledge(request)
        await self._store.wait_reply(request.conversation, request.key)
        self._ledger.answer(request)

    async def _pass_gate(self, name: str) -> None:
        self._at_gate.add(name)
        try:
            await self._gate.wait()
        finally:
            self._at_gate.discard(name)

    def _acknowledge(self, request: Request) -> None:
        self._ledger.acknowledge(request)
        total = len(self._ledger.ledger.acknowledged)
        self._view.tell(Acknowledged(request.conversation, request.turn, total))

    async def _unless_killed(self, action: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(action)
        self._unsafe.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._unsafe.discard(task)
            task.cancel()
        with suppress(asyncio.CancelledError):
            task.result()
