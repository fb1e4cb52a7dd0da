"""A demo from its first process to its last: everything is made in one directory, and nothing is left of it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from turnkeep import embedded
from turnkeep.demo.check import Findings, check, read
from turnkeep.demo.client import Client, Kill
from turnkeep.demo.director import Director, plan
from turnkeep.demo.events import Checking, PostgresStarted, Removing, View
from turnkeep.demo.ledger import read_ledger
from turnkeep.demo.script import Script, load_scripts
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.store import migrate

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Report:
    """What a demo came to. `sent_again` saves were repeated by a later writer with the same write id, and
    `repeated` of them turned out to be committed already."""

    findings: Findings
    kills: tuple[Kill, ...]
    sent_again: int
    repeated: int
    syncs: int
    seed: int
    sabotage: bool
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or doubled, and every kill was one that counts."""
        return self.findings.clean and bool(self.kills) and all(kill.in_flight for kill in self.kills)

    @property
    def worst_recovery(self) -> float | None:
        """The longest time from a kill to the first acknowledgement after it, in seconds."""
        return max((kill.recovery for kill in self.kills if kill.recovery is not None), default=None)

    def record(self) -> dict[str, Any]:
        """The report as one JSON object."""
        worst = self.worst_recovery
        kills = [
            {
                "target": kill.target.value,
                "in_flight": kill.in_flight,
                "recovery_seconds": None if kill.recovery is None else round(kill.recovery, 3),
            }
            for kill in self.kills
        ]
        return {
            "ok": self.ok,
            "sabotage": self.sabotage,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            **asdict(self.findings),
            "kills": kills,
            "worst_recovery_seconds": None if worst is None else round(worst, 3),
            "sent_again": self.sent_again,
            "committed_before_sent_again": self.repeated,
            "ledger_syncs": self.syncs,
        }


def run_demo(view: View, *, seed: int, sabotage: bool) -> Report:
    """Play, kill, check, and remove everything. Takes about half a minute, in the main thread.

    Raises `KeyboardInterrupt` when the process is told to stop meanwhile, `DemoError` if the demo can't go on.
    """
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="turnkeep-demo-"))
    try:
        directory.chmod(0o711)  # for root, another user runs the server
        report = asyncio.run(_perform(directory, view, seed, sabotage, started))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        with _unstoppable():
            _remove(directory, view)
    return replace(report, seconds=time.monotonic() - started)


async def _perform(directory: Path, view: View, seed: int, sabotage: bool, started: float) -> Report:
    _stop_on_signals()
    scripts = load_scripts()
    server = await asyncio.to_thread(_start_postgres, directory, view, started)
    with server:
        client = Client(server.conninfo, directory, [s.external_id for s in scripts], view, sabotage=sabotage)
        try:
            await client.start_writer()
            await Director(client, server, seed, view).run(plan(seed, sum(script.saves for script in scripts)))
            await client.until(lambda: not client.playing, "the end of all conversations")
            await client.writer_ended()
        finally:
            await client.close()
        view.tell(Checking())
        findings = await asyncio.to_thread(_check, server, scripts, client.file.path)
    return Report(
        findings=findings,
        kills=tuple(client.kills),
        sent_again=client.sent_again,
        repeated=client.repeated,
        syncs=client.file.syncs,
        seed=seed,
        sabotage=sabotage,
    )


def _start_postgres(directory: Path, view: View, started: float) -> EmbeddedPostgres:
    place = directory / "postgres"
    server = EmbeddedPostgres.start(place)
    migrate(server.conninfo)
    version = embedded.status(place).version or "of an unknown version"
    view.tell(PostgresStarted(version, place, time.monotonic() - started))
    return server


def _check(server: EmbeddedPostgres, scripts: Sequence[Script], ledger: Path) -> Findings:
    """Check what is on disk: the ledger is read back from its file."""
    server.ensure()
    return check(scripts, read_ledger(ledger), read(server.conninfo))


def _stop_on_signals() -> None:
    task = asyncio.current_task()
    if task is not None:
        for number in _STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@contextmanager
def _unstoppable() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove(directory: Path, view: View) -> None:
    try:
        view.tell(Removing())
    finally:
        try:
            embedded.stop(directory / "postgres")
        finally:
            shutil.rmtree(directory)
