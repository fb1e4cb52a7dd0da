"""What happens in a demo, as its views are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Target(StrEnum):
    """What a kill hits."""

    MODEL = "model server"
    WORKER = "worker"
    POSTGRES = "postgres"
    BOTH = "worker and postgres"

    @property
    def words(self) -> str:
        """The target in a sentence."""
        return "the " + self.value.replace("postgres", "Postgres") if self is not Target.POSTGRES else "Postgres"


@dataclass(frozen=True)
class PostgresStarted:
    """A private Postgres serves, and the schema is there."""

    version: str
    directory: Path


@dataclass(frozen=True)
class ModelStarted:
    """The model server listens; after a kill once more."""

    pid: int


@dataclass(frozen=True)
class WorkerStarted:
    """The `number`th worker, from 1, has been started."""

    number: int
    pid: int


@dataclass(frozen=True)
class Acknowledged:
    """A post has returned, and that is on disk. `total` counts them all so far."""

    conversation: str
    turn: int
    total: int


@dataclass(frozen=True)
class Moved:
    """A conversation has `messages` in the database now, and its head is at (turn, sub_step)."""

    conversation: str
    messages: int
    turn: int
    sub_step: int


@dataclass(frozen=True)
class Waiting:
    """The next kill waits until it is seen that something is under way: `what`."""

    kill: int
    what: str


@dataclass(frozen=True)
class Killed:
    """SIGKILL has been sent while `seen` was under way. It has interrupted those conversations."""

    kill: int
    target: Target
    seen: str
    conversations: tuple[str, ...]


@dataclass(frozen=True)
class Recovered:
    """Every conversation that a kill had interrupted has gone on, and that is in the database."""

    kill: int
    seconds: float


@dataclass(frozen=True)
class Ended:
    """The last reply of a conversation has come, or it is stuck: `why` tells."""

    conversation: str
    why: str | None = None


@dataclass(frozen=True)
class Undisturbed:
    """All is answered; the same begins once more, and nobody disturbs it."""


@dataclass(frozen=True)
class Checking:
    """The check begins."""


@dataclass(frozen=True)
class Removing:
    """All that the demo made is being removed."""


Event = (
    PostgresStarted
    | ModelStarted
    | WorkerStarted
    | Acknowledged
    | Moved
    | Waiting
    | Killed
    | Recovered
    | Ended
    | Undisturbed
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
