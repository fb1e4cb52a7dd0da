"""A demo from its first process to its last: everything is made in one directory, and nothing is left of it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg

import turnkeep
from turnkeep import embedded
from turnkeep.demo.check import Evidence, Findings, check
from turnkeep.demo.client import Client, request_of
from turnkeep.demo.director import Director, PlannedKill, Stage, plan
from turnkeep.demo.events import Checking, ModelStarted, PostgresStarted, Removing, Target, Undisturbed, View
from turnkeep.demo.exchanges import exchanges, posted, user_text
from turnkeep.demo.ledger import LedgerFile, read_ledger
from turnkeep.demo.outside import OutsideReader
from turnkeep.demo.progress import Progress
from turnkeep.demo.report import Report
from turnkeep.demo.script import Script, load_scripts
from turnkeep.demo.sightings import Sightings
from turnkeep.demo.statements import MAKE_EFFECTS
from turnkeep.demo.stored import read
from turnkeep.demo.workers import Workers
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.errors import ConfigurationError
from turnkeep.store import migrate
from turnkeep.testing import ModelServer

_SCHEMAS = ("turnkeep", "undisturbed")
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(view: View, *, seed: int, sabotage: bool) -> Report:
    """Play, kill, check, and remove everything. Takes about forty seconds, in the main thread.

    Raises `KeyboardInterrupt` when the process is told to stop meanwhile, `DemoError` if the demo can't go on,
    `ConfigurationError` where the packages that agents need are missing.
    """
    if missing := [name for name in ("openai", "pydantic") if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(
            f"the demo runs agents, which need {' and '.join(missing)}: pip install 'turnkeep[openai]'"
        )
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # it has much to say about killed servers
    started = time.monotonic()
    scripts = load_scripts()
    stack = ExitStack()
    try:
        directory = Path(tempfile.mkdtemp(prefix="turnkeep-demo-"))
        stack.callback(shutil.rmtree, directory)
        stack.callback(embedded.stop, directory / "postgres")
        directory.chmod(0o711)  # for root, another user runs the server
        model = ModelServer(exchanges(scripts))
        stack.callback(model.stop)
        workers = Workers(directory, view)
        stack.callback(workers.close)
        stack.callback(view.tell, Removing())
        report = asyncio.run(_Demo(directory, scripts, model, workers, view, seed, sabotage).perform())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        with _unstoppable():
            stack.close()
    return replace(report, seconds=time.monotonic() - started)


class _Demo:
    def __init__(
        self,
        directory: Path,
        scripts: Sequence[Script],
        model: ModelServer,
        workers: Workers,
        view: View,
        seed: int,
        sabotage: bool,
    ) -> None:
        self._directory = directory
        self._scripts = scripts
        self._model = model
        self._workers = workers
        self._view = view
        self._seed = seed
        self._sabotage = sabotage

    async def perform(self) -> Report:
        """From the first process to the check."""
        _stop_on_signals()
        server = await asyncio.to_thread(self._start_servers)
        ledger = LedgerFile(self._directory / "ledger.jsonl")
        with server:
            try:
                async with turnkeep.open(server.conninfo, pool_size=len(self._scripts)) as store:
                    client = Client(store, ledger, self._scripts, self._view, sabotage=self._sabotage)
                    progress = await self._play(server, client)
            finally:
                ledger.close()
            requests = await asyncio.to_thread(lambda: len(self._model.requests))
            await asyncio.to_thread(self._workers.close)
            self._view.tell(Undisturbed())
            await self._undisturbed(server)
            self._view.tell(Checking())
            findings = await asyncio.to_thread(self._check, server, ledger.path, progress)
        return Report(
            findings=findings,
            kills=tuple(progress.kills),
            stuck=tuple(client.stuck),
            replies_again=requests - findings.replies,
            seed=self._seed,
            sabotage=self._sabotage,
        )

    def _plan(self) -> tuple[PlannedKill, ...]:
        return plan(self._seed, sum(len(script.transcript()) for script in self._scripts))

    def _start_servers(self) -> EmbeddedPostgres:
        place = self._directory / "postgres"
        server = EmbeddedPostgres.start(place)
        for schema in _SCHEMAS:
            migrate(server.conninfo, schema)
        with psycopg.connect(server.conninfo) as connection:
            connection.execute(MAKE_EFFECTS)
        self._view.tell(PostgresStarted(embedded.status(place).version or "of an unknown version", place))
        self._model.start()
        self._view.tell(ModelStarted(self._model.pid))
        return server

    async def _play(self, server: EmbeddedPostgres, client: Client) -> Progress:
        """Have the conversations played to their end, and do the kills meanwhile."""
        start_worker = partial(self._workers.start, server.conninfo, self._model.base_url)
        names = {user_text(turn): script.external_id for script in self._scripts for turn in script.turns}
        progress = Progress(server.conninfo, self._view, client.playing)
        sightings = Sightings(server, self._model, self._workers.outside, names, client.playing)
        stage = Stage(server, self._model, self._workers, start_worker)
        director = Director(stage, client, progress, sightings, self._view, self._seed)
        start_worker()
        watching: asyncio.Task[None] = asyncio.create_task(progress.watch(self._workers.raise_failure))
        playing = asyncio.create_task(_played(client, progress))
        killing = asyncio.create_task(director.run(self._plan()))
        tasks = {watching, playing, killing}
        try:
            while not (playing.done() and killing.done()):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                tasks -= done
        finally:
            for task in (watching, playing, killing):
                task.cancel()
            await asyncio.gather(watching, playing, killing, return_exceptions=True)
            await progress.close()
        return progress

    async def _undisturbed(self, server: EmbeddedPostgres) -> None:
        """Have the same conversations once more in another schema, as fast as can be."""
        *_, schema = _SCHEMAS
        await asyncio.to_thread(server.ensure)
        self._model.pace(first_token_seconds=0, token_seconds=0)
        async with turnkeep.open(server.conninfo, schema=schema) as store:
            for script in self._scripts:
                for number, turn in enumerate(script.turns):
                    key = request_of(script, number).key
                    await store.post(script.external_id, posted(turn), key=key, agent_id=script.agent_id)
        await self._workers.drain(server.conninfo, schema, self._model.base_url)

    def _check(self, server: EmbeddedPostgres, ledger: Path, progress: Progress) -> Findings:
        """Check what is on disk: ledger and marks are read back from their files."""
        disturbed, undisturbed = _SCHEMAS
        with psycopg.connect(server.conninfo) as connection:
            stored, effects = read(connection, disturbed)
            expected, _ = read(connection, undisturbed)
        outside = OutsideReader(self._workers.outside)
        outside.look()
        evidence = Evidence(
            ledger=read_ledger(ledger),
            stored=stored,
            undisturbed=expected,
            effects=effects,
            marks=outside.marks,
            kills=[(kill.at, kill.until) for kill in progress.kills if kill.target is not Target.MODEL],
        )
        return check(self._scripts, evidence)


async def _played(client: Client, progress: Progress) -> None:
    await client.play()
    await progress.settled()


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
