"""`turnkeep ls` and `turnkeep show`: what is stored, shown to people and to programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import lines, on_terminal, run
from turnkeep import RawJSON

User = {"role": "user", "content": "Where is my order?"}
CALL = {"id": "c1", "name": "lookup", "arguments": {"order": 7}}
HOSTILE = "\x1b[2J\x1b]0;pwned\x07 nul \0 lone \ud800 \x9b31m\r\u202eexe\n[7] assistant"
EXACT = '{"role":"tool",  "content":{"n":1e400,"n":2.50,"s":"\\u0000 \\ud800"}}'


@pytest.fixture
async def talk(store: turnkeep.AsyncStore) -> turnkeep.AsyncBranch:
    """A conversation in the middle of its turn, with one call pending."""
    branch = await store.conversation("ticket-42", agent_id="support")
    await branch.begin_turn(User)
    await branch.save([{"role": "assistant", "content": "Let me look."}], tool_calls=[CALL], state={"n": 1})
    return branch


@pytest.fixture
async def hostile(store: turnkeep.AsyncStore) -> None:
    """A conversation whose content means ill."""
    branch = await store.conversation("hostile", agent_id="agent\x1b[31m")
    await branch.begin_turn({"role": "user\x1b[2J", "content": HOSTILE})
    await branch.save([{"role": "assistant", "content": "café 😀"}])
    big = {"role": "tool", "content": "x" * 1_000_000, "metadata": {"tool_name": "\x1bbig\n"}}
    await branch.save([RawJSON(EXACT), big], tool_calls=[RawJSON('{"name":"\\u001b[1m","n":1e400}')])


# -- ls


async def test_ls_lists_one_object_a_line(dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch) -> None:
    other = await store.conversation("other", agent_id="sales")
    await other.begin_turn(User)
    await other.save([], final=True)
    listed = lines(run("--json", "ls", dsn=dsn))
    assert listed == lines(run("ls", "--json", dsn=dsn))
    assert [one["external_id"] for one in listed] == ["other", "ticket-42"]
    assert (listed[1]["turn_index"], listed[1]["sub_step"], listed[1]["status"]) == (0, 1, "open")
    assert [one["external_id"] for one in lines(run("ls", "--json", "--agent", "sales", dsn=dsn))] == ["other"]

    one = run("ls", "--limit", "1", dsn=dsn)
    assert "other" in one.out
    assert "ticket-42" not in one.out
    assert "--limit" in one.err
    assert run("ls", "--limit", "1", "--quiet", dsn=dsn).err == ""
    nobody = run("ls", "--agent", "nobody", dsn=dsn)
    assert (nobody.code, nobody.out) == (0, "")
    assert "nobody" in nobody.err


async def test_ls_interrupted_lists_what_no_live_lease_holds(
    dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch, advance: Callable[[timedelta], None]
) -> None:
    done = await store.conversation("done")
    await done.begin_turn(User)
    await done.save([], final=True)
    await talk.claim(owner="worker:1", seconds=60)
    assert lines(run("ls", "--interrupted", "--json", dsn=dsn)) == []
    advance(timedelta(minutes=5))
    (left,) = lines(run("ls", "--interrupted", "--json", dsn=dsn))
    assert (left["external_id"], left["lease_owner"]) == ("ticket-42", "worker:1")
    assert lines(run("ls", "--interrupted", "--json", "--agent", "sales", dsn=dsn)) == []
    leases = json.loads(run("doctor", "--json", dsn=dsn).out)["leases"]
    assert (leases["live"], leases["expired"], leases["interrupted"]) == (0, 1, 1)
    assert leases["agents_of_expired"] == ["support"]


# -- show


async def test_show_says_where_it_stands_and_what_is_pending(dsn: str, talk: turnkeep.AsyncBranch) -> None:
    shown = run("show", "ticket-42", dsn=dsn)
    assert shown.code == 0
    assert shown.err == ""
    for words in ("turn 0.1", "open", "lookup", "[0] user", "Where is my order?", "[1] assistant", "Let me look."):
        assert words in shown.out
    assert "uncertain" not in shown.out


async def test_calls_on_a_fork_are_uncertain(dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch) -> None:
    fork = await store.fork("ticket-42", name="retry")
    assert "uncertain" in run("show", f"ticket-42:{fork.branch}", dsn=dsn).out
    checkpoint = json.loads(run("show", f"ticket-42:{fork.branch}", "--json", dsn=dsn).out)
    assert checkpoint["pending"] == [{"turn_index": 0, "sub_step": 1, "index": 0, "uncertain": True, "call": CALL}]
    assert checkpoint["branch_name"] == "retry"


async def test_a_conversation_is_found_by_many_names(
    dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch
) -> None:
    odd = await store.conversation("ticket-42@0.0")
    await odd.begin_turn({"role": "user", "content": "odd"})
    whole = str(talk.conversation_id)

    def found(reference: str) -> tuple[str, int]:
        checkpoint = json.loads(run("show", reference, "--json", dsn=dsn).out)
        return checkpoint["external_id"], checkpoint["sub_step"]

    assert found(whole) == found(whole.upper()) == found(whole[:8]) == ("ticket-42", 1)
    assert found(f"{whole[:8]}@0.0") == ("ticket-42", 0)
    assert found("ticket-42@0.1") == ("ticket-42", 1)
    assert found("ticket-42@0.0") == found("ticket-42@0.0@0.0") == found("@last") == ("ticket-42@0.0", 0)
    assert found("@last@0.0") == ("ticket-42@0.0", 0)


async def test_a_beginning_of_two_ids_is_refused(dsn: str, store: turnkeep.AsyncStore) -> None:
    for end in "12":
        await store.conversation(f"abcdef00-0000-4000-8000-00000000000{end}")
    ran = run("show", "abcdef00", dsn=dsn)
    assert (ran.code, ran.out) == (2, "")
    assert "several" in ran.err
    ids = [line.split()[0] for line in run("ls", dsn=dsn).out.splitlines()[1:]]
    assert len(set(ids)) == 2
    assert all(run("show", one, dsn=dsn).code == 0 for one in ids)


async def test_show_history_lists_checkpoints_newest_first(dsn: str, talk: turnkeep.AsyncBranch) -> None:
    found = lines(run("show", "ticket-42", "--history", "--json", dsn=dsn))
    assert [(one["turn_index"], one["sub_step"], one["tool_calls"]) for one in found] == [(0, 1, 1), (0, 0, 0)]
    assert len(lines(run("show", "ticket-42@0.0", "--history", "--json", dsn=dsn))) == 1
    table = run("show", "ticket-42", "--history", "--limit", "1", dsn=dsn)
    assert "0.1" in table.out
    assert "0.0" not in table.out


async def test_raw_and_json_are_the_stored_texts(dsn: str, hostile: None, store: turnkeep.AsyncStore) -> None:
    stored = (await store.restore("hostile")).message_texts
    for environment in ({}, {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}):
        raw = run("show", "hostile", "--raw", dsn=dsn, **environment)
        assert raw.bytes.decode() == "".join(f"{text}\n" for text in stored)
        whole = run("show", "hostile", "--json", dsn=dsn, **environment)
        assert f'"messages": [{", ".join(stored)}]' in whole.bytes.decode()
        assert EXACT in whole.out
        assert '"call": {"name":"\\u001b[1m","n":1e400}' in whole.out
        json.loads(whole.out)


@pytest.mark.parametrize("environment", [{}, {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}], ids=["", "C"])
async def test_hostile_content_is_shown_and_does_nothing(dsn: str, hostile: None, environment: dict[str, str]) -> None:
    for arguments in (("show", "hostile"), ("ls",), ("show", "hostile", "--history")):
        ran = run(*arguments, dsn=dsn, **environment)
        assert ran.code == 0
        assert not [character for character in ran.out if character < " " and character != "\n"]
        assert not set(ran.out) & set("\x7f\x9b\u202e")
        assert "\\x1b[" in ran.out
    shown = run("show", "hostile", dsn=dsn, **environment)
    assert "\\x1b]0;pwned\\x07 nul \\x00 lone \\ud800 \\x9b31m\\r\\u202eexe\n  [7] assistant" in shown.out
    assert not any(line.startswith("[7]") for line in shown.out.splitlines())
    assert ("caf\\xe9 \\U0001f600" if environment else "café 😀") in shown.out
    assert EXACT in shown.out  # duplicate keys: no one value to show
    assert "996,000 more characters" in shown.out
    assert len(shown.out) < 20_000
    assert "--raw" in shown.err


async def test_a_terminal_gets_colours_and_nothing_that_controls_it(dsn: str, store: turnkeep.AsyncStore) -> None:
    branch = await store.conversation("talk")
    await branch.begin_turn({"role": "user", "content": "red \x9b31m \x1b[31m" + " word" * 40})
    coloured = on_terminal("show", "talk", dsn=dsn)
    assert "\x1b[1" in coloured
    assert "\\x9b31m \\x1b[31m" in coloured
    assert all(len(line) < 100 for line in coloured.splitlines())
    for sent in (
        on_terminal("show", "talk", dsn=dsn, NO_COLOR="1"),
        on_terminal("show", "talk", "--no-color", dsn=dsn),
        on_terminal("show", "talk", "--raw", dsn=dsn),
        on_terminal("show", "talk", "--json", dsn=dsn),
    ):
        assert not {"\x1b", "\x9b"} & set(sent)
    assert '"red \\u009b31m \\u001b[31m' in on_terminal("show", "talk", "--raw", dsn=dsn)
    assert "\x1b[" in on_terminal("ls", dsn=dsn)


async def test_show_tells_what_waits_and_what_a_model_would_get(dsn: str, talk: turnkeep.AsyncBranch) -> None:
    assert run("post", "ticket-42", "And order 8?", "--key", "mail-2", dsn=dsn).code == 0
    shown = run("show", "ticket-42", dsn=dsn).out
    assert "waiting" in shown
    assert "And order 8?  posted" in shown
    assert "mail-2" in shown
    (waiting,) = json.loads(run("show", "ticket-42", "--json", dsn=dsn).out)["waiting"]
    assert (waiting["key"], waiting["message"]["content"]) == ("mail-2", "And order 8?")
    assert json.loads(run("show", "ticket-42@0.1", "--json", dsn=dsn).out)["waiting"] == []

    context = run("show", "ticket-42", "--context", dsn=dsn).out
    texts = [json.dumps(message, separators=(",", ":")) for message in talk.messages]
    assert f"2 messages, {sum(map(len, texts))} B" in context
    for words in ('pending: lookup {"order": 7}, not started', "1 request", "[0] user", "Where is my order?"):
        assert words in context
    assert context.splitlines()[1].split()[:4] == ["0", "user", str(len(texts[0])), str(len(texts[0]))]
    exact = json.loads(run("show", "ticket-42", "--context", "--json", dsn=dsn).out)
    assert exact["messages"] == talk.messages
    assert [one["bytes"] for one in exact["sizes"]] == [len(text) for text in texts]
    assert (exact["waiting"], exact["pending"][0]["state"]) == (1, "not started")
    assert run("show", "ticket-42", "--context", "--raw", dsn=dsn).code == 2


async def test_stats_count_what_there_is(dsn: str, store: turnkeep.AsyncStore, talk: turnkeep.AsyncBranch) -> None:
    other = await store.conversation("other", agent_id="sales")
    await other.begin_turn(User)
    await other.claim(owner="w", seconds=60)
    await store.post("other", "more", key="k")
    found = json.loads(run("stats", "--json", dsn=dsn).out)
    assert [found[name]["value"] for name in ("conversations", "checkpoints", "messages")] == [2, 3, 3]
    assert {name: number["value"] for name, number in found["statuses"].items()} == {"open": 1, "running": 1}
    assert sorted(one["agent_id"] for one in found["agents"]) == ["sales", "support"]
    assert (found["live_leases"], found["expired_leases"], found["waiting_requests"]) == (1, 0, 1)
    assert (found["pending_calls"], found["uncertain_calls"]) == (1, 0)
    await store.fork("ticket-42")
    again = json.loads(run("stats", "--json", dsn=dsn).out)
    assert (again["pending_calls"], again["uncertain_calls"]) == (2, 1)
    shown = run("stats", dsn=dsn).out
    assert "~" not in shown
    assert "1 request, the oldest for" in shown

    with psycopg.connect(dsn, autocommit=True) as connection:  # as if it had grown, and been analysed
        connection.execute(
            "UPDATE pg_class SET reltuples = 5e6 WHERE relnamespace = 'turnkeep'::regnamespace AND relkind = 'r'"
        )
    found = json.loads(run("stats", "--json", dsn=dsn).out)
    assert found["messages"] == {"value": 5_000_000, "exact": False}
    assert "~5,000,000" in run("stats", dsn=dsn).out
    assert json.loads(run("stats", "--json", "--exact", dsn=dsn).out)["messages"] == {"value": 3, "exact": True}
