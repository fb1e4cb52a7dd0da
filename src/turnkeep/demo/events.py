"""What happens in a demo, as its views are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from turnkeep.demo.saves import Place


class Target(StrEnum):
    """What a kill hits."""

    WRITER = "writer"
    POSTGRES = "postgres"
    BOTH = "both"

    @property
    def words(self) -> str:
        """The target in a sentence."""
        return {"writer": "the writer", "postgres": "Postgres", "both": "the writer and Postgres"}[self.value]


@dataclass(frozen=True)
class PostgresStarted:
    """A private Postgres serves, and the schema is there."""

    version: str
    directory: Path
    seconds: float


@dataclass(frozen=True)
class WriterStarted:
    """The `number`th writer, from 1, has been started."""

    number: int
    pid: int


@dataclass(frozen=True)
class Restored:
    """A writer has restored everything that was interrupted: `conversations` in the middle of a turn."""

    writer: int
    conversations: int
    messages: int
    pending: int
    seconds: float


@dataclass(frozen=True)
class Acknowledged:
    """A save is acknowledged, and the acknowledgement is on disk. `total` counts them all so far."""

    conversation: str
    place: Place
    repeated: bool
    total: int


@dataclass(frozen=True)
class Holding:
    """The next kill waits until saves of these conversations are seen at work in the database."""

    kill: int
    conversations: tuple[str, ...]


@dataclass(frozen=True)
class Killed:
    """SIGKILL has been sent while `in_flight` saves were seen at work in the database."""

    kill: int
    target: Target
    in_flight: int


@dataclass(frozen=True)
class Recovered:
    """The first acknowledgement produced after a kill."""

    kill: int
    seconds: float


@dataclass(frozen=True)
class Ended:
    """A conversation is played to its end, or stuck: `why` tells."""

    conversation: str
    why: str | None = None


@dataclass(frozen=True)
class Checking:
    """All is played; the check begins."""


@dataclass(frozen=True)
class Removing:
    """All that the demo made is being removed."""


Event = (
    PostgresStarted
    | WriterStarted
    | Restored
    | Acknowledged
    | Holding
    | Killed
    | Recovered
    | Ended
    | Checking
    | Removing
)


class View(Protocol):
    """Something that shows a demo, or does not."""

    def tell(self, event: Event) -> None:
        """Take note of an event."""


class Unseen:
    """The view of a demo that nobody watches."""

    def tell(self, event: Event) -> None:
        """Take note of nothing."""
