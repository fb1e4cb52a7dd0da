"""A worker: claims branches that wait, and drives many of them on one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

from turnkeep.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseError,
    InvalidInputError,
    LeaseError,
    NotFoundError,
    PermissionDeniedError,
    SchemaError,
    TurnkeepError,
)
from turnkeep.runner.agent import Agent
from turnkeep.runner.drive import Driver
from turnkeep.runner.effects import Policy
from turnkeep.runner.models import ModelClient
from turnkeep.store import AsyncBranch, AsyncStore

log = logging.getLogger("turnkeep.runner")

_BATCH = 50  # conversations restored at once


class Worker:
    """Serves agents: takes up what is posted to their conversations, and what crashed workers have left.

    Any number of workers, in any number of processes and on any machines, may serve the same agents: a lease of
    `lease_seconds`, renewed at a third and by every save, keeps each branch with one of them (G5), and after a crash
    another takes it up when that has expired. `concurrency` is the most branches it drives at once. It looks for work
    about every `poll_seconds`. Told to stop, it gives up its inferences, waits `grace_seconds` for tools that run, and
    hands everything back.
    """

    def __init__(
        self,
        store: AsyncStore,
        agents: Sequence[Agent],
        *,
        concurrency: int = 50,
        lease_seconds: float = 15.0,
        poll_seconds: float = 0.25,
        grace_seconds: float = 10.0,
        owner: str | None = None,
    ) -> None:
        if not agents:
            raise InvalidInputError("agents: a worker serves at least one")
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidInputError(f"concurrency: expected a number from 1, got {concurrency!r}")
        self._agents = {agent.name: agent for agent in agents}
        if len(self._agents) != len(agents):
            raise InvalidInputError("agents: two of them have the same name")
        if store.pool_size < 2 and any(tool.policy is Policy.TRANSACTIONAL for agent in agents for tool in agent.tools):
            raise ConfigurationError("transactional tools need a store of at least two connections: see its pool_size")
        self._store = store
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._grace_seconds = grace_seconds
        self._owner = owner
        self._models: dict[str, ModelClient] = {}
        self._driven: dict[asyncio.Task[None], Driver] = {}
        self._stopping = asyncio.Event()

    @property
    def driven(self) -> int:
        """How many branches it drives at the moment."""
        return len(self._driven)

    def stop(self) -> None:
        """Let `run` come to its end: nothing new is claimed, and everything is handed back."""
        self._stopping.set()
        for driver in self._driven.values():
            driver.stop()

    async def run(self, *, drain: bool = False) -> None:
        """Work until `stop` is called; with `drain`, until nothing of these agents is ready or being run.

        A database that goes away is waited for. Raises what no waiting mends, such as `SchemaError`.
        """
        async with AsyncExitStack() as stack:
            for agent in self._agents.values():
                self._models[agent.name] = await stack.enter_async_context(ModelClient(agent))
            stack.push_async_callback(self._cancel)
            while not self._stopping.is_set():
                found = await self._claim()
                if drain and not found and not self._driven and await self._drained():
                    break
                if not found:
                    await self._pause()
            await self._finish()

    def driver(self, branch: AsyncBranch, agent: Agent) -> Driver:
        """What goes on with a branch."""
        return Driver(branch, agent, self._models[agent.name])

    async def _claim(self) -> int:
        """Take up as many branches as there is room for."""
        free = self._concurrency - len(self._driven)
        if free < 1:
            return 0
        try:
            claimed = await self._store.claim_waiting(
                list(self._agents),
                limit=min(free, _BATCH),
                owner=self._owner,
                seconds=self._lease_seconds,
                suspects=not any(driver.branch.suspect for driver in self._driven.values()),
                skip=[(driver.branch.conversation_id, driver.branch.branch) for driver in self._driven.values()],
            )
        except (SchemaError, PermissionDeniedError):
            raise
        except DatabaseError as error:
            log.warning("no work can be claimed: %s", error)
            return 0
        for branch in claimed:
            if branch.taken_from is not None:
                log.warning("%r is taken over: the lease of %s had expired", branch, branch.taken_from)
            driver = self.driver(branch, self._agents[str(branch.agent_id)])
            self._driven[asyncio.create_task(self._drive(driver))] = driver
            if self._stopping.is_set():
                driver.stop()
        return len(claimed)

    async def _drained(self) -> bool:
        try:
            return not await self._store.busy(list(self._agents))
        except (SchemaError, PermissionDeniedError):
            raise
        except DatabaseError as error:
            log.warning("what is left can't be seen: %s", error)
            return False

    async def _drive(self, driver: Driver) -> None:
        try:
            await driver.run()
        except NotFoundError:
            log.info("%r has been erased, and is dropped", driver.branch)
        except (LeaseError, ConflictError, DatabaseError) as error:
            log.warning("%r is left for the next worker: %s: %s", driver.branch, type(error).__name__, error)
        except Exception as error:
            log.exception("%r has failed", driver.branch)
            await self._fail(driver, error)
        finally:
            self._driven.pop(asyncio.current_task())  # type: ignore[arg-type]

    async def _fail(self, driver: Driver, error: Exception) -> None:
        """Stop a turn that trying again would not mend; it can be resumed."""
        try:
            await driver.branch.release(failure={"type": type(error).__name__, "message": str(error)})
        except TurnkeepError as refused:
            log.warning("%r: its failure can't be stored: %s", driver.branch, refused)

    async def _pause(self) -> None:
        """Wait for the next look: a while, or until there is room again, or the worker stops."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        full = len(self._driven) >= self._concurrency
        waiting = {stopping, *self._driven} if full else {stopping}
        seconds = self._poll_seconds * random.uniform(0.5, 1.0)
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    async def _finish(self) -> None:
        """Give those that stop some time."""
        if self._driven:
            await asyncio.wait(self._driven, timeout=self._grace_seconds)

    async def _cancel(self) -> None:
        """Break off what is still under way, and hand it back."""
        driven = dict(self._driven)
        for task in driven:
            task.cancel()
        await asyncio.gather(*driven, return_exceptions=True)
        for driver in driven.values():
            if driver.branch.lease is not None:
                try:
                    await driver.branch.release()
                except TurnkeepError as error:
                    log.warning("%r could not be handed back: %s", driver.branch, error)
