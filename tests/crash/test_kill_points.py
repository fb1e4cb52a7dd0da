"""Kill -9 around and inside every statement of a writer: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import turnkeep
from tests.crash.ledger import Event, Ledger, Nursery
from tests.crash.writer import SCRIPTS
from tests.observing import Observer, branches_held, table_held

KILLED = -signal.SIGKILL
WRITES = {"save", "fork", "claim", "renew", "release", "create"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


@pytest.fixture
def runs(nursery: Nursery, dsn: str, store: turnkeep.AsyncStore, tmp_path: Path) -> Iterator[Runs]:
    with Observer(dsn) as observer:
        yield Runs(nursery, dsn, store, observer, tmp_path)


@dataclass
class Runs:
    """Runs of scripts in one database, each in a conversation of its own."""

    nursery: Nursery
    dsn: str
    store: turnkeep.AsyncStore
    observer: Observer
    directory: Path

    async def undisturbed(self, script: str) -> tuple[list[str], Any]:
        """Run a script to its end: the names of its statements from number 1, and what was stored."""
        ledger = Ledger(self.directory, script)
        events = await self._live(ledger, ledger.job(self.dsn))
        assert events[-1] == {"exit": 0}, events
        self._finish(ledger)
        return [event["name"] for event in events if "statement" in event], await self.stored(ledger)

    async def killed(self, script: str, number: int, moment: str, *, acknowledge_early: bool = False) -> Any:
        """Kill a writer at a statement, let a fresh one finish, check all, and give what was stored."""
        ledger = Ledger(self.directory, script)
        job = ledger.job(self.dsn, kill_at=number, moment=moment, acknowledge_early=acknowledge_early)
        events = await self._live(ledger, job)
        assert events[-1] == {"exit": KILLED}, events
        ledger.check_acknowledged(self.observer)
        events = await self._live(ledger, ledger.job(self.dsn))
        assert events[-1] == {"exit": 0}, events
        self._finish(ledger)
        return await self.stored(ledger)

    def _finish(self, ledger: Ledger) -> None:
        assert len(ledger.acknowledged()) == len(SCRIPTS[ledger.script])
        ledger.check_acknowledged(self.observer)
        ledger.check_consistent(self.observer)

    async def _live(self, ledger: Ledger, job: Event) -> list[Event]:
        """One life of a writer, by the events it reports."""
        events: list[Event] = []
        for event in self.nursery.start(job):
            ledger.keep(event)
            events.append(event)
            if "at" in event:
                await self._kill_inside(ledger, job, events)
            if "lease_held" in event:
                self._expire_lease(ledger)
                self.nursery.go_on()
        return events

    async def _kill_inside(self, ledger: Ledger, job: Event, events: list[Event]) -> None:
        """Kill the writer while its statement is seen waiting in the server, which then goes on without it."""
        (name,) = (event["name"] for event in events if event.get("statement") == job["kill_at"])
        (pid,) = (event["pid"] for event in events if "pid" in event)
        with self._obstacle(ledger, name, job["moment"]):
            self.nursery.go_on()
            await self.observer.see_waiting(1)
            os.kill(pid, signal.SIGKILL)

    def _obstacle(self, ledger: Ledger, name: str, moment: str) -> AbstractContextManager[None]:
        if moment == "during, half done":
            return table_held(self.dsn, "turnkeep.checkpoint" if name == "save" else "turnkeep.conversation")
        if name in ("create", "restore"):
            return table_held(self.dsn, "turnkeep.branch", "ACCESS EXCLUSIVE")
        return branches_held(self.dsn, ledger.conversation)

    def _expire_lease(self, ledger: Ledger) -> None:
        self.observer.rows(
            "UPDATE turnkeep.branch SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE conversation_id = %s RETURNING 1",
            ledger.conversation,
        )

    async def stored(self, ledger: Ledger) -> Any:
        """All that a conversation holds, ids and times aside."""
        branches = self.observer.rows(
            "SELECT branch, status, lineage, next_position, lease_token FROM turnkeep.branch"
            " WHERE conversation_id = %s ORDER BY branch",
            ledger.conversation,
        )
        requests = self.observer.rows(
            "SELECT key, branch, digest, taken_turn FROM turnkeep.request WHERE conversation_id = %s ORDER BY key",
            ledger.conversation,
        )
        documents = self.observer.rows(
            "SELECT branch, turn_index FROM turnkeep.document WHERE conversation_id = %s ORDER BY 1, 2",
            ledger.conversation,
        )
        checkpoints = [await self._checkpoints(ledger, branch) for branch, *_ in branches]
        places = [entry.place for entry in ledger.acknowledged()]
        return branches, requests, documents, checkpoints, places

    async def _checkpoints(self, ledger: Ledger, branch: int) -> list[Any]:
        """Each checkpoint in a branch's history, whole, oldest first."""
        history = await self.store.history(ledger.conversation, branch=branch)
        whole = [
            await self.store.restore(ledger.conversation, branch=branch, at=(one.turn_index, one.sub_step))
            for one in reversed(history)
        ]
        return [
            (
                (one.turn_index, one.sub_step, one.phase, one.agent_id, one.parent),
                (one.message_texts, one.state_text, one.tool_calls_text, one.tool_results_text),
                [(call.place, call.uncertain) for call in one.pending],
            )
            for one in whole
        ]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_killed_around_any_statement_a_conversation_ends_as_if_undisturbed(
    runs: Runs, script: str, moment: str
) -> None:
    names, undisturbed = await runs.undisturbed(script)
    for number, name in enumerate(names, 1):
        assert await runs.killed(script, number, moment) == undisturbed, f"killed {moment} {name} ({number})"


@pytest.mark.parametrize("script", SCRIPTS)
async def test_killed_while_any_statement_waits_in_the_server_a_conversation_ends_as_if_undisturbed(
    runs: Runs, script: str
) -> None:
    names, undisturbed = await runs.undisturbed(script)
    for number, name in enumerate(names, 1):
        if name != "look":  # nobody can make that one wait
            assert await runs.killed(script, number, "during") == undisturbed, f"killed in {name} ({number})"


@pytest.mark.parametrize("script", SCRIPTS)
async def test_killed_while_a_write_is_half_done_in_the_server_a_conversation_ends_as_if_undisturbed(
    runs: Runs, script: str
) -> None:
    names, undisturbed = await runs.undisturbed(script)
    for number, name in enumerate(names, 1):
        if name in ("save", "fork", "create"):  # the others change one row
            stored = await runs.killed(script, number, "during, half done")
            assert stored == undisturbed, f"killed in the middle of {name} ({number})"


@pytest.mark.parametrize("script", ["one tool", "fork in the middle of a turn"])
async def test_the_ledger_convicts_a_writer_that_acknowledges_before_the_commit(runs: Runs, script: str) -> None:
    names, _ = await runs.undisturbed(script)
    writes = [number for number, name in enumerate(names, 1) if name in ("save", "fork")]
    for number in writes:
        with pytest.raises(AssertionError, match="acknowledged"):
            await runs.killed(script, number, "before", acknowledge_early=True)


def test_the_scripts_send_every_kind_of_write() -> None:
    kinds = {kind for script in SCRIPTS.values() for kind, _ in script}
    assert kinds >= WRITES - {"create"}
