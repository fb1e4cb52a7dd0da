"""The count: ledger, database, effects and marks beside the run that nobody disturbed. Decided purely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnkeep.demo.calls import CallPlace, policy_of, recorded_calls
from turnkeep.demo.ledger import Ledger
from turnkeep.demo.outside import Mark
from turnkeep.demo.script import Json, Script
from turnkeep.demo.settled import Results, results_of
from turnkeep.demo.stored import Effect, Stored
from turnkeep.runner.effects import Outcome, Policy

_PASSING = {"timestamp", "usage"}

Span = tuple[float, float]
"""From when to when, by the wall clock."""


@dataclass(frozen=True)
class Evidence:
    """All that a demo has left. `kills` are those of workers and of Postgres: what a call may not have survived."""

    ledger: Ledger
    stored: Mapping[str, Stored]
    undisturbed: Mapping[str, Stored]
    effects: Sequence[Effect]
    marks: Sequence[Mark]
    kills: Sequence[Span]


@dataclass(frozen=True)
class Findings:
    """What the check found. `problems` has a sentence for each thing that is not as it should be.

    `acknowledged` to `answered` count requests. `calls_again` is how often tools ran once more, which only those do
    that may, `unknown` how many calls the model was told to have an unknown outcome, `uncertain` how many of these were
    transactional, which must not be. `effects` are those that are there exactly once, of `effects_due`.
    """

    conversations: int
    equal: int
    requests: int
    acknowledged: int
    lost: int
    doubled: int
    answered: int
    messages: int
    replies: int
    tool_calls: int
    calls_again: int
    unknown: int
    uncertain: int
    effects: int
    effects_due: int
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether all is acknowledged, answered, there, and there once."""
        return (
            not self.problems
            and self.lost == self.doubled == self.uncertain == 0
            and self.requests == self.acknowledged == self.answered
            and self.equal == self.conversations
            and self.effects == self.effects_due
        )


def check(scripts: Sequence[Script], evidence: Evidence) -> Findings:
    """Compare everything with everything."""
    stored = {script.external_id: evidence.stored.get(script.external_id, Stored()) for script in scripts}
    results = {name: results_of(one) for name, one in stored.items()}
    lost = list(_lost(evidence.ledger, stored))
    doubled = [f"{name}: {what}" for name, one in stored.items() for what in _doubled(one)]
    unlike = {
        script.external_id: list(_unlike(script, stored[script.external_id], results[script.external_id], evidence))
        for script in scripts
    }
    due = {place for place, call in recorded_calls(scripts).items() if call.has_effect}
    effects = Counter(effect.place for effect in evidence.effects)
    starts = Counter(mark.place for mark in evidence.marks if not mark.ended)
    every = [result for name in results for result in results[name].given]
    unknown = [result for result in every if result.outcome == Outcome.UNKNOWN]
    problems = [
        *lost,
        *doubled,
        *_unanswered(evidence.ledger, stored),
        *(f"{name}: {what}" for name, one in stored.items() for what in _unfinished(one, results[name])),
        *(f"{name}: {what}" for name, whats in unlike.items() for what in whats),
        *(f"{name}: {what}" for name in results for what in _unexplained(results[name], evidence.kills)),
        *_wrong_effects(due, evidence.effects),
        *_forbidden_runs(evidence.marks),
        *(f"{name}: {what}" for name in results for what in _never_ran(name, results[name], evidence.marks)),
        *(f"{name}: nobody asked for this conversation" for name in evidence.stored if name not in stored),
    ]
    return Findings(
        conversations=len(scripts),
        equal=sum(not whats for whats in unlike.values()),
        requests=sum(len(script.turns) for script in scripts),
        acknowledged=len(evidence.ledger.acknowledged),
        lost=len(lost),
        doubled=len(doubled),
        answered=sum(_finals(one, turn) == 1 for one in stored.values() for turn in one.requests.values()),
        messages=sum(one.messages for one in stored.values()),
        replies=sum(message["role"] == "assistant" for one in stored.values() for message in one.transcript),
        tool_calls=sum(len(one.issued) for one in results.values()),
        calls_again=sum(count - 1 for count in starts.values()),
        unknown=len(unknown),
        uncertain=sum(policy_of(result.tool) is not Policy.REPORT for result in unknown),
        effects=sum(effects[place] == 1 for place in due),
        effects_due=len(due),
        problems=tuple(problems),
    )


# -- requests


def _lost(ledger: Ledger, stored: Mapping[str, Stored]) -> Iterator[str]:
    for key in ledger.requests:
        there = key in stored[ledger.requests[key].conversation].requests
        if key in ledger.acknowledged and not there:
            yield f"request {key} was acknowledged, and is not in the database"


def _unanswered(ledger: Ledger, stored: Mapping[str, Stored]) -> Iterator[str]:
    for key, request in ledger.requests.items():
        one = stored[request.conversation]
        if key not in ledger.acknowledged:
            yield f"request {key} was intended and never acknowledged"
        if key not in ledger.answered:
            yield f"request {key} was posted and its reply never came"
        if key in one.requests and (turn := one.requests[key]) != request.turn:
            yield f"request {key} was taken up by turn {turn}"
        if key in one.requests and (times := _finals(one, request.turn)) != 1:
            yield f"request {key} is answered {times} times"


def _finals(one: Stored, turn: int | None) -> int:
    return sum(row.turn == turn and row.phase == "final" for row in one.checkpoints)


# -- checkpoints and messages


