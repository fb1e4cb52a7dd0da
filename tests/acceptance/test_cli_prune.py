"""`turnkeep prune`, `retention` and `edit --ttl`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import lines, on_terminal, run

DAY = timedelta(days=1)
Advance = Callable[[timedelta], None]


@pytest.fixture
def filled(dsn: str) -> str:
    """A database with two conversations of three turns."""

    async def fill() -> None:
        async with turnkeep.open(dsn) as store:
            for name, agent in (("one", "a"), ("two", "b")):
                branch = await store.conversation(name, agent_id=agent)
                for number in range(3):
                    await branch.begin_turn({"role": "user", "n": number})
                    await branch.save([{"role": "assistant"}], final=True)

    asyncio.run(fill())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 't', next_try_at = NULL WHERE turn_index <> 1")
    return dsn


def test_it_says_what_would_go_and_removes_it(filled: str, advance: Advance) -> None:
    young = run("prune", "--older-than", "30d", dsn=filled)
    assert young.out.startswith("Removed 0 checkpoints and 0 messages (0 B) of 0 conversations.")
    advance(40 * DAY)
    looked = run("prune", "one", "--older-than", "30d", "--dry-run", dsn=filled)
    assert looked.out.startswith("Would remove 3 checkpoints and 0 messages")
    assert lines(run("prune", "one", "--older-than", "4w", "--json", dsn=filled))[0]["checkpoints"] == 3
    (rest,) = lines(run("prune", "--older-than", "30d", "--agent", "b", "--json", dsn=filled))
    assert (rest["conversations"], rest["checkpoints"], rest["dry_run"]) == (1, 3, False)
    heads = run("prune", "--older-than", "720h", "--keep", "heads", dsn=filled)
    assert heads.out.startswith("Removed 0 checkpoints")
    assert "4 checkpoints stayed" in heads.err
    assert "turnkeep embed" in heads.err


def test_a_terminal_shows_a_bar_and_a_pipe_does_not(filled: str, advance: Advance) -> None:
    advance(40 * DAY)
    assert run("prune", "--older-than", "30d", "--dry-run", dsn=filled).err == ""
    assert "pruning" in on_terminal("prune", "--older-than", "30d", dsn=filled)


def test_times_to_live_are_set_said_and_kept(filled: str, advance: Advance) -> None:
    for ttl, said in (("30d", "30 d"), ("10min", "10 min"), ("36h", "1 d 12 h"), ("1.5min", "1 min 30 s")):
        assert f"kept for {said}\n" in run("edit", "one", "--ttl", ttl, dsn=filled).out
    assert lines(run("edit", "one", "--ttl", "12h", "--json", dsn=filled))[0]["ttl"] == 43_200
    assert run("edit", "one", "--ttl", "none", dsn=filled).code == 0
    assert "for ever" in run("retention", dsn=filled).err
    assert run("retention", "a", "10d", dsn=filled).code == 0
    assert lines(run("retention", "--json", dsn=filled)) == [{"agent_id": "a", "ttl_seconds": 864_000}]
    advance(20 * DAY)
    assert run("prune", "--expired", "--dry-run", dsn=filled).out.startswith("Would erase 1 conversation.")
    assert run("prune", "--expired", dsn=filled).out.startswith("Erased 1 conversation, 1 branch, 6 checkpoints")
    assert lines(run("prune", "--expired", "--json", dsn=filled))[0]["conversations"] == 0
    assert run("retention", "a", "none", dsn=filled).out.split()[-2:] == ["for", "ever"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((), "--older-than: needed"),
        (("--older-than", "30"), "no length of time"),
        (("--older-than", "30min"), "at least an hour"),
        (("--older-than", "999999w"), "thousand years"),
        (("--expired", "--older-than", "30d"), "--expired: it takes no"),
        (("one", "--agent", "a", "--older-than", "30d"), "--agent:"),
    ],
)
def test_what_can_not_be_meant_is_refused(filled: str, wrong: tuple[str, ...], said: str) -> None:
    refused = run("prune", *wrong, dsn=filled)
    assert refused.code == 2
    assert said in refused.err


def test_what_is_not_there_is_not_found(filled: str) -> None:
    assert run("prune", "nobody", "--older-than", "30d", dsn=filled).code == 3
