"""The driver: performs the loop's effects, one branch at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from turnkeep.errors import DatabaseError, LeaseLostError, PoolExhaustedError, UnavailableError
from turnkeep.jsontext import encode
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
    RunTool,
    Save,
    SaveStarted,
    TakeRequest,
    WaitForPerson,
)
from turnkeep.runner.loop import turns
from turnkeep.runner.models import ModelClient
from turnkeep.runner.patience import Patience
from turnkeep.runner.running import OpenTransaction, RunningTools
from turnkeep.store import AsyncBranch

log = logging.getLogger("turnkeep.runner")

_LATER = 30.0  # seconds until a branch that was handed back is taken up again
_CANCEL_AGAIN = 1.0
_TOLD = 4  # failures of a model server until it is told once as a warning

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
        self._tools = RunningTools(branch, agent)
        self._written_at = 0.0
        self._release: dict[str, Any] = {}
        self._said: dict[tuple[int, int], str] = {}

    def stop(self) -> None:
        """Stop as soon as what is under way allows."""
        self._stopping.set()

    async def run(self) -> None:
        """Go on, then hand the lease back.

        Raises what the store raises; the lease is then left to expire, and the branch goes on from its head elsewhere.
        """
        self._written_at = asyncio.get_running_loop().time()
        working = asyncio.create_task(self._work())
        keeping = asyncio.create_task(self._keep_lease())
        left: set[asyncio.Task[None]] = {working, keeping}
        try:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            while left:  # a library may lose a cancellation
                for task in left:
                    task.cancel()
                _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN)
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
            await self._tools.abandon()

    async def _keep_lease(self) -> None:
        """Renew the lease at a third of its length; a database that is away may come back in time."""
        lease = self.branch.lease
        while lease is not None:
            await asyncio.sleep(lease.seconds / 3)
            before, lease = lease, self.branch.lease
            if lease == before:  # no save has renewed it
                try:
                    lease = await self.branch.renew()
                    self._written_at = asyncio.get_running_loop().time()
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
                await self._see_lease()
                self._tools.start(effect)
            case AwaitTool():
                return await self._tools.landed()
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
        pending = branch.pending
        if self._said:
            pending = tuple(
                replace(call, tool_calls_text=self._said.get(call.place[:2], call.tool_calls_text)) for call in pending
            )
        return Head(branch.turn_index, branch.sub_step, branch.turn_open, branch.messages, pending, branch.state)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopped("the worker stops")

    async def _written(self, write: Callable[[], Awaitable[Result]]) -> Result:
        """Write under the lease. One that ran out while this process stood still is renewed, if nobody has taken it."""
        try:
            result = await write()
        except LeaseLostError:
            await self.branch.renew()
            result = await write()
        self._written_at = asyncio.get_running_loop().time()
        return result

    async def _see_lease(self) -> None:
        """Before a tool begins: if this process has stood still meanwhile, see that the branch is still its own."""
        lease = self.branch.lease
        if lease is not None and asyncio.get_running_loop().time() - self._written_at > lease.seconds / 2:
            await self.branch.renew()

    # -- the model

    async def _ask(self, effect: AskModel) -> ModelReply | ModelRefused:
        """Ask until there is an answer: a server that is away, or dies in the middle, is waited for."""
        self._check_stopping()
        patience = Patience()
        failures = 0
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
                failures += 1
                level = logging.WARNING if failures == _TOLD else logging.INFO
                log.log(level, "%r waits for the model server: %s", self.branch, error)
            # Never less than the server has asked for.
            await self._unless_stopping(asyncio.sleep(min(pause, _LATER) * random.uniform(1.0, 1.5)))

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

    # -- results

    async def _save(self, effect: Save) -> Head:
        content: dict[str, Any] = {
            "tool_results": effect.tool_results or None,
            "answers": effect.answers or None,
            "state": effect.state,
        }
        opened = self._tools.take_open(effect.answers)
        if opened is not None:
            await self._save_in(opened, effect, content)
            return self._head()
        calls = effect.tool_calls or None
        saved = await self._written(
            lambda: self.branch.save(effect.messages, tool_calls=calls, final=effect.final, **content)
        )
        if calls is not None and self.branch.redacts:  # tools run with what the model has said, not with what is stored
            self._said = {(saved.turn_index, saved.sub_step): encode(calls, "tool_calls")}
        if effect.final:
            log.info("%r: the turn has ended", self.branch)
        # A request that comes from here on is seen when the lease is handed back.
        return replace(self._head(), waiting=saved.waiting or not effect.final)

    async def _save_in(self, opened: OpenTransaction, effect: Save, content: dict[str, Any]) -> None:
        """Save a result where its effects are; if that fails, neither stands, and the call lands again."""
        failure: DatabaseError | None = None
        async with opened.stack:
            try:
                await self._written(lambda: opened.transaction.save(effect.messages, **content))
            except DatabaseError as error:
                failure = error
        if isinstance(failure, UnavailableError):
            log.info("%r: %s is run again: %s", self.branch, opened.effect.name, failure)
            self._tools.start(opened.effect, opened.tries + 1, failure)
        elif failure is not None:
            call = opened.effect.call
            self._tools.land(Landed(call, f"its transaction could not commit: {failure}", Outcome.ERROR), opened.effect)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
