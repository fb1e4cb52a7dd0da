"""The comparison of what was acknowledged with what the database holds: read by plain SQL, decided purely."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from turnkeep.demo.ledger import Intent, Ledger
from turnkeep.demo.saves import Place, Save, saves_of, source_text
from turnkeep.demo.script import Script
from turnkeep.demo.statements import CHECKPOINTS, CONVERSATIONS, MESSAGES, TRANSCRIPTS


@dataclass(frozen=True)
class StoredCheckpoint:
    """A row of the checkpoint table, its json as text."""

    branch: int
    turn: int
    sub_step: int
    write_id: str
    phase: str
    tool_calls: str | None
    tool_results: str | None
    state: str | None

    @property
    def place(self) -> Place:
        """(turn, sub_step)."""
        return self.turn, self.sub_step


@dataclass
class Stored:
    """What the database holds of one conversation.

    `branches` are (branch, turn, sub_step, status); `transcript` is what the head's spans list, `messages` all
    there are; both as exact texts.
    """

    branches: list[tuple[Any, ...]] = field(default_factory=list)
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """What the check found. The numbers are of saves, except where the name says otherwise.

    `problems` has a sentence for each thing that is not as it should be.
    """

    conversations: int
    equal: int
    finished: int
    saves: int
    acknowledged: int
    missing: int
    duplicated: int
    unacknowledged: int
    messages: int
    tool_results: int
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether all is played, acknowledged, there, and there once."""
        return not self.problems and self.acknowledged == self.saves and self.equal == self.conversations


def read(conninfo: str) -> dict[str, Stored]:
    """Read everything there is, by external id, in one snapshot."""
    found: defaultdict[str, Stored] = defaultdict(Stored)
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for name, *row in connection.execute(CONVERSATIONS):
            found[str(name)].branches.append(tuple(row))
        for name, *row in connection.execute(CHECKPOINTS):
            found[str(name)].checkpoints.append(StoredCheckpoint(*row))
        for name, text in connection.execute(TRANSCRIPTS):
            found[str(name)].transcript.append(text)
        for name, text in connection.execute(MESSAGES):
            found[str(name)].messages.append(text)
    return dict(found)


def check(scripts: Sequence[Script], ledger: Ledger, found: Mapping[str, Stored]) -> Findings:
    """Compare scripts, ledger and database."""
    plays = {script.external_id: saves_of(script) for script in scripts}
    stored = {name: found.get(name, Stored()) for name in plays}
    lost = list(_missing(plays, ledger, stored))
    doubled = [*_repeated_ids(stored), *_doubled(plays, stored)]
    unequal = {name: list(_differences(saves, ledger, stored[name])) for name, saves in plays.items()}
    unasked = [f"{name}: nobody asked for this conversation" for name in found if name not in plays]
    still_open = ledger.open()
    problems = [
        *lost,
        *doubled,
        *(f"{_named(intent)} was intended and never acknowledged" for intent in still_open),
        *(f"{name}: {why}" for name, reasons in unequal.items() for why in reasons),
        *unasked,
    ]
    return Findings(
        conversations=len(plays),
        equal=sum(not reasons for reasons in unequal.values()),
        finished=sum(_finished(saves, stored[name]) for name, saves in plays.items()),
        saves=sum(map(len, plays.values())),
        acknowledged=len(ledger.acknowledged),
        missing=len(lost),
        duplicated=len(doubled),
        unacknowledged=len(still_open),
        messages=sum(len(one.messages) for one in stored.values()),
        tool_results=sum(len(_elements(row.tool_results)) for one in stored.values() for row in one.checkpoints),
        problems=tuple(problems),
    )


# -- what was acknowledged and is not there


