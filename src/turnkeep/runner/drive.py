"""The driver: performs the loop's effects, one branch at a time."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import psycopg

from turnkeep.errors import LeaseLostError, PoolExhaustedError, UnavailableError, UncertainOutcomeError, UnstorableError
from turnkeep.model import PendingCall
from turnkeep.runner.agent import Agent
from turnkeep.runner.deltas import ModelUnavailableError
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    Effect,
    FailTurn,
    HandBack,
    Head,
    Landed,
    ModelRefused,
    ModelReply,
    Outcome,
    Policy,
    RunTool,
    Save,
    SaveStarted,
    TakeRequest,
    WaitForPerson,
)
from turnkeep.runner.loop import turns
from turnkeep.runner.models import ModelClient
from turnkeep.runner.patience import Patience
from turnkeep.runner.tools import Tool, ToolContext, result_content
from turnkeep.runner.transcript import UNKNOWN_OUTCOME
from turnkeep.store import AsyncBranch, AsyncTransaction

log = logging.getLogger("turnkeep.runner")

_LATER = 30.0  # seconds until a branch that was handed back is taken up again
_LONGEST_ERROR = 10_000
_TRANSACTIONS = 5  # tries of a transactional tool whose transaction could not commit

Result = TypeVar("Result")
OnText = Callable[[str], None]


class Stopped(Exception):
    """The driver was asked to stop: the branch is handed back where it stands."""


class Driver:
    """Goes on with one branch, under its lease, until nothing is left to do or it has to stop.

    `run` performs effect after effect through `perform`. `stop` makes it hand back before the next inference or tool;
    an inference under way is given up, tools under way are waited for.
    """

    def __init__(self, branch: AsyncBranch, agent: Agent, model: ModelClient, on_text: OnText | None = None) -> None:
        self.branch = branch
        self.agent = agent
        self.model = model
        self._on_text = on_text
        self._stopping = asyncio.Event()
        self._tools: dict[asyncio.Task[Landed], RunTool] = {}
        self._transactions: dict[tuple[int, int, int], _Open] = {}
        self._release: dict[str, Any] = {}

    def stop(self) -> None:
        """Stop as soon as what is under way allows."""
        self._stopping.set()

    async def run(self) -> None:
        """Go on, then hand the lease back.

        Raises what the store raises; the lease is then left to expire, and the branch goes on from its head elsewhere.
        """
        working = asyncio.create_task(self._work())
        keeping = asyncio.create_task(self._keep_lease())
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)
        if working.cancelled():
            keeping.result()
        working.result()
        await self.branch.release(**self._release)

    async def _work(self) -> None:
        loop = turns(self.agent, self._head(), _now)
        outcome: Any = None
        try:
            while True:
                outcome = await self.perform(loop.send(outcome))
        except StopIteration:
            pass
        except Stopped as why:
            log.info("%r is handed back: %s", self.branch, why)
        finally:
            loop.close()
            await self._abandon()

    async def _keep_lease(self) -> None:
        """Renew the lease at a third of its length; a database that is away may come back in time."""
        lease = self.branch.lease
        while lease is not None:
            await asyncio.sleep(lease.seconds / 3)
            before, lease = lease, self.branch.lease
            if lease == before:  # no save has renewed it
                try:
                    lease = await self.branch.renew()
                except (UnavailableError, PoolExhaustedError) as error:
                    log.warning("%r: the lease could not be renewed: %s", self.branch, error)

    async def perform(self, effect: Effect) -> Any:
        """Perform an effect, and give its outcome."""
        match effect:
            case Save():
                return await self._save(effect)
            case AskModel():
                return await self._ask(effect)
            case RunTool():
                self._start(effect)
            case AwaitTool():
                return await self._await_tool()
            case SaveStarted(calls):
                self._check_stopping()
                await self._written(lambda: self.branch.mark_started(calls))
                return self._head()
            case TakeRequest(state):
                self._check_stopping()
                if await self._written(lambda: self.branch.take_request(state=state)) is None:
                    return None
                log.info("%r: a request is taken up", self.branch)
                return self._head()
            case FailTurn(failure):
                log.warning("%r has failed: %s", self.branch, failure.get("message"))
                self._release = {"failure": failure}
            case WaitForPerson(calls):
                names = ", ".join(map(str, calls))
                self._release = {"failure": {"type": "waiting", "message": f"a person has to decide on {names}"}}
            case HandBack(tools):
                log.warning("%r needs tools that this worker does not have: %s", self.branch, ", ".join(tools))
                self._release = {"delay": _LATER}
        return None

    def _head(self) -> Head:
        branch = self.branch
        return Head(branch.turn_index, branch.sub_step, branch.turn_open, branch.messages, branch.pending, branch.state)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopped("the worker stops")

    async def _written(self, write: Callable[[], Awaitable[Result]]) -> Result:
        """Write under the lease. One that ran out while this process stood still is renewed, if nobody has taken it."""
        try:
            return await write()
        except LeaseLostError:
            await self.branch.renew()
            return await write()

    # -- the model

    async def _ask(self, effect: AskModel) -> ModelReply | ModelRefused:
        """Ask until there is an answer: a server that is away, or dies in the middle, is waited for."""
        self._check_stopping()
        patience = Patience()
        while True:
            try:
                reply: ModelReply | ModelRefused = await self._unless_stopping(self.model.reply(effect, self._on_text))
                return reply
            except ModelUnavailableError as error:
                pause = patience.after(error, asyncio.get_running_loop().time())
                if isinstance(pause, ModelRefused):
                    return pause
                if pause is None:
                    self._release = {"delay": _LATER}
                    raise Stopped(f"the model server is away: {error}") from error
                log.info("%r waits for the model server: %s", self.branch, error)
            await self._unless_stopping(asyncio.sleep(min(pause, _LATER) * random.uniform(0.5, 1.0)))

    async def _unless_stopping(self, action: Any) -> Any:
        """The action's result; it is cancelled when the driver is asked to stop."""
        task = asyncio.ensure_future(action)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped("the worker stops")
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    # -- tools

    async def _await_tool(self) -> Landed:
        done, _ = await asyncio.wait(self._tools, return_when=asyncio.FIRST_COMPLETED)
        task = next(task for task in self._tools if task in done)
        self._tools.pop(task)
        return task.result()

    def _start(self, effect: RunTool) -> None:
        self._tools[asyncio.create_task(self._run_tool(effect))] = effect

    async def _run_tool(self, effect: RunTool) -> Landed:
        tool = self.agent.tool(effect.name)
        if tool is None:
            raise LookupError(effect.name)
        if tool.policy is not Policy.TRANSACTIONAL:
            return await _outcome(tool, effect, self._context(effect, None))
        for _ in range(_TRANSACTIONS):
            landed = await self._run_in_transaction(tool, effect)
            if landed is not None:
                return landed
        return Landed(effect.call, f"its transaction failed {_TRANSACTIONS} times", Outcome.ERROR)

    async def _run_in_transaction(self, tool: Tool, effect: RunTool) -> Landed | None:
        """Run a tool in a transaction that stays open for the save of its result. None: rolled back, try again."""
        stack = AsyncExitStack()
        transaction = await stack.enter_async_context(self.branch.transaction())
        async with stack:
            try:
                landed = await _outcome(tool, effect, self._context(effect, transaction))
                await transaction.check()
            except UncertainOutcomeError:
                return Landed(effect.call, UNKNOWN_OUTCOME, Outcome.UNKNOWN)
            except (psycopg.OperationalError, UnavailableError) as error:
                log.info("%r: %s is run again: %s", self.branch, tool.name, error)
                return None
            if landed.outcome is Outcome.OK:
                self._transactions[effect.call.place] = _Open(transaction, stack.pop_all(), effect)
                return landed
        if await transaction.committed():
            return Landed(effect.call, UNKNOWN_OUTCOME, Outcome.UNKNOWN)
        return landed

    async def _save(self, effect: Save) -> Head:
        content: dict[str, Any] = {
            "tool_results": effect.tool_results or None,
            "answers": effect.answers or None,
            "state": effect.state,
        }
        opened = self._transactions.pop(effect.answers[0].place, None) if len(effect.answers) == 1 else None
        if opened is None:
            calls = effect.tool_calls or None
            await self._written(
                lambda: self.branch.save(effect.messages, tool_calls=calls, final=effect.final, **content)
            )
            if effect.final:
                log.info("%r: the turn has ended", self.branch)
            return self._head()
        async with opened.stack:
            try:
                await self._written(lambda: opened.transaction.save(effect.messages, **content))
            except UnavailableError as error:
                log.info("%r: %s is run again: %s", self.branch, opened.effect.name, error)
                self._start(opened.effect)
        return self._head()

    def _context(self, effect: RunTool, transaction: AsyncTransaction | None) -> ToolContext:
        branch, call = self.branch, effect.call
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
            idempotency_key=idempotency_key(branch.conversation_id, call),
            attempt=max(call.attempts, 1),
            agent_id=branch.agent_id,
            variables=variables if isinstance(variables, dict) else {},
            _connection=None if transaction is None else transaction.connection,
        )

    async def _abandon(self) -> None:
        """Give up the tools under way, and roll back what is open."""
        for task in self._tools:
            task.cancel()
        await asyncio.gather(*self._tools, return_exceptions=True)
        for opened in self._transactions.values():
            await opened.stack.aclose()


