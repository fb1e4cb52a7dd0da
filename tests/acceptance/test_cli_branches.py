"""`turnkeep fork`, `switch`, `branch delete` and `show --tree`."""

from __future__ import annotations

import json
import re

import pytest

import turnkeep
from tests.acceptance.command_line import lines, on_terminal, run

CALL = {"id": "c1", "name": "lookup", "arguments": {"order": 7}}


@pytest.fixture
async def talk(store: turnkeep.AsyncStore) -> turnkeep.AsyncBranch:
    """A conversation of two turns, the second in the middle."""
    branch = await store.conversation("ticket:42", agent_id="support", title="Order 7")
    await branch.begin_turn({"role": "user", "content": "one"})
    await branch.save([{"role": "assistant", "content": "1"}], final=True)
    await branch.begin_turn({"role": "user", "content": "two"})
    await branch.save([{"role": "assistant", "content": "look"}], tool_calls=[CALL])
    return branch


@pytest.mark.usefixtures("talk")
async def test_a_fork_is_made_where_it_is_asked_for(dsn: str, store: turnkeep.AsyncStore) -> None:
    made = run("fork", "ticket:42@0.1", "--name", "again", dsn=dsn)
    assert made.out == "ticket:42:1\n"
    head = run("fork", "ticket:42", "--json", dsn=dsn)
    assert (json.loads(head.out)["branch"], json.loads(head.out)["sub_step"]) == (2, 1)
    below = run("fork", "ticket:42:again@0.0", dsn=dsn)
    assert below.out == "ticket:42:3\n"
    assert [one.parent for one in await store.branches("ticket:42")] == [None, (0, 0, 1), (0, 1, 1), (0, 0, 0)]

    shown = json.loads(run("show", made.out.strip(), "--json", dsn=dsn).out)
    assert (shown["branch_name"], shown["turn_index"], shown["sub_step"]) == ("again", 0, 1)
    assert json.loads(run("show", "ticket:42", "--json", dsn=dsn).out)["branch"] == 0

    taken = run("fork", "ticket:42", "--name", "again", dsn=dsn)
    assert (taken.code, taken.out) == (5, "")
    assert run("fork", "ticket:42@7.0", dsn=dsn).code == 3
    assert run("fork", "ticket:42:9", dsn=dsn).code == 3


@pytest.mark.usefixtures("talk")
async def test_a_history_is_copied_into_another_conversation(dsn: str, store: turnkeep.AsyncStore) -> None:
    copied = run("fork", "ticket:42@0.1", "--into", "copy", dsn=dsn)
    assert copied.out == "copy\n"
    assert [message["content"] for message in (await store.restore("copy")).messages] == ["one", "1"]
    assert run("fork", "ticket:42", "--into", "copy", dsn=dsn).code == 5
    assert len(await store.branches("ticket:42")) == 1


async def test_branches_are_switched_and_deleted(
    dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch
) -> None:
    await store.fork("ticket:42", at=(0, 1), name="again")
    assert run("switch", "ticket:42:again", dsn=dsn).code == 0
    assert (await store.describe("ticket:42")).current_branch == 1
    assert json.loads(run("show", "ticket:42", "--json", dsn=dsn).out)["branch"] == 1
    assert run("post", "ticket:42:0", "hello", "--key", "k", dsn=dsn).code == 0
    assert len(json.loads(run("show", "ticket:42:0", "--json", dsn=dsn).out)["waiting"]) == 1

    for arguments, code in (
        (("switch", "ticket:42"), 2),  # no branch named
        (("switch", "ticket:42:again@0.1"), 2),
        (("switch", "ticket:42:9"), 3),
        (("branch", "delete", "ticket:42:1"), 5),  # the current one
        (("branch", "delete", "ticket:42:0"), 5),  # built on
        (("branch", "delete", "ticket:42"), 2),
    ):
        ran = run(*arguments, dsn=dsn)
        assert (ran.code, ran.out) == (code, ""), arguments
    assert len(await store.branches("ticket:42")) == 2
    await store.switch("ticket:42", 0)
    assert json.loads(run("branch", "delete", "ticket:42:again", "--json", dsn=dsn).out) == {"deleted": True}
    assert len(await store.branches("ticket:42")) == 1


async def test_the_tree_shows_where_each_branch_was_forked(
    dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch
) -> None:
    again = await store.fork("ticket:42", at=(0, 1), name="again")
    await again.begin_turn({"role": "user", "content": "three"})
    await again.save([], final=True)
    await store.fork("ticket:42", branch=1)
    await store.fork("ticket:42", name="again\x1b[31m")
    await store.switch("ticket:42", 2)
    assert [one["current"] for one in lines(run("show", "ticket:42", "--tree", "--json", dsn=dsn))] == [
        False, False, True, False,
    ]  # fmt: skip
    shown = run("show", "ticket:42", "--tree", dsn=dsn).out.splitlines()
    assert [re.sub(r" \d+ \w+ ago .*", "", " ".join(line.split())) for line in shown] == [
        "branch status head forked at last turn lease",
        "0 main open 1.1 -",
        "├─ 1 again idle 1.1 0.1",
        "│ └─ 2 * idle 1.1 1.1",
        "└─ 3 again\\x1b[31m idle 1.1 1.1",
    ]
    narrow = on_terminal("show", "ticket:42", "--tree", dsn=dsn, COLUMNS="30")
    assert "forked at" in narrow
    assert all(len(line) < 60 for line in narrow.splitlines())