def _missing(plays: Mapping[str, Sequence[Save]], ledger: Ledger, stored: Mapping[str, Stored]) -> Iterator[str]:
    ids = {name: {row.write_id for row in one.checkpoints} for name, one in stored.items()}
    texts = {name: set(one.transcript) for name, one in stored.items()}
    steps = {(name, save.place): save for name, saves in plays.items() for save in saves}
    for write_id, intent in ledger.intents.items():
        if write_id not in ledger.acknowledged:
            continue
        messages = map(source_text, steps[intent.conversation, intent.place].messages)
        if write_id not in ids[intent.conversation]:
            yield f"{_named(intent)} was acknowledged, and is not in the database"
        elif not texts[intent.conversation].issuperset(messages):
            yield f"{_named(intent)} was acknowledged, and a message of it is not in the conversation"


# -- what is there more than once


def _repeated_ids(stored: Mapping[str, Stored]) -> Iterator[str]:
    times = Counter(row.write_id for one in stored.values() for row in one.checkpoints)
    yield from (f"write id {write_id} is stored {n} times" for write_id, n in times.items() if n > 1)


def _doubled(plays: Mapping[str, Sequence[Save]], stored: Mapping[str, Stored]) -> Iterator[str]:
    for name, saves in plays.items():
        places = Counter(row.place for row in stored[name].checkpoints)
        yield from (f"{name} {t}.{s} is stored {n} times" for (t, s), n in places.items() if n > 1)
        wanted = Counter(source_text(message) for save in saves for message in save.messages)
        for what, texts in (("stored", stored[name].messages), ("in the transcript", stored[name].transcript)):
            for text in (Counter(texts) - wanted) & wanted:
                yield f"{name}: a message is {what} more than once: {text[:60]}"


# -- a conversation beside its source


def _differences(saves: Sequence[Save], ledger: Ledger, one: Stored) -> Iterator[str]:
    """Say what keeps a stored conversation from being its source, character by character."""
    source = [source_text(message) for save in saves for message in save.messages]
    if one.transcript != source:
        at = next((i for i, pair in enumerate(zip(one.transcript, source, strict=False)) if pair[0] != pair[1]), None)
        yield (
            f"message {at} is not the source's"
            if at is not None
            else f"the transcript has {len(one.transcript)} messages, the source {len(source)}"
        )
    if sorted(one.messages) != sorted(source):
        yield f"{len(one.messages)} messages are stored, not just the {len(source)} of the source"
    if [row.place for row in one.checkpoints] != [save.place for save in saves]:
        yield f"its {len(one.checkpoints)} sub-steps are not the {len(saves)} of the source, one after the other"
    if [row[0] for row in one.branches] != [0]:
        yield f"it has {len(one.branches)} branches, not one"
    if not _finished(saves, one):
        yield "it is not finished"
    yield from _unlike(saves, ledger, one)


def _unlike(saves: Sequence[Save], ledger: Ledger, one: Stored) -> Iterator[str]:
    """Compare each checkpoint with the save that belongs there: its write id, calls, results, state."""
    wanted = {save.place: (save, state) for save, state in zip(saves, _states(saves), strict=True)}
    for row in one.checkpoints:
        if row.place not in wanted:
            continue
        save, state = wanted[row.place]
        intent = ledger.intents.get(row.write_id)
        parts = {
            "write id": (intent and intent.place, save.place),
            "list of tool calls": (row.tool_calls, _array(save.tool_calls)),
            "list of tool results": (row.tool_results, _array(save.tool_results)),
            "state": (row.state, state),
        }
        for part, (have, want) in parts.items():
            if have != want:
                yield f"the {part} at {row.turn}.{row.sub_step} is not the source's"


def _states(saves: Sequence[Save]) -> Iterator[str | None]:
    """The state at each save: its own, or else the one before."""
    state: str | None = None
    for save in saves:
        state = source_text(save.state) if save.has_state else state
        yield state


def _finished(saves: Sequence[Save], one: Stored) -> bool:
    last = saves[-1].place
    ends = [row.phase for row in one.checkpoints if row.place == last]
    return ends == ["final"] and (0, *last, "idle") in one.branches


def _array(values: Sequence[object]) -> str | None:
    return f"[{','.join(map(source_text, values))}]" if values else None


def _elements(text: str | None) -> list[Any]:
    return json.loads(text) if text is not None else []


def _named(intent: Intent) -> str:
    return f"{intent.conversation} {intent.turn}.{intent.sub_step}"
