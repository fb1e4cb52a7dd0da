"""The view pending_calls says what the store says, call by call, whatever has happened."""

from __future__ import annotations

import json
import random
import re
import uuid
from contextlib import suppress
from typing import Any

import pytest

import turnkeep
from tests.store.plain_sql import connect, psql
from turnkeep import AsyncBranch, AsyncStore, RawJSON
from turnkeep.model import PendingCall

USER = {"role": "user", "content": "go"}
CALLS: list[Any] = [
    {"id": "call_1", "name": "look"},
    {"id": "call_1", "function": {"name": "look", "arguments": "{}"}},  # providers reuse ids
    {"id": 5, "call_id": "z", "tool_use_id": None, "name": ""},
    {"tool_call_id": "t", "tool_use_id": "u", "call_id": "c", "id": "i", "name": "first of all"},
    {"name": {"a": 1}, "function": {"name": "inner"}},
    {"function": "none"},
    RawJSON('{"id": "a", "id": 7, "tool_use_id": "second of the same"}'),
    RawJSON(r'{"id": "before \ud83d\ude00", "arguments": "a\u0000b \ud800 \\u0000", "name": "é\u00e9"}'),
    RawJSON(r'{"id": "a\u0000\u0000b\ud800", "name": "\udc00\ud83d\ude00\\\u0000"}'),
    RawJSON('{"\\u0069d": "by an escaped key", "n": 1e131072}'),
    RawJSON('{"id": "numbers", "n": [1e5000, 0.' + "1" * 20000 + "]}"),
    RawJSON('{"id": "deep", "n": ' + "[" * 499 + "]" * 499 + "}"),
    [1, 2],
    "text",
    5,
    None,
]  # fmt: skip
ROWS = """
SELECT turn_index, sub_step, index, issued_conversation, issued_branch, attempts, uncertain, call_id, name, call::text
FROM pending_calls WHERE conversation_id = %s AND branch = %s ORDER BY sub_step, index
"""


def as_text(text: str | None) -> str | None:
    """Text as Postgres can have it: what it can't hold stays an escape."""
    return text and re.sub("[\0\ud800-\udfff]", lambda found: f"\\u{ord(found.group()):04x}", text)


def named(call: PendingCall) -> str | None:
    """The name of the tool that a call wants: text in `name`, or in `name` of `function`."""
    readable = call._readable
    holders = [readable, readable.get("function")] if isinstance(readable, dict) else []
    names = [holder.get("name") for holder in holders if isinstance(holder, dict)]
    return next((name for name in names if isinstance(name, str) and name), None)


def expected(call: PendingCall) -> tuple[Any, ...]:
    """A row of the view, as the store's own record has it."""
    return (
        *call.place, call.conversation_id, call.branch, call.attempts, call.uncertain,
        as_text(call.call_id), as_text(named(call)),
    )  # fmt: skip


async def turn_about(branch: AsyncBranch, chance: random.Random) -> None:
    """One thing that a writer may do next."""
    if not branch.turn_open:
        await branch.begin_turn(USER)
        return
    pending = list(branch.pending)
    match chance.choice(["calls", "calls", "started", "results", "results", "both", "step", "end"]):
        case "calls":
            await branch.save([USER], tool_calls=chance.choices(CALLS, k=chance.randrange(1, 4)))
        case "started" if pending:
            await branch.mark_started(chance.sample(pending, chance.randrange(1, len(pending) + 1)))
        case "results" if pending:
            settled = chance.sample(pending, chance.randrange(1, len(pending) + 1))
            await branch.save([USER], tool_results=[{"ok": 1}] * len(settled), answers=settled)
        case "both" if pending:
            await branch.save(tool_calls=[chance.choice(CALLS)], tool_results=[1], answers=[pending[0]])
        case "end" if not pending:
            await branch.save([USER], final=True)
        case _:
            await branch.save([USER])


