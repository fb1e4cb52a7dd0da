"""The tools of one branch that are under way."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import psycopg

from turnkeep.errors import DatabaseError, UnavailableError, UncertainOutcomeError, UnstorableError
from turnkeep.model import PendingCall
from turnkeep.runner.agent import Agent
from turnkeep.runner.effects import Landed, Outcome, Policy, RunTool
from turnkeep.runner.tools import Tool, ToolContext, result_content
from turnkeep.runner.transcript import UNKNOWN_OUTCOME, called_arguments
from turnkeep.store import AsyncBranch, AsyncTransaction

log = logging.getLogger("turnkeep.runner")

_LONGEST_ERROR = 10_000
_TRIES = 5  # of a transactional tool whose transaction could not commit
_FIRST_PAUSE = 0.05
_LAST_SECONDS = 2.0  # for tools that were cancelled
_UNLUCKY = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class _TryAgain(Exception):
    """A transaction was rolled back for a reason that may not come again."""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that waits for the save of its tool's result."""

    transaction: AsyncTransaction
    stack: AsyncExitStack
    effect: RunTool
    tries: int


class RunningTools:
    """Runs tools side by side, each as a task. One that is transactional lands with its transaction open."""

    def __init__(self, branch: AsyncBranch, agent: Agent) -> None:
        self._branch = branch
        self._agent = agent
        self._tasks: dict[asyncio.Task[Landed], RunTool] = {}
        self._open: dict[tuple[int, int, int], OpenTransaction] = {}

    def start(self, effect: RunTool, tries: int = 0, last: BaseException | None = None) -> None:
        """Begin a tool; `tries` is how often its transaction has failed before, `last` of what."""
        self._tasks[asyncio.create_task(self._run(effect, tries, last))] = effect

    def land(self, landed: Landed, effect: RunTool) -> None:
        """Let a call land that has come to its end otherwise."""

        async def at_once() -> Landed:
            return landed

        self._tasks[asyncio.create_task(at_once())] = effect

    async def landed(self) -> Landed:
        """Wait until one has come to its end. Those that hold a connection come first."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = min(done, key=lambda one: (one.exception() is not None, self._tasks[one].call.place not in self._open))
        self._tasks.pop(task)
        return task.result()

    def take_open(self, calls: Sequence[PendingCall]) -> OpenTransaction | None:
        """The transaction in which the result of the only call is to be saved, if there is one."""
        return self._open.pop(calls[0].place, None) if len(calls) == 1 else None

    async def abandon(self) -> None:
        """Give up what is under way, and roll back what is open."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_LAST_SECONDS)
            for task in left:
                log.warning("%r: %s goes on though it was cancelled", self._branch, self._tasks[task].name)
        for opened in self._open.values():
            await opened.stack.aclose()

    async def _run(self, effect: RunTool, tries: int, last: BaseException | None) -> Landed:
        tool = self._agent.tool(effect.name)
        if tool is None:
            raise LookupError(effect.name)
        if tool.policy is not Policy.TRANSACTIONAL:
            landed, _ = await _outcome(tool, effect, self._context(effect, None))
            return landed
        while tries < _TRIES:
            if tries:
                await asyncio.sleep(_FIRST_PAUSE * 2**tries * random.uniform(0.5, 1.0))
                # What it has done to its arguments is not to be seen again.
                effect = replace(effect, arguments=tool.validated(called_arguments(effect.call.call)))
            try:
                return await self._in_transaction(tool, effect, tries)
            except _TryAgain as error:
                last = error.__cause__
                log.info("%r: %s is run again: %s", self._branch, tool.name, last)
            tries += 1
        return Landed(
            effect.call, f"its transaction failed {tries} times, at last with {_in_words(last)}", Outcome.ERROR
        )

    async def _in_transaction(self, tool: Tool, effect: RunTool, tries: int) -> Landed:
        """Run a tool in a transaction that stays open for the save of its result."""
        async with AsyncExitStack() as stack:
            transaction = await stack.enter_async_context(self._branch.transaction())
            landed, error = await _outcome(tool, effect, self._context(effect, transaction))
            try:
                if error is None:
                    await transaction.check()
                    self._open[effect.call.place] = OpenTransaction(transaction, stack.pop_all(), effect, tries)
                    return landed
            except UncertainOutcomeError:
                return Landed(effect.call, UNKNOWN_OUTCOME, Outcome.UNKNOWN)
            except UnavailableError as lost:
                raise _TryAgain from lost
            except DatabaseError as failed:
                return Landed(effect.call, _in_words(failed), Outcome.ERROR)
            lost_or_unlucky = transaction.lost or isinstance(error, _UNLUCKY)
        if await transaction.committed():
            return Landed(effect.call, UNKNOWN_OUTCOME, Outcome.UNKNOWN)
        if lost_or_unlucky:
            raise _TryAgain from error
        return landed

    def _context(self, effect: RunTool, transaction: AsyncTransaction | None) -> ToolContext:
        branch, call = self._branch, effect.call
        state = branch.state
        variables = state.get("variables") if isinstance(state, dict) else None
        return ToolContext(
            conversation_id=branch.conversation_id,
            external_id=branch.external_id,
            branch=branch.branch,
            turn_index=call.turn_index,
            sub_step=call.sub_step,
            call_id=call.call_id,
            tool=effect.name,
            idempotency_key=idempotency_key(call),
            attempt=max(call.attempts, 1),
            agent_id=branch.agent_id,
            variables=variables if isinstance(variables, dict) else {},
            _transaction=transaction,
        )


def idempotency_key(call: PendingCall) -> str:
    """A call's key: the same at each try, in each process, and on each branch that has inherited or copied it."""
    return str(uuid.uuid5(call.conversation_id, f"{call.branch}:{call.turn_index}.{call.sub_step}:{call.index}"))


async def _outcome(tool: Tool, effect: RunTool, context: ToolContext) -> tuple[Landed, BaseException | None]:
    """Run a tool. Whatever it raises, and what can't be stored, is its result: an error (G3)."""
    try:
        # In a list, because in its message it is one level deeper than by itself.
        (content,) = result_content([await tool.run(context, effect.arguments)])
    except UnstorableError as error:
        words = f"the tool has run, and its result can't be stored: {error}"
        return Landed(effect.call, words, Outcome.ERROR), error
    except BaseException as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.info("%s has raised", tool.name, exc_info=True)
        return Landed(effect.call, _in_words(error), Outcome.ERROR), error
    return Landed(effect.call, content, Outcome.OK), None


def _in_words(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    except Exception:
        log.info("an error can't be told in words", exc_info=True)
        return type(error).__name__
