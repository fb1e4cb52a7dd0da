"""`turnkeep search`: what it finds, for people and for programs, and what it says of what it can't find."""

from __future__ import annotations

import psycopg
import pytest

import turnkeep
from tests.acceptance.command_line import lines, on_terminal, run
from tests.store.searching import say

HOSTILE = "needle \x1b[2J\x1b]0;pwned\x07 \x9b31m\u202eexe"


@pytest.fixture
async def talks(store: turnkeep.AsyncStore) -> None:
    await say(await store.conversation("order-7", agent_id="support", title="A refund"), "Refund me, please")
    branch = await store.conversation("with space", metadata={"team": "red"})
    await say(branch, "nothing of it")
    await say(branch, "A refund, two refunds")
    fork = await store.fork("order-7", at=(0, 1))
    await say(fork, "one more refund")


@pytest.mark.usefixtures("talks")
def test_each_hit_names_a_turn_that_show_shows(dsn: str) -> None:
    found = lines(run("--json", "search", "refund", dsn=dsn))
    uuid = turnkeep.conversation_uuid("with space")
    assert {one["place"] for one in found} == {"order-7@0", "order-7:1@1", f"{uuid}@1"}
    for one in found:
        shown = run("show", one["place"], dsn=dsn)
        assert shown.code == 0
        assert "efund" in shown.out
    assert run("show", "order-7@5", dsn=dsn).code == 3


async def test_an_id_with_a_colon_is_named_by_itself(store: turnkeep.AsyncStore, dsn: str) -> None:
    await say(await store.conversation("openai-chat:chat-1"), "A kettle")
    await say(await store.fork("openai-chat:chat-1", at=(0, 1)), "Another kettle")
    places = [one["place"] for one in lines(run("--json", "search", "kettle", dsn=dsn))]
    assert sorted(places) == ["openai-chat:chat-1:1@1", "openai-chat:chat-1@0"]
    assert all("ettle" in run("show", one, dsn=dsn).out for one in places)


@pytest.mark.usefixtures("talks")
def test_people_see_the_words_that_match_and_what_is_missing(dsn: str) -> None:
    ran = run("search", "refunds", "--limit", "2", dsn=dsn)
    assert ran.code == 0
    assert "**refund**" in ran.out.casefold()
    assert "By words only: no provider of embeddings was given" in ran.err
    assert run("--quiet", "search", "refunds", dsn=dsn).err == ""
    seen = on_terminal("search", "refund", dsn=dsn)
    assert "order-7@0" in seen
    assert "**" not in seen
    ran = run("search", "refund", "--embeddings", "local", dsn=dsn)
    assert "3 turns without an embedding of wordllama-l2-supercat-256 yet" not in ran.err
    assert "4 turns without an embedding of wordllama-l2-supercat-256 yet" in ran.err
    assert "`turnkeep embed` makes them" in ran.err
    ran = run("search", "refund", "--mode", "semantic", dsn=dsn)
    assert (ran.code, "--embeddings local" in ran.err, "TURNKEEP_EMBEDDINGS" in ran.err) == (2, True, True)
    nothing = run("search", "xyzzy", dsn=dsn)
    assert (nothing.code, nothing.out) == (0, "")
    assert "Nothing was found" in nothing.err


@pytest.mark.usefixtures("talks")
def test_conditions_of_the_command_line_hold(dsn: str) -> None:
    def places(*arguments: str) -> set[str]:
        return {
            one["external_id"] + f"@{one['turn_index']}" for one in lines(run("--json", "search", *arguments, dsn=dsn))
        }

    assert places("refund", "--agent", "support") == {"order-7@0", "order-7@1"}
    assert places("refund", "--where", "team=red") == {"with space@1"}
    assert places("refund", "--conversation", "order-7") == {"order-7@0", "order-7@1"}
    assert places("refund", "--conversation", "order-7:0") == {"order-7@0"}
    assert places("refund", "--since", "7d") == {"order-7@0", "order-7@1", "with space@1"}
    assert places("refund", "--since", "2100-01-01") == set()


@pytest.mark.usefixtures("talks")
def test_embeddings_are_searched_and_indexed(dsn: str) -> None:
    assert run("embed", "--once", "--embeddings", "local", dsn=dsn).code == 0
    ran = run("search", "money back", "--mode", "semantic", "--embeddings", "local", "--json", dsn=dsn)
    assert lines(ran)[0]["external_id"] in ("order-7", "with space")
    assert ran.err == ""
    (indexed,) = lines(run("--json", "search", "--index", "--embeddings", "local", dsn=dsn))
    assert indexed == {"model": "wordllama-l2-supercat-256", "indexed": True, "dropped": []}
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE turnkeep.document SET embedding = NULL, model = NULL")
    (dropped,) = lines(run("--json", "search", "--index", dsn=dsn))
    assert len(dropped["dropped"]) == 1
    ran = run("search", "--similar", "order-7", "--embeddings", "local", dsn=dsn)
    assert (ran.code, "no vector" in ran.err) == (3, True)


async def test_nothing_of_a_conversation_reaches_the_terminal_as_it_is(store: turnkeep.AsyncStore, dsn: str) -> None:
    await say(await store.conversation("c", title="title\x1b[31m", agent_id="agent\x1b[31m"), HOSTILE)
    for seen in (run("search", "needle", dsn=dsn).out, on_terminal("--no-color", "search", "needle", dsn=dsn)):
        assert "needle" in seen
        for harmful in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\x1b[31m"):
            assert harmful not in seen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either a query or --similar"),
        (("x", "--similar", "y"), "either a query or --similar"),
        (("x", "--index"), "--index"),
        (("",), "empty"),
        (("x", "--since", "soon"), "7d"),
        (("x", "--mode", "semantic"), "--embeddings local"),
        (("x", "--mode", "fuzzy"), "fuzzy"),
        (("x", "--embeddings", "openai"), "neither local"),
        (("x", "--where", "team"), "KEY=VALUE"),
    ],
)
def test_what_makes_no_search_is_refused(dsn: str, arguments: tuple[str, ...], said: str) -> None:
    ran = run("search", *arguments, dsn=dsn)
    assert ran.code == 2
    assert said in ran.err


def test_a_schema_of_other_dimensions_is_made_and_changed_by_the_command_line(empty_dsn: str) -> None:
    (made,) = lines(run("--json", "init", "--dimensions", "256", dsn=empty_dsn))
    assert made["dimensions"] == 256
    refused = run("init", "--dimensions", "768", dsn=empty_dsn)
    assert (refused.code, "turnkeep migrate --dimensions 768" in refused.err) == (2, True)
    assert "of 768 dimensions" in run("migrate", "--dimensions", "768", "--dry-run", dsn=empty_dsn).out
    assert "ADD COLUMN embedding" in run("migrate", "--dimensions", "768", "--sql", dsn=empty_dsn).out
    (changed,) = lines(run("--json", "migrate", "--dimensions", "768", dsn=empty_dsn))
    assert (changed["dimensions"], changed["done"][0]) == (
        768,
        "embeddings of 256 dimensions dropped: `turnkeep embed` makes them anew",
    )