@pytest.mark.parametrize("seed", range(6))
async def test_the_view_says_what_the_store_says(store: AsyncStore, dsn: str, seed: int) -> None:
    chance = random.Random(seed)
    branches = [await store.conversation("c", agent_id="a")]
    for _ in range(60):
        branch = chance.choice(branches)
        if branch.turn_index >= 0 and len(branches) < 7 and chance.random() < 0.15:
            place = chance.choice(await store.history(branch.external_id, branch=branch.branch))
            into = f"other {len(branches)}" if chance.random() < 0.4 else None
            branches.append(
                await store.fork(
                    branch.external_id, branch=branch.branch, at=(place.turn_index, place.sub_step), into=into
                )
            )
        await turn_about(chance.choice(branches), chance)
    assert any(one.pending for one in branches)
    with connect(dsn) as connection:
        for branch in branches:
            head = await store.restore(branch.external_id, branch=branch.branch)
            assert [one.place for one in head.pending] == [one.place for one in branch.pending]
            rows = connection.execute(ROWS, (branch.conversation_id, branch.branch)).fetchall()
            assert [row[:-1] for row in rows] == [expected(call) for call in head.pending]
            for (*_, shown), call in zip(rows, head.pending, strict=True):
                if "turnkeep_unrepresentable" not in shown:
                    with suppress(turnkeep.UnreadableError):  # for the sake of another call of the same save
                        assert json.loads(shown) == call.call
        count = connection.execute("SELECT count(*) FROM pending_calls").fetchone()
    assert count == (sum(len(branch.pending) for branch in branches),)


async def test_it_says_where_a_call_was_issued_and_who_runs_the_branch(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c", agent_id="support")
    await branch.begin_turn(USER)
    await branch.save(tool_calls=[{"id": "x", "name": "look"}])
    fork = await store.fork("c", into="d")
    lease = await fork.claim(owner="me")
    with connect(dsn) as connection:
        rows = connection.execute(
            "SELECT p.conversation_id, issued_conversation, uncertain, p.agent_id, status, lease_owner, lease_until,"
            " issued_at = created_at FROM pending_calls AS p JOIN all_checkpoints AS a"
            " USING (conversation_id, branch, turn_index, sub_step) ORDER BY uncertain"
        ).fetchall()
    own, copied = branch.conversation_id, fork.conversation_id
    assert rows == [
        (own, own, False, "support", "open", None, None, True),
        (copied, own, True, "support", "running", "me", lease.until, True),
    ]


async def test_a_turn_of_thousands_of_calls_is_read_in_one_go(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(USER)
    await branch.save(tool_calls=[{"id": str(n)} for n in range(3000)])
    await branch.mark_started(branch.pending[1:])
    await branch.save(tool_results=[{"id": str(n)} for n in range(1000)])
    with connect(dsn) as connection:
        rows = connection.execute("SELECT call_id, attempts FROM pending_calls ORDER BY index").fetchall()
        assert rows == [(str(n), 1) for n in range(1000, 3000)]
        plan = connection.execute("EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM pending_calls").fetchall()
    assert '"Node Type": "Hash"' in json.dumps(plan)  # not each call against each mark


async def test_a_conversation_of_its_own_id_is_read_by_psql(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation(str(uuid.uuid4()))
    await branch.begin_turn(USER)
    await branch.save(tool_calls=CALLS)
    ran = psql(dsn, "SELECT index, call_id FROM turnkeep.pending_calls ORDER BY index;")
    assert ran.returncode == 0, ran.stderr
    assert [line.split("|") for line in ran.stdout.splitlines()] == [
        [str(call.index), as_text(call.call_id) or ""] for call in branch.pending
    ]


def test_the_store_and_the_view_look_for_an_id_in_the_same_places(dsn: str) -> None:
    keys = turnkeep.model._CALL_ID_KEYS
    with connect(dsn) as connection:
        for first, key in enumerate(keys):
            call = json.dumps({name: name for name in reversed(keys[first:])})
            assert connection.execute("SELECT call_id_of(%s)", (call,)).fetchone() == (key,)
