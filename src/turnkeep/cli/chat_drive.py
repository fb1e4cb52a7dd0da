"""One side of a conversation driven in this process: what is said is posted, claimed, answered and shown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from turnkeep.cli.chat_screen import Screen
from turnkeep.cli.failures import Exit
from turnkeep.cli.jsonview import elements
from turnkeep.cli.ls import lease_label
from turnkeep.cli.output import json_text
from turnkeep.cli.reference import LAST, find_conversation
from turnkeep.errors import (
    ConfigurationError,
    InvalidInputError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    TurnFailedError,
)
from turnkeep.model import Checkpoint, Posted
from turnkeep.runner import Agent, Driver
from turnkeep.runner.deltas import ModelUnavailableError
from turnkeep.runner.effects import (
    AskModel,
    Effect,
    FailTurn,
    HandBack,
    ModelRefused,
    ModelReply,
    RunTool,
    Save,
    TakeRequest,
    WaitForPerson,
)
from turnkeep.runner.models import ModelClient, OnText
from turnkeep.store import AsyncBranch, AsyncStore

_LOOK = 0.3  # seconds between looks whether a lease is over


class StoppedError(Exception):
    """A person, or a signal, has stopped the reply. It is handed back."""


class Talk:
    """A conversation with an agent, or one that is to be: it is made with the first message."""

    def __init__(self, store: AsyncStore, agent: Agent, screen: Screen, *, lease: float) -> None:
        self.conversation: str | UUID = ""
        self._store = store
        self._agent = agent
        self._screen = screen
        self._lease = lease
        self._model = _ShownModel(agent, screen)
        self._branch: AsyncBranch | None = None
        self._driver: _ShownDriver | None = None
        self._stopping = asyncio.Event()

    async def open(self, reference: str) -> Checkpoint | None:
        """Find the conversation, and give where it stands; None if it is new."""
        self.conversation = await find_conversation(self._store, reference) if reference == LAST else reference
        try:
            checkpoint = await self._store.restore(self.conversation)
        except NotFoundError:
            return None
        if checkpoint.agent_id not in (None, self._agent.name):
            raise InvalidInputError(
                f"conversation {checkpoint.external_id!r} is one of agent {checkpoint.agent_id!r}, and not of "
                f"{self._agent.name!r}"
            )
        self.conversation = checkpoint.external_id
        self._branch = await self._store.conversation(checkpoint.conversation_id, agent_id=self._agent.name)
        self._screen.shown = len(checkpoint.message_texts)
        return checkpoint

    async def close(self) -> None:
        """Close the connections to the model."""
        await self._model.close()

    async def say(self, words: str) -> Posted:
        """Post a message, and go on until it is answered."""
        number = None if self._branch is None else self._branch.branch
        posted = await self._store.post(self.conversation, words, agent_id=self._agent.name, branch=number)
        if self._branch is None:
            self._branch = await self._store.conversation(posted.conversation_id, agent_id=self._agent.name)
        self._screen.typed = words
        await self.go_on()
        return posted

    def stop(self) -> None:
        """Stop and hand back; asked again, end the process at once."""
        if self._stopping.is_set():
            os._exit(Exit.INTERRUPTED)
        self._stopping.set()
        if self._driver is not None:
            self._driver.stop()

    async def go_on(self) -> None:
        """Go on until nothing is left to do. Raises `StoppedError`, and `TurnFailedError` where a turn stops."""
        branch = self._branch
        assert branch is not None
        while True:
            await self._claim(branch)
            await self._show_others(branch)
            self._driver = _ShownDriver(branch, self._agent, self._model, self._screen)
            try:
                await self._driver.run()
            except LeaseLostError:
                self._screen.note("… the lease was lost, this process having been held up; going on", "yellow")
                continue
            self._screen.shown = len(branch.messages)
            self._driver.check()
            if self._stopping.is_set():
                raise StoppedError
            if self._driver.idle:
                return

    async def _claim(self, branch: AsyncBranch) -> None:
        """Take the lease, when whoever holds it has come to its end."""
        told = False
        while True:
            if self._stopping.is_set():
                raise StoppedError
            try:
                await branch.claim(seconds=self._lease)
                return
            except LeaseHeldError:
                pass
            if not told:
                held = await branch.refresh()
                holder = lease_label(held.lease_owner, held.lease_until, datetime.now(UTC))
                self._screen.note(f"… waiting for {holder}: it is at work, or was killed", "yellow")
                told = True
            try:
                await asyncio.wait_for(self._stopping.wait(), _LOOK)
            except TimeoutError:
                continue

    async def _show_others(self, branch: AsyncBranch) -> None:
        """Show what another process has added meanwhile."""
        if len(branch.messages) > self._screen.shown:
            self._screen.others((await branch.refresh()).message_texts)


class _ShownModel(ModelClient):
    """A model whose every try is shown."""

    def __init__(self, agent: Agent, screen: Screen) -> None:
        super().__init__(agent)
        self._screen = screen

    async def reply(self, effect: AskModel, on_text: OnText | None = None) -> ModelReply | ModelRefused:
        self._screen.ask()
        try:
            return await super().reply(effect, on_text)
        except ModelUnavailableError as error:
            self._screen.lost(str(error))
            raise


class _ShownDriver(Driver):
    """A driver whose tools and results are shown. `idle` says that nothing was left to do."""

    def __init__(self, branch: AsyncBranch, agent: Agent, model: ModelClient, screen: Screen) -> None:
        super().__init__(branch, agent, model, screen.piece)
        self.idle = False
        self._screen = screen
        self._last: Effect | None = None

    async def perform(self, effect: Effect) -> Any:
        self._last = effect
        if isinstance(effect, RunTool):
            self._screen.called(elements(effect.call.tool_calls_text)[effect.call.index])
        outcome = await super().perform(effect)
        match effect:
            case TakeRequest():
                self.idle = outcome is None
                if outcome is not None:
                    self._screen.others(_texts(outcome.messages))
            case Save(messages):
                self._screen.saved(_texts(messages))
        return outcome

    def check(self) -> None:
        """Raise what has stopped the turn, if anything has."""
        where = f"turn {self.branch.turn_index}"
        match self._last:
            case FailTurn(failure):
                raise TurnFailedError(f"{where} has failed: {failure.get('message')}. Nothing of it is lost", failure)
            case WaitForPerson(calls):
                names = ", ".join(map(str, calls))
                raise TurnFailedError(f"{where} waits: a person has to decide on {names}", {"type": "waiting"})
            case HandBack(tools):
                raise ConfigurationError(f"{where} needs tools that the agent does not have: {', '.join(tools)}")


def _texts(messages: Sequence[Any]) -> list[str]:
    return [json_text(message) for message in messages]