def _doubled(one: Stored) -> Iterator[str]:
    ids = Counter(row.write_id for row in one.checkpoints)
    yield from (f"write id {write_id} is stored {times} times" for write_id, times in ids.items() if times > 1)
    places = Counter((row.turn, row.sub_step) for row in one.checkpoints)
    yield from (f"checkpoint {t}.{s} is stored {times} times" for (t, s), times in places.items() if times > 1)
    taken = Counter(turn for turn in one.requests.values() if turn is not None)
    yield from (f"turn {turn} has taken {times} requests" for turn, times in taken.items() if times > 1)
    if one.messages > len(one.transcript):
        yield f"{one.messages} messages are stored, and its transcript has {len(one.transcript)}"


def _unfinished(one: Stored, results: Results) -> Iterator[str]:
    if [row.branch for row in one.branches] != [0]:
        yield f"it has {len(one.branches)} branches, not one"
    for row in one.branches:
        if row.status != "idle" or row.leased:
            yield f"branch {row.branch} is {row.status}{', and leased' if row.leased else ''}"
    ends = {row.turn: row.sub_step for row in one.checkpoints}
    places = {(row.turn, row.sub_step) for row in one.checkpoints}
    missing = [(t, s) for t, last in ends.items() for s in range(last) if (t, s) not in places]
    yield from (f"checkpoint {turn}.{sub_step} is missing" for turn, sub_step in missing)
    yield from results.wrong()


def _unlike(script: Script, one: Stored, results: Results, evidence: Evidence) -> Iterator[str]:
    """Say what keeps a transcript from being the undisturbed one, but for outcomes that nobody can know."""
    expected = in_call_order(evidence.undisturbed.get(script.external_id, Stored()).transcript)
    if len(expected) != len(script.transcript()):
        yield f"undisturbed it has {len(expected)} messages, and not {len(script.transcript())}"
    found = in_call_order(one.transcript)
    if len(found) != len(expected):
        yield f"its transcript has {len(found)} messages, undisturbed it has {len(expected)}"
    unknown = {result.place for result in results.given if result.outcome == Outcome.UNKNOWN}
    turn = -1
    for at, (have, want) in enumerate(zip(found, expected, strict=False)):
        turn += want["role"] == "user"
        call_id = want["metadata"].get("tool_call_id")
        told_so = have["metadata"].get("outcome") == Outcome.UNKNOWN and (turn, call_id) in unknown
        if told_so:
            want = _unknown(want, have)
        if have != want:
            keys = {**have, **have["metadata"], **want, **want["metadata"]}.keys() - {"metadata"}
            parts = [k for k in sorted(keys) if _part(have, k) != _part(want, k)]
            yield f"message {at}, of turn {turn}, is not the undisturbed one in its {', '.join(parts)}"


def _part(message: Json, key: str) -> object:
    return message[key] if key in message else message["metadata"].get(key)


def in_call_order(transcript: Sequence[Json]) -> list[Json]:
    """Messages without their times, and the results of each reply in the order of its calls.

    What a server says about its own use is left out too: it comes after a whole reply, and a kill may come between.
    """
    ordered: list[Json] = []
    start = 0
    for message in transcript:
        metadata = {key: value for key, value in message["metadata"].items() if key not in _PASSING}
        if message["role"] != "tool":
            start = len(ordered) + 1
        ordered.append({**message, "metadata": metadata})
        ordered[start:] = sorted(ordered[start:], key=lambda result: result["metadata"]["index"])
    return ordered


def _unknown(want: Json, have: Json) -> Json:
    """The result that is expected, with an outcome that nobody knows."""
    return {**want, "content": have["content"], "metadata": {**want["metadata"], "outcome": Outcome.UNKNOWN.value}}


# -- tools


def _unexplained(results: Results, kills: Sequence[Span]) -> Iterator[str]:
    """An outcome is unknown only of a tool that must not run twice, and that a kill came upon."""
    for result in results.given:
        if result.outcome != Outcome.UNKNOWN:
            continue
        if policy_of(result.tool) is not Policy.REPORT:
            yield f"the outcome of {result.tool} in turn {result.turn} is unknown, and it could be run again"
        elif not any(result.started <= until and at <= result.at for at, until in kills):
            yield f"the outcome of {result.tool} in turn {result.turn} is unknown, and nothing was killed meanwhile"


def _never_ran(name: str, results: Results, marks: Sequence[Mark]) -> Iterator[str]:
    ended = {mark.place for mark in marks if mark.ended}
    for result in results.given:
        if result.outcome != Outcome.UNKNOWN and (name, *result.place) not in ended:
            yield f"{result.tool} in turn {result.turn} has a result, and never came to its end"


def _wrong_effects(due: set[CallPlace], effects: Sequence[Effect]) -> Iterator[str]:
    times = Counter(effect.place for effect in effects)
    for place in sorted(due | set(times), key=str):
        name, turn, call_id = place
        if times[place] != (place in due):
            yield f"{name}: call {call_id} of turn {turn} has left {times[place]} effects"
    keys = Counter(effect.key for effect in effects)
    yield from (f"idempotency key {key} has left {count} effects" for key, count in keys.items() if count > 1)


def _forbidden_runs(marks: Sequence[Mark]) -> Iterator[str]:
    runs = Counter(mark.place for mark in marks if not mark.ended and mark.policy is Policy.REPORT)
    tools = {mark.place: mark.tool for mark in marks}
    for (name, turn, call_id), times in runs.items():
        if times > 1:
            yield f"{name}: {tools[name, turn, call_id]} of turn {turn} ran {times} times, and must not run twice"
    keys: dict[CallPlace, set[str]] = {}
    for mark in marks:
        keys.setdefault(mark.place, set()).add(mark.key)
    for (name, turn, call_id), several in keys.items():
        if len(several) > 1:
            yield f"{name}: call {call_id} of turn {turn} ran under {len(several)} idempotency keys"
