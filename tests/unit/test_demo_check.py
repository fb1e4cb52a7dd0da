"""The demo's check finds each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from turnkeep.demo.check import Evidence, Findings, check, in_call_order
from turnkeep.demo.ledger import Ledger
from turnkeep.demo.outside import Mark
from turnkeep.demo.script import Script, ScriptStep, ScriptTurn
from turnkeep.demo.stored import Effect, Stored, StoredBranch, StoredCheckpoint

NAME = "clinic"
CALLS = [("a", "find_patient"), ("b", "book_slot"), ("c", "send_message"), ("d", "book_slot")]
STARTED_AT, KILLED, SETTLED_AT = 10.0, (11.0, 12.0), 13.0


def message(role: str, content: str, **metadata: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "metadata": {"timestamp": f"now, {content}", **metadata}}


def step(said: dict[str, Any], *, calls: list[dict[str, Any]] | None = None, final: bool = False) -> ScriptStep:
    results = [{"tool_call_id": said["metadata"]["tool_call_id"]}] if said["role"] == "tool" else []
    return ScriptStep((said,), tuple(calls or ()), tuple(results), None, False, final)


ISSUED = [{"id": call_id, "name": tool, "arguments": {}} for call_id, tool in CALLS]
RESULTS = [
    message("tool", f"result {call_id}", tool_name=tool, tool_call_id=call_id, is_error=call_id == "d")
    for call_id, tool in CALLS
]
SCRIPT = Script(
    NAME,
    "frontdesk",
    "A clinic",
    (
        ScriptTurn(
            message("user", "book me in"),
            (
                step(message("assistant", "one moment"), calls=ISSUED),
                *map(step, RESULTS),
                step(message("assistant", "done"), final=True),
            ),
        ),
        ScriptTurn(message("user", "thanks"), (step(message("assistant", "any time"), final=True),)),
    ),
)


def transcript() -> list[dict[str, Any]]:
    """As a runner stores it, with the results as they landed."""
    landed = [
        message("tool", f"result {call_id}", tool_name=tool, tool_call_id=call_id, index=index, outcome="ok")
        for index, (call_id, tool) in enumerate(CALLS)
    ]
    return [
        message("user", "book me in"),
        message("assistant", "one moment", tool_calls=ISSUED),
        *landed,
        message("assistant", "done"),
        message("user", "thanks"),
        message("assistant", "any time"),
    ]


def checkpoint(turn: int, sub_step: int, phase: str, **what: Any) -> StoredCheckpoint:
    row = StoredCheckpoint(turn, sub_step, 0, f"write {turn}.{sub_step}", phase, SETTLED_AT, [], [], [])
    return replace(row, **what)


def stored() -> Stored:
    settled = [
        checkpoint(0, 3 + index, "result", tool_results=[{"outcome": "ok"}], answers=[0, 1, index])
        for index in range(len(CALLS))
    ]
    return Stored(
        branches=[StoredBranch(0, "idle", False)],
        requests={f"{NAME}/0": 0, f"{NAME}/1": 1},
        checkpoints=[
            checkpoint(0, 0, "input"),
            checkpoint(0, 1, "reply", tool_calls=ISSUED),
            checkpoint(0, 2, "started", answers=[0, 1, 2], at=STARTED_AT),
            *settled,
            checkpoint(0, 7, "final"),
            checkpoint(1, 0, "input"),
            checkpoint(1, 1, "final"),
        ],
        transcript=transcript(),
        messages=len(transcript()),
    )


def mark(call_id: str, *, ended: bool) -> Mark:
    return Mark(NAME, 0, call_id, dict(CALLS)[call_id], f"key {call_id}", 1, ended)


def evidence() -> Evidence:
    """What a demo leaves in which nothing went wrong."""
    ledger = Ledger()
    for turn in range(2):
        key = f"{NAME}/{turn}"
        ledger.take({"intended": {"conversation": NAME, "turn": turn, "key": key}})
        ledger.take({"acknowledged": key})
        ledger.take({"answered": key})
    return Evidence(
        ledger=ledger,
        stored={NAME: stored()},
        undisturbed={NAME: stored()},
        effects=[Effect((NAME, 0, "b"), "book_slot", "key b")],
        marks=[mark(call_id, ended=ended) for call_id, _ in CALLS for ended in (False, True)],
        kills=[KILLED],
    )


def found_after(change: Callable[[Evidence, Stored], Evidence | None]) -> Findings:
    left = evidence()
    changed = change(left, dict(left.stored)[NAME])
    return check([SCRIPT], left if changed is None else changed)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    findings = check([SCRIPT], evidence())
    assert findings.problems == ()
    assert findings.clean
    assert (findings.requests, findings.acknowledged, findings.answered, findings.equal) == (2, 2, 2, 1)
    assert (findings.tool_calls, findings.calls_again, findings.unknown) == (4, 0, 0)
    assert (findings.effects, findings.effects_due) == (1, 1)


# -- what is wrong


def lose_a_request(left: Evidence, one: Stored) -> None:
    del one.requests[f"{NAME}/1"]


def lose_a_conversation(left: Evidence, one: Stored) -> Evidence:
    return replace(left, stored={})


def acknowledge_too_little(left: Evidence, one: Stored) -> None:
    left.ledger.acknowledged.remove(f"{NAME}/1")


def answer_too_little(left: Evidence, one: Stored) -> None:
    left.ledger.answered.remove(f"{NAME}/1")


def answer_never(left: Evidence, one: Stored) -> None:
    one.checkpoints.pop()


def answer_twice(left: Evidence, one: Stored) -> None:
    one.checkpoints.append(checkpoint(1, 2, "final"))


def take_a_request_twice(left: Evidence, one: Stored) -> None:
    one.requests[f"{NAME}/1"] = 0


def double_a_checkpoint(left: Evidence, one: Stored) -> None:
    one.checkpoints.append(replace(one.checkpoints[3], branch=1, write_id="another"))


def double_a_write(left: Evidence, one: Stored) -> None:
    one.checkpoints[4] = replace(one.checkpoints[4], write_id=one.checkpoints[3].write_id)


def lose_a_checkpoint(left: Evidence, one: Stored) -> None:
    del one.checkpoints[2]


def lose_a_message(left: Evidence, one: Stored) -> None:
    del one.transcript[6]
    one.messages -= 1


def double_a_message(left: Evidence, one: Stored) -> None:
    one.transcript.append(one.transcript[-1])
    one.messages += 1


def leave_a_message_over(left: Evidence, one: Stored) -> None:
    one.messages += 1


def alter_a_message(left: Evidence, one: Stored) -> None:
    one.transcript[6]["content"] = "done?"


def alter_a_result(left: Evidence, one: Stored) -> None:
    one.transcript[3]["content"] = "booked"


def end_undisturbed_too_early(left: Evidence, one: Stored) -> None:
    dict(left.undisturbed)[NAME].transcript.pop()


def lose_a_result(left: Evidence, one: Stored) -> None:
    one.checkpoints[3] = replace(one.checkpoints[3], tool_results=[], answers=[])


def double_a_result(left: Evidence, one: Stored) -> None:
    one.checkpoints[4] = replace(one.checkpoints[4], answers=[0, 1, 0])


def leave_a_branch_running(left: Evidence, one: Stored) -> None:
    one.branches[0] = StoredBranch(0, "running", True)


def leave_a_lease(left: Evidence, one: Stored) -> None:
    one.branches[0] = StoredBranch(0, "idle", True)


def make_a_branch(left: Evidence, one: Stored) -> None:
    one.branches.append(StoredBranch(1, "idle", False))


def make_a_conversation(left: Evidence, one: Stored) -> Evidence:
    return replace(left, stored={NAME: one, "stranger": Stored()})


def lose_an_effect(left: Evidence, one: Stored) -> Evidence:
    return replace(left, effects=[])


def double_an_effect(left: Evidence, one: Stored) -> Evidence:
    return replace(left, effects=[*left.effects, *left.effects])


def keep_the_effect_of_a_failure(left: Evidence, one: Stored) -> Evidence:
    return replace(left, effects=[*left.effects, Effect((NAME, 0, "d"), "book_slot", "key d")])


def run_a_report_tool_twice(left: Evidence, one: Stored) -> Evidence:
    return replace(left, marks=[*left.marks, mark("c", ended=False)])


def run_under_another_key(left: Evidence, one: Stored) -> Evidence:
    return replace(left, marks=[*left.marks, replace(mark("a", ended=True), key="another")])


def invent_a_result(left: Evidence, one: Stored) -> Evidence:
    return replace(left, marks=[one for one in left.marks if one != mark("a", ended=True)])


def tell_unknown(one: Stored, number: int) -> None:
    row = next(row for row in one.checkpoints if list(row.answers) == [0, 1, number] and row.phase != "started")
    one.checkpoints[one.checkpoints.index(row)] = replace(row, tool_results=[{"outcome": "unknown"}])
    told = one.transcript[2 + number]
    told["content"], told["metadata"]["outcome"] = "nobody knows", "unknown"


def tell_unknown_of_what_can_run_again(left: Evidence, one: Stored) -> None:
    tell_unknown(one, 0)


def leave_a_transaction_uncertain(left: Evidence, one: Stored) -> None:
    tell_unknown(one, 1)


def tell_unknown_without_a_kill(left: Evidence, one: Stored) -> Evidence:
    tell_unknown(one, 2)
    return replace(left, kills=[(1.0, 2.0), (20.0, 21.0)])


def tell_unknown_of_what_never_started(left: Evidence, one: Stored) -> None:
    tell_unknown(one, 2)
    one.checkpoints[2] = replace(one.checkpoints[2], answers=[0, 1, 1])


def tell_unknown_in_the_transcript_only(left: Evidence, one: Stored) -> None:
    one.transcript[4]["metadata"]["outcome"] = "unknown"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lose_a_request, "request clinic/1 was acknowledged, and is not in the database"),
        (lose_a_conversation, "request clinic/0 was acknowledged, and is not in the database"),
        (acknowledge_too_little, "request clinic/1 was intended and never acknowledged"),
        (answer_too_little, "request clinic/1 was posted and its reply never came"),
        (answer_never, "request clinic/1 is answered 0 times"),
        (answer_twice, "request clinic/1 is answered 2 times"),
        (take_a_request_twice, "clinic: turn 0 has taken 2 requests"),
        (double_a_checkpoint, "clinic: checkpoint 0.3 is stored 2 times"),
        (double_a_write, "clinic: write id write 0.3 is stored 2 times"),
        (lose_a_checkpoint, "clinic: checkpoint 0.2 is missing"),
        (lose_a_message, "clinic: its transcript has 8 messages, undisturbed it has 9"),
        (double_a_message, "clinic: its transcript has 10 messages, undisturbed it has 9"),
        (leave_a_message_over, "clinic: 10 messages are stored, and its transcript has 9"),
        (alter_a_message, "clinic: message 6, of turn 0, is not the undisturbed one in its content"),
        (alter_a_result, "clinic: message 3, of turn 0, is not the undisturbed one in its content"),
        (end_undisturbed_too_early, "clinic: undisturbed it has 8 messages, and not 9"),
        (lose_a_result, "clinic: call 0.1:0 of find_patient has 0 results, not one"),
        (double_a_result, "clinic: call 0.1:0 of find_patient has 2 results, not one"),
        (leave_a_branch_running, "clinic: branch 0 is running, and leased"),
        (leave_a_lease, "clinic: branch 0 is idle, and leased"),
        (make_a_branch, "clinic: it has 2 branches, not one"),
        (make_a_conversation, "stranger: nobody asked for this conversation"),
        (lose_an_effect, "clinic: call b of turn 0 has left 0 effects"),
        (double_an_effect, "clinic: call b of turn 0 has left 2 effects"),
        (keep_the_effect_of_a_failure, "clinic: call d of turn 0 has left 1 effects"),
        (run_a_report_tool_twice, "clinic: send_message of turn 0 ran 2 times, and must not run twice"),
        (run_under_another_key, "clinic: call a of turn 0 ran under 2 idempotency keys"),
        (invent_a_result, "clinic: find_patient in turn 0 has a result, and never came to its end"),
        (tell_unknown_of_what_can_run_again, "the outcome of find_patient in turn 0 is unknown, and it could be run"),
        (leave_a_transaction_uncertain, "the outcome of book_slot in turn 0 is unknown, and it could be run again"),
        (tell_unknown_without_a_kill, "of send_message in turn 0 is unknown, and nothing was killed meanwhile"),
        (tell_unknown_of_what_never_started, "send_message in turn 0 is unknown, and nothing was killed meanwhile"),
        (tell_unknown_in_the_transcript_only, "message 4, of turn 0, is not the undisturbed one in its outcome"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_check_finds(change: Callable[[Evidence, Stored], Evidence | None], problem: str) -> None:
    findings = found_after(change)
    assert not findings.clean
    assert any(problem in one for one in findings.problems), findings.problems


# -- what is not wrong


def test_an_unknown_outcome_is_right_where_a_kill_came_upon_a_tool_that_must_not_run_twice() -> None:
    findings = found_after(lambda left, one: tell_unknown(one, 2))
    assert findings.problems == ()
    assert (findings.clean, findings.unknown, findings.uncertain) == (True, 1, 0)


def test_other_tools_may_run_again() -> None:
    again = [mark("a", ended=False), mark("b", ended=False)]
    findings = found_after(lambda left, one: replace(left, marks=[*again, *left.marks]))
    assert (findings.clean, findings.calls_again) == (True, 2)


def test_results_may_land_in_any_order_at_any_time() -> None:
    landed = transcript()
    landed[2:6] = reversed(landed[2:6])
    for one in landed:
        one["metadata"]["timestamp"] = "later"
    landed[1]["metadata"]["usage"] = None
    before = deepcopy(landed)
    assert in_call_order(landed) == in_call_order(transcript())
    assert landed == before
