"""`turnkeep diff`: two checkpoints compared, and how little is read for it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import on_terminal, run
from turnkeep import RawJSON

CALL = {"id": "c1", "name": "lookup", "arguments": {"order": 7}}


@pytest.fixture
async def forked(store: turnkeep.AsyncStore) -> turnkeep.AsyncBranch:
    """A conversation whose fork got another result, and so another answer."""
    branch = await store.conversation("ticket-42", agent_id="support")
    await branch.begin_turn({"role": "user", "content": "Where is my order?"})
    await branch.save(
        [{"role": "assistant", "content": "Let me look."}], tool_calls=[CALL], state={"n": 1, "of": [1, 2]}
    )
    fork = await store.fork("ticket-42", name="retry")
    for line, day in ((branch, "Monday"), (fork, "Tuesday")):
        result = {"role": "tool", "tool_call_id": "c1", "content": f"shipped\n{day}\nby van"}
        state: dict[str, Any] = {"n": 1.0 if line is fork else 1, "of": [1, 2], "day": day}
        await line.save([result], tool_results=[result], answers=line.pending, state=state)
    await branch.save([{"role": "assistant", "content": "On Monday."}], final=True)
    return fork


def compared(*places: str, dsn: str) -> dict[str, Any]:
    ran = run("diff", *places, "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


async def test_branches_are_compared_by_message_and_by_state(dsn: str, forked: turnkeep.AsyncBranch) -> None:
    found = compared("ticket-42", f"ticket-42:{forked.branch}", dsn=dsn)
    messages = found["messages"]
    assert [messages[kind] for kind in ("kept", "changed", "removed", "added")] == [2, 1, 1, 0]
    assert [(one["change"], one["index_a"], one["index_b"]) for one in messages["changes"]] == [
        ("changed", 2, 2),
        ("removed", 3, None),
    ]
    assert messages["changes"][0]["b"]["content"] == "shipped\nTuesday\nby van"
    assert {one["path"]: (one["a"], one["b"]) for one in found["state"]["changes"]} == {
        "n": (1, 1.0),
        "day": ("Monday", "Tuesday"),
    }
    assert (found["b"]["branch"], found["b"]["sub_step"], found["b"]["messages"]) == (forked.branch, 2, 3)

    shown = run("diff", "ticket-42", "ticket-42:1", dsn=dsn)
    assert shown.code == 0
    for line in (
        "--- ticket-42:0@0.3",
        "+++ ticket-42:1@0.2 (retry)",
        "-Monday",
        "+Tuesday",
        " by van",
        "-n: 1",
        "+n: 1.0",
    ):
        assert line in shown.out.splitlines()
    assert "\x1b[" not in shown.out
    assert "\x1b[32m+Tuesday" in on_terminal("diff", "ticket-42", "ticket-42:1", dsn=dsn)


async def test_checkpoints_of_one_line_share_what_came_before(dsn: str, forked: turnkeep.AsyncBranch) -> None:
    found = compared("ticket-42@0.0", "ticket-42@0.2", dsn=dsn)
    assert (found["messages"]["kept"], found["messages"]["added"]) == (1, 2)
    assert [change["change"] for change in found["state"]["changes"]] == ["added"]
    same = compared("ticket-42:1@0.1", "ticket-42@0.1", dsn=dsn)
    assert (same["messages"]["kept"], same["messages"]["changes"], same["state"]["changes"]) == (2, [], [])


async def test_conversations_are_compared_by_value(dsn: str, store: turnkeep.AsyncStore) -> None:
    for name, texts in (
        ("a", ('{"role":"user","n":1,"x":[]}', '{"role":"user","n":1}', '{"n":true}')),
        ("b", ('{ "x": [], "n": 1, "role": "user" }', '{"role":"user","n":1.0}', '{"n":1}')),
    ):
        branch = await store.conversation(name)
        await branch.begin_turn([RawJSON(text) for text in texts])
    found = compared("a", "b", dsn=dsn)["messages"]
    assert (found["kept"], found["changed"]) == (1, 2)
    assert [one["index_a"] for one in found["changes"]] == [1, 2]


async def test_what_both_have_is_not_read(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("long")
    await branch.begin_turn([{"role": "user", "content": "x" * 10_000} for _ in range(50)])
    await branch.save([{"role": "assistant", "content": "done"}])

    def read_so_far() -> int:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'message'"
            ).fetchone()
        assert row is not None
        return int(row[0])

    before = read_so_far()
    assert compared("long@0.0", "long", dsn=dsn)["messages"]["kept"] == 50
    assert read_so_far() - before <= 4  # the new message: its digest, and its text


async def test_hostile_and_large_content_is_shown_in_part(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user\x1b[2J", "content": "red \x9b31m \x1b[31m\n" + "y" * 1000})
    await branch.save([{"role": "tool", "content": "x" * 2_000_000}])
    await branch.save([{"role": "assistant", "content": "\n".join(map(str, range(500)))}])
    other = await store.conversation("d")
    shown = run("diff", other.external_id, "c", dsn=dsn)
    assert "red \\x9b31m \\x1b[31m" in shown.out
    assert not [character for character in shown.out if character < " " and character != "\n"]
    assert "too large to show: 2.0 MB" in shown.out
    assert "more lines" in shown.out
    assert "more characters" in shown.out
    assert "--json" in shown.err
    assert "before its first turn" in shown.out
    assert len(compared("d", "c", dsn=dsn)["messages"]["changes"][1]["b"]["content"]) == 2_000_000


async def test_what_is_not_there_is_not_found(dsn: str, forked: turnkeep.AsyncBranch) -> None:
    for place in ("ticket-42:9", "ticket-42:nobody", "ticket-42@0.9", "ticket-42:1@0.3", "other"):
        ran = run("diff", "ticket-42", place, dsn=dsn)
        assert (ran.code, ran.out) == (3, "")
    found = compared("ticket-42:retry", "ticket-42:1", dsn=dsn)
    assert found["a"] == found["b"]