@dataclass(frozen=True)
class _Open:
    """A transaction that waits for the save of its tool's result."""

    transaction: AsyncTransaction
    stack: AsyncExitStack
    effect: RunTool


def idempotency_key(conversation_id: uuid.UUID, call: PendingCall) -> str:
    """A call's key: the same at each try, in each process, and on each branch that has inherited the call."""
    return str(uuid.uuid5(conversation_id, f"{call.branch}:{call.turn_index}.{call.sub_step}:{call.index}"))


async def _outcome(tool: Tool, effect: RunTool, context: ToolContext) -> Landed:
    """Run a tool. What it raises, and what can't be stored, is its result: an error (G3)."""
    try:
        # In a list, because in its message it is one level deeper than by itself.
        (content,) = result_content([await tool.run(context, effect.arguments)])
    except psycopg.OperationalError as error:
        if tool.policy is Policy.TRANSACTIONAL:
            raise
        return Landed(effect.call, _in_words(error), Outcome.ERROR)
    except UnstorableError as error:
        return Landed(effect.call, f"the tool has run, and its result can't be stored: {error}", Outcome.ERROR)
    except Exception as error:
        log.info("%s has raised", tool.name, exc_info=True)
        return Landed(effect.call, _in_words(error), Outcome.ERROR)
    return Landed(effect.call, content, Outcome.OK)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
