"""`turnkeep edit`, `end`, `reopen` and `erase`; lists filtered by what is said of a conversation."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from collections.abc import Callable

import pytest

import turnkeep
from tests.acceptance.command_line import COMMAND, PATIENCE, PLAIN, lines, on_terminal, run

User = {"role": "user", "content": "Where is my order?"}


@pytest.fixture
async def family(store: turnkeep.AsyncStore) -> None:
    """A conversation, its child and grandchild, and one that has nothing to do with them."""
    for name, parent in (("top", None), ("child", "top"), ("grandchild", "child"), ("other", None)):
        branch = await store.conversation(name, agent_id="support", parent=parent)
        await branch.begin_turn(User)
        await branch.save([{"role": "assistant", "content": "done"}], final=True)


# -- what is said of a conversation


@pytest.mark.usefixtures("family")
async def test_title_tags_and_metadata_are_edited(dsn: str, store: turnkeep.AsyncStore) -> None:
    edited = run(
        "edit", "top", "--title", "Order 7", "--tag", "vip", "--tag", "eu", "--set", "order=7", "--set", "city=Oslo",
        dsn=dsn,
    )  # fmt: skip
    assert edited.code == 0, edited.err
    about = await store.describe("top")
    assert (about.title, about.tags, about.metadata) == ("Order 7", ("vip", "eu"), {"order": 7, "city": "Oslo"})
    again = run(
        "edit", "top", "--untag", "vip", "--tag", "eu", "--unset", "city", "--set", 'n={"a": null}', "--json", dsn=dsn
    )
    found = json.loads(again.out)
    assert (found["tags"], found["metadata"]) == (["eu"], {"order": 7, "n": {"a": None}})
    assert json.loads(run("edit", "top", "--title", "", "--json", dsn=dsn).out)["title"] is None
    for arguments, code in (
        (("top",), 2),
        (("top", "--set", "nothing"), 2),
        (("top:0", "--tag", "a"), 2),
        (("no", "--tag", "a"), 3),
    ):
        ran = run("edit", *arguments, dsn=dsn)
        assert (ran.code, ran.out) == (code, "")
    shown = run("show", "top", dsn=dsn).out
    assert "eu" in shown
    assert '{"n": {"a": null}, "order": 7}' in shown
    assert json.loads(run("show", "top", "--json", dsn=dsn).out)["conversation"]["metadata"] == found["metadata"]


@pytest.mark.usefixtures("family")
async def test_a_conversation_is_ended_and_reopened(dsn: str, store: turnkeep.AsyncStore) -> None:
    assert run("end", "top", dsn=dsn).code == 0
    assert run("post", "top", "hello", dsn=dsn).code == 5
    assert [one["external_id"] for one in lines(run("ls", "--status", "ended", "--json", dsn=dsn))] == ["top"]
    assert run("reopen", "top", dsn=dsn).code == 0
    assert run("post", "top", "hello", dsn=dsn).code == 0
    held = await store.conversation("other")
    await held.claim(owner="worker:1", seconds=60)
    refused = run("end", "other", dsn=dsn)
    assert refused.code == 5
    assert "worker:1" in refused.err


@pytest.mark.usefixtures("family")
async def test_lists_are_filtered(dsn: str, store: turnkeep.AsyncStore) -> None:
    await store.update(
        "top", tags=["vip", "eu"], metadata={"order": 7, "of": {"city": "Oslo"}}, title="Order 7\x1b[31m"
    )
    await store.update("child", tags=["vip"])
    mine = store.tenant("acme")
    await mine.conversation("top", agent_id="sales")

    def listed(*filters: str) -> list[str]:
        return sorted(one["external_id"] for one in lines(run("ls", *filters, "--json", dsn=dsn)))

    assert listed("--tag", "vip") == ["child", "top"]
    assert listed("--tag", "vip", "--tag", "eu") == ["top"]
    assert listed("--where", "order=7") == listed("--where", 'of={"city": "Oslo"}') == ["top"]
    assert listed("--where", 'order="7"') == []
    assert listed("--parent", "top") == ["child"]
    assert listed("--status", "idle", "--status", "open", "--tenant", "acme") == ["top"]
    assert listed("--tenant", "nobody") == []
    assert json.loads(run("show", "top", "--tenant", "acme", "--json", dsn=dsn).out)["agent_id"] == "sales"
    assert json.loads(run("show", "top", "--json", dsn=dsn).out)["agent_id"] == "support"
    for wrong in (("--status", "odd"), ("--where", "x"), ("--interrupted", "--tag", "vip")):
        assert run("ls", *wrong, dsn=dsn).code == 2

    table = run("ls", dsn=dsn).out
    assert table.splitlines()[0].split() == [
        "id",
        "conversation",
        "title",
        "tags",
        "tenant",
        *table.splitlines()[0].split()[5:],
    ]
    assert "Order 7\\x1b[31m" in table
    narrow = on_terminal("ls", "--no-color", dsn=dsn, COLUMNS="38")
    assert "conversation  child" in narrow
    assert all(len(line) <= 38 for line in narrow.splitlines())


async def test_a_message_for_another_conversations_agent_is_refused(dsn: str, store: turnkeep.AsyncStore) -> None:
    assert run("post", "new", "hello", "--agent", "support", "--key", "k", dsn=dsn).code == 0
    assert run("post", "new", "hello", "--agent", "support", "--key", "k", dsn=dsn).code == 0
    refused = run("post", "new", "more", "--agent", "sales", dsn=dsn)
    assert (refused.code, refused.out) == (5, "")
    assert "'support'" in refused.err
    assert len(json.loads(run("show", "new", "--json", dsn=dsn).out)["waiting"]) == 1


# -- erase


@pytest.mark.usefixtures("family")
async def test_nothing_is_erased_unasked(dsn: str, store: turnkeep.AsyncStore) -> None:
    refused = run("erase", "top", dsn=dsn)
    assert (refused.code, refused.out) == (2, "")
    for words in ("2 child conversations (child, grandchild)", "3 conversations", "6 messages", "--yes"):
        assert words in refused.err
    for answer, code, left in (("n", 1, 4), ("\x04", 1, 4), ("y", 0, 1)):
        assert _answered("erase", "top", answer=answer, dsn=dsn) == code
        assert len(await store.conversations()) == left
    erased = json.loads(run("erase", "other", "--yes", "--json", dsn=dsn).out)
    assert (erased["conversations"], erased["messages"]) == (1, 2)
    assert run("erase", "other", "--yes", dsn=dsn).code == 3


def _answered(*arguments: str, answer: str, dsn: str) -> int:
    """The exit code of a command whose question is answered on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", COMMAND, *arguments], env=PLAIN | {"TURNKEEP_DATABASE_URL": dsn},
        stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked:
            ready, _, _ = select.select([ours], [], [], PATIENCE)
            assert ready, asked
            asked += os.read(ours, 65536)
        assert b"3 conversations" in asked
        typed = answer.encode() if answer < " " else f"{answer}\n".encode()
        code = _ended(process, lambda: os.write(ours, typed))
    os.close(ours)
    return code


def _ended(process: subprocess.Popen[bytes], typing: Callable[[], object]) -> int:
    """The exit code after something was typed: again where it came in the moment before Python begins to read."""
    for _ in range(int(PATIENCE / 5)):
        typing()
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    raise AssertionError("it goes on asking")


@pytest.mark.usefixtures("family")
async def test_a_question_can_be_interrupted(dsn: str, store: turnkeep.AsyncStore) -> None:
    assert _answered("erase", "top", answer="\x03", dsn=dsn) == 130
    assert len(await store.conversations()) == 4
