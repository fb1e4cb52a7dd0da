"""Writers at work, with a ledger of what they meant to write and what was acknowledged."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import turnkeep
from tests.observing import Observer, until

_STEPS = 3  # saves in a turn after its input


class Writer:
    """One writer and its conversation."""

    def __init__(self, store: turnkeep.AsyncStore, name: str) -> None:
        self.store = store
        self.name = name
        self.intended: list[uuid.UUID] = []
        self.acknowledged: list[uuid.UUID] = []
        self.stopping = False

    @property
    def in_flight(self) -> bool:
        """Whether a write was sent and not acknowledged."""
        return len(self.intended) > len(self.acknowledged)

    async def run(self) -> None:
        """Write turns until told to stop. Nothing is tried again here: that is the store's to do."""
        branch = await self.store.conversation(self.name)
        while not self.stopping:
            for step in range(_STEPS + 1):
                write_id = uuid.uuid4()
                message = {"role": "assistant" if step else "user", "content": str(write_id)}
                self.intended.append(write_id)
                if step == 0:
                    await branch.begin_turn(message, write_id=write_id)
                else:
                    await branch.save([message], final=step == _STEPS, write_id=write_id)
                self.acknowledged.append(write_id)


class Load:
    """Writers that run while the block does, each on a conversation of its own, spread over the stores."""

    def __init__(self, stores: Sequence[turnkeep.AsyncStore], writers: int) -> None:
        self.writers = [Writer(stores[number % len(stores)], f"writer {number}") for number in range(writers)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(writer.run()) for writer in self.writers]
        await self.progress()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self.writers:
            writer.stopping = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=kind is not None)
        del outcomes

    async def progress(self, writes: int = 2) -> None:
        """Wait until each writer has got that many more acknowledgements."""
        goals = [len(writer.acknowledged) + writes for writer in self.writers]

        def reached() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()  # a writer that failed fails the test at once
            return all(len(w.acknowledged) >= goal for w, goal in zip(self.writers, goals, strict=True))

        await until(reached, f"{writes} more acknowledgements for each writer")

    async def in_flight(self, writers: int) -> None:
        """Wait until that many writers have a write under way."""
        await until(lambda: sum(writer.in_flight for writer in self.writers) >= writers, f"{writers} in flight")

    def check(self, dsn: str) -> None:
        """Everything acknowledged is there once, in its order, and nothing that was not intended."""
        with Observer(dsn) as observer:
            for writer in self.writers:
                assert writer.acknowledged == writer.intended
                conversation = turnkeep.conversation_uuid(writer.name)
                written = observer.rows(
                    "SELECT write_id FROM turnkeep.checkpoint WHERE conversation_id = %s ORDER BY turn_index, sub_step",
                    conversation,
                )
                assert [write_id for (write_id,) in written] == writer.acknowledged
                messages = observer.rows(
                    "SELECT position, body->>'content' FROM turnkeep.message WHERE conversation_id = %s ORDER BY 1",
                    conversation,
                )
                assert messages == [(n, str(write_id)) for n, write_id in enumerate(writer.acknowledged)]
