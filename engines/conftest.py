"""What the tests of all engines share: a database, workers, and a conversation that is watched from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import turnkeep
from engines.engine import Engine
from engines.worker import Piece, WorkerProcess, pieces
from tests.conftest import dsn, server, template  # noqa: F401
from tests.observing import Observer, until

LEASE = 5.0
REPLY_SECONDS = 180.0


@dataclass(frozen=True)
class Lease:
    """Who may write: the holder, its fencing token, and until when, in seconds as `time.time` counts them."""

    owner: str
    token: int
    until: float


@dataclass
class Scene:
    """A database, an engine, and the workers between them."""

    dsn: str
    directory: Path
    engine: Engine
    agent: Mapping[str, str]
    lease_seconds: float = LEASE
    stack: ExitStack = field(default_factory=ExitStack)

    def worker(self, name: str) -> WorkerProcess:
        """Start a worker that asks the engine. It is killed at the end of the test."""
        files = {"WORLD": str(self.directory / "world"), "OPEN": str(self.directory / "open")}
        env = {"MODEL_URL": self.engine.base_url, **files, **self.agent}
        return self.stack.enter_context(WorkerProcess(name, self.dsn, self.directory, env, lease=self.lease_seconds))

    async def post(self, conversation: str, text: str, key: str = "0") -> None:
        """Say something to the agent."""
        async with turnkeep.open(self.dsn) as store:
            await store.post(conversation, text, key=key, agent_id="engine")

    async def reply(self, conversation: str, key: str = "0") -> turnkeep.Checkpoint:
        """Wait until that is answered. Gives the checkpoint that the turn ended with."""
        async with turnkeep.open(self.dsn) as store:
            return (await store.wait_reply(conversation, key, seconds=REPLY_SECONDS)).checkpoint

    async def places(self, conversation: str) -> list[tuple[int, int, str]]:
        """Where its checkpoints are, oldest first: turn, sub-step and phase."""
        async with turnkeep.open(self.dsn) as store:
            listed = await store.history(conversation, limit=1000)
        return [(one.turn_index, one.sub_step, one.phase) for one in reversed(listed)]

    def pieces(self, conversation: str, owner: str | None = None) -> list[Piece]:
        """The pieces of text that workers got for it, those of one worker or of all."""
        got = pieces(self.directory / "pieces")
        return [one for one in got if one.conversation == conversation and owner in (None, one.owner)]

    async def see_pieces(self, conversation: str, count: int, owner: str | None = None) -> list[Piece]:
        """Wait until a stream is under way: that many pieces have come."""
        return await until(lambda: len(got := self.pieces(conversation, owner)) >= count and got, "a stream") or []

    def let_tools_end(self) -> None:
        """Let the tools that run, and those to come, give their results."""
        (self.directory / "open").touch()

    def ran(self) -> list[str]:
        """What the tool did: one line for each run."""
        world = self.directory / "world"
        return world.read_text().splitlines() if world.exists() else []

    def lease(self) -> Lease:
        """The one lease that is held."""
        with Observer(self.dsn) as observer:
            ((owner, token, until_then),) = observer.rows(
                "SELECT lease_owner, lease_token, extract(epoch FROM lease_until)::float8 FROM turnkeep.branch"
                " WHERE lease_until IS NOT NULL"
            )
        return Lease(owner, token, until_then)

    def free(self) -> bool:
        """Whether nobody holds a lease."""
        with Observer(self.dsn) as observer:
            return not observer.rows("SELECT FROM turnkeep.branch WHERE lease_until IS NOT NULL")

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        with Observer(self.dsn) as observer:
            return observer.counts()


def agent_env(model: str, *, tools: bool = False, **options: Any) -> dict[str, str]:
    """What `engines.app` wants to know, beside where things are."""
    return {"MODEL": model, "OPTIONS": json.dumps(options), "TOOLS": "yes" if tools else ""}


def said(pieces: list[Piece]) -> str:
    """The text that came in pieces."""
    return "".join(piece.text for piece in pieces)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where workers write. Their logs are shown when a test fails."""
    yield tmp_path
    for log in sorted(tmp_path.glob("*.log")):
        print(f"-- {log.name}\n{log.read_text()}")
