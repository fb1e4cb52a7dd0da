"""What the plain model holds: each checkpoint has its whole list, and a message is known by the row that stores it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_PIECES = 256

Place = tuple[int, int]


def value_of(text: str) -> str:
    """What two JSON texts have in common when they are the same value: 1 and 1.0 are two, order of keys is none."""
    return repr(
        json.loads(
            text,
            object_pairs_hook=lambda pairs: ("object", sorted(pairs, key=lambda pair: pair[0])),
            parse_int=lambda digits: ("int", int(digits)),
            parse_float=lambda digits: ("float", float(digits)),
        )
    )


def values_of(texts: Sequence[str]) -> list[str]:
    return [value_of(text) for text in texts]


@dataclass(frozen=True)
class Row:
    """A stored message."""

    branch: int
    position: int
    text: str


@dataclass(frozen=True)
class PlainCall:
    """A tool call without a result."""

    conversation: uuid.UUID
    branch: int
    turn: int
    sub_step: int
    index: int
    text: str
    attempts: int = 0
    copied: bool = False

    @property
    def place(self) -> tuple[int, int, int]:
        return self.turn, self.sub_step, self.index


@dataclass(frozen=True)
class Write:
    """What a save is called with. With `whole` the texts are the whole list."""

    texts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    state: str | None = None
    final: bool = False
    write_id: uuid.UUID | None = None
    whole: bool = False
    started: tuple[tuple[int, int, int], ...] = ()
    phase: str = ""

    @property
    def kind(self) -> str:
        if self.phase or self.final:
            return self.phase or "final"
        return "tool_calls" if self.calls else "tool_results" if self.results else "step"

    def says(self, other: Write) -> bool:
        """Whether it has the same calls and results, and marks the same calls as started."""
        return (self.calls, self.results, self.started) == (other.calls, other.results, other.started)


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint with all it says."""

    branch: int
    turn: int
    sub_step: int
    write: Write
    parent: Snapshot | None
    rows: tuple[Row, ...]
    state: str | None
    pending: tuple[PlainCall, ...]
    agent: str | None
    day: int = 0

    @property
    def place(self) -> Place:
        return self.turn, self.sub_step

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def open(self) -> bool:
        return self.write.kind != "final"


@dataclass
class PlainBranch:
    number: int
    name: str | None
    history: dict[Place, Snapshot] = field(default_factory=dict)
    parent: tuple[int, int, int] | None = None
    status: str = "idle"
    stored: int = 0  # messages it has ever had of its own
    pruned: set[int] = field(default_factory=set)  # the positions of those that are gone
    fork_id: uuid.UUID | None = None
    before_end: str = ""

    @property
    def head(self) -> Snapshot | None:
        return self.history[max(self.history)] if self.history else None

    @property
    def own(self) -> list[Snapshot]:
        return [self.history[place] for place in sorted(self.history) if self.history[place].branch == self.number]

    def written(self, write_id: uuid.UUID | None) -> Snapshot | None:
        """The newest checkpoint of its own that was written under an id."""
        return next((s for s in reversed(self.own) if write_id is not None and s.write.write_id == write_id), None)

    def new_rows(self, texts: Sequence[str]) -> list[Row]:
        rows = [Row(self.number, self.stored + index, text) for index, text in enumerate(texts)]
        self.stored += len(rows)
        return rows


@dataclass
class PlainRequest:
    branch: int
    body: str
    text: str
    taken: int | None = None


@dataclass
class PlainConversation:
    id: uuid.UUID
    name: str
    agent: str | None = None
    parent: uuid.UUID | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    ended: bool = False
    current: int = 0
    next_branch: int = 1
    branches: dict[int, PlainBranch] = field(default_factory=dict)
    requests: dict[str, PlainRequest] = field(default_factory=dict)
    documents: dict[tuple[int, int], bool] = field(default_factory=dict)  # by (branch, turn), whether they are filled

    def waiting(self, branch: int) -> list[str]:
        return [key for key, r in self.requests.items() if r.branch == branch and r.taken is None]

    def builders(self, branch: int) -> list[int]:
        """The other branches that have inherited something of this one."""
        return [
            other.number
            for other in self.branches.values()
            if other.number != branch and any(s.branch == branch for s in other.history.values())
        ]


@dataclass
class PlainHandle:
    """What a writer knows: the checkpoint it has seen last."""

    conversation: uuid.UUID
    branch: int
    seen: Snapshot | None
    agent: str | None

    @property
    def texts(self) -> list[str]:
        return self.seen.texts if self.seen else []

    @property
    def pending(self) -> tuple[PlainCall, ...]:
        return self.seen.pending if self.seen else ()

    @property
    def open(self) -> bool:
        return self.seen is not None and self.seen.open

    @property
    def place(self) -> Place:
        return self.seen.place if self.seen else (-1, 0)

    def next_place(self, phase: str) -> Place:
        turn, sub_step = self.place
        return (turn + 1, 0) if phase == "input" else (turn, sub_step + 1)


def call_id(text: str) -> object:
    value = json.loads(text)
    return value.get("tool_call_id") or value.get("id")


def pieces(sources: Sequence[Any], follows: Callable[[Any, Any], bool]) -> int:
    """In how many pieces a list lies, each of which goes on without a gap."""
    return sum(index == 0 or not follows(sources[index - 1], one) for index, one in enumerate(sources))


def sources_of(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """For each message of a list the index of the one it was before, None where it is new.

    Both ends are kept as far as they are the same; between them a message is the one that followed there, or the first
    of that value.
    """
    old, new = values_of(before), values_of(after)
    shorter = min(len(old), len(new))
    start = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    end = next((n for n in range(shorter - start) if old[-1 - n] != new[-1 - n]), shorter - start)
    middle = old[start : len(old) - end]
    sources: list[int | None] = list(range(start))
    last: int | None = start - 1
    for wanted in new[start : len(new) - end]:
        following = start if last is None else last + 1
        if not (start <= following < len(old) - end and old[following] == wanted):
            following = start + middle.index(wanted) if wanted in middle else -1
        last = None if following < 0 else following
        sources.append(last)
    sources += range(len(old) - end, len(old))
    in_pieces = pieces(sources, lambda a, b: (a is None and b is None) or (None not in (a, b) and b == a + 1))
    return sources if in_pieces <= MOST_PIECES else [None] * len(after)
