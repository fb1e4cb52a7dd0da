"""Turns are found by their words: which, in what order, within what is asked for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from tests.store.searching import say
from turnkeep import AsyncStore
from turnkeep.cli.search import notes
from turnkeep.errors import ConfigurationError, InvalidInputError, NotFoundError
from turnkeep.search import Search, SearchResult


def turns(result: SearchResult) -> list[tuple[str, int, int]]:
    """What was found, in order."""
    return [(hit.external_id, hit.branch, hit.turn_index) for hit in result.hits]


async def test_what_was_just_said_is_found_without_any_worker(store: AsyncStore) -> None:
    branch = await store.conversation("ticket", agent_id="support", title="A refund")
    await say(branch, "Hello there")
    await say(branch, "I want a refund for order 7, please", "It is under way.")
    result = await Search(store).search("refunds")
    (hit,) = result.hits
    assert (hit.external_id, hit.title, hit.agent_id, hit.branch, hit.turn_index) == (
        "ticket",
        "A refund",
        "support",
        0,
        1,
    )
    assert hit.conversation_id == branch.conversation_id
    assert [hit.snippet[start:stop] for start, stop in hit.marks] == ["refund"]
    assert hit.created_at is not None
    assert not hit.archived
    assert (result.mode, result.all_words, bool(result.not_indexed)) == ("text", True, False)
    assert result.text_only == "no provider of embeddings was given"


async def test_more_turns_than_a_search_indexes_itself_are_said_to_be_missing(store: AsyncStore) -> None:
    branch = await store.conversation("long")
    for number in range(55):
        await say(branch, f"word{number}")
    result = await Search(store).search("word54", mode="text")
    assert result.hits == ()
    assert (result.not_indexed.text, result.text_only) == (5, None)
    assert turns(await Search(store).search("word54")) == [("long", 0, 54)]


async def test_turns_with_all_words_come_first_and_rare_words_count_most(store: AsyncStore) -> None:
    for name, text in (
        ("both", "the zebra and other words that make it long, so that it is not the shortest of all, has an order"),
        ("rare", "zebra"),
        ("common1", "order"),
        ("common2", "order, order, order"),
        ("neither", "nothing of it"),
    ):
        await say(await store.conversation(name), text)
    found = [hit.external_id for hit in (await Search(store).search("zebra order")).hits]
    assert found[:2] == ["both", "rare"]
    assert {*found[2:]} == {"common1", "common2"}


async def test_quotes_and_exclusions_are_meant(store: AsyncStore) -> None:
    await say(await store.conversation("a"), "red apples and green pears")
    await say(await store.conversation("b"), "green apples and red pears")
    search = Search(store)
    assert turns(await search.search('"green apples"')) == [("b", 0, 0)]
    assert turns(await search.search("apples -red -pear")) == []
    assert {hit.external_id for hit in (await search.search("peach or pears")).hits} == {"a", "b"}
    assert turns(await search.search('pears -"green apples"')) == [("a", 0, 0)]


async def test_stop_words_are_words_in_a_phrase_and_where_something_is_excluded(store: AsyncStore) -> None:
    await say(await store.conversation("mine"), "where is my order")
    await say(await store.conversation("yours"), "where is your order")
    search = Search(store)
    for query, wanted in (("order -my", {"yours"}), ('"is my order"', {"mine"}), ("orders", {"mine", "yours"})):
        assert {hit.external_id for hit in (await search.search(query)).hits} == wanted, query


async def test_a_turn_is_one_hit_however_many_chunks_of_it_fit(store: AsyncStore) -> None:
    await say(await store.conversation("long"), "needle in the hay. " * 3000)
    await say(await store.conversation("short"), "a needle")
    with psycopg.connect(store.conninfo) as connection:
        result = await Search(store).search("needle", limit=2)
        ((chunks,),) = connection.execute("SELECT count(*) FROM turnkeep.document").fetchall()
    assert chunks > 4
    assert {*turns(result)} == {("long", 0, 0), ("short", 0, 0)}


async def test_a_limit_is_reached_where_as_many_turns_match(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation("many")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO turnkeep.document (conversation_id, branch, turn_index, chunk, text, tsv, created_at)"
            " SELECT %s, 0, turn, chunk, 'common words', turnkeep.words_of('common words'),"
            " now() + turn * interval '1 s'"
            " FROM generate_series(0, 1199) AS turn, generate_series(0, 2) AS chunk",
            (branch.conversation_id,),
        )
    result = await Search(store).search("common", limit=1000)
    assert len({*turns(result)}) == 1000
    few = await Search(store).search("common", limit=3)
    assert [hit.turn_index for hit in few.hits] == [1199, 1198, 1197]
    assert not few.all_words


async def test_filters_hold_alone_and_together(store: AsyncStore, advance: Callable[[timedelta], None]) -> None:
    search = Search(store)
    await say(await store.conversation("old", agent_id="a", tags=["x"], metadata={"team": "red", "n": 1}), "needle")
    advance(timedelta(days=10))
    await say(await store.conversation("new", agent_id="a", tags=["x", "y"], metadata={"team": "blue"}), "needle")
    await say(await store.conversation("other", agent_id="b", tags=["y"]), "needle")
    for filters, expected in (
        ({"agent": "a"}, {"old", "new"}),
        ({"tags": ["x", "y"]}, {"new"}),
        ({"metadata": {"team": "red"}}, {"old"}),
        ({"conversation": "other"}, {"other"}),
        ({"since": timedelta(days=1)}, {"new", "other"}),
        ({"since": datetime.now(UTC) + timedelta(days=1)}, {"new", "other"}),
        ({"since": timedelta(days=1), "agent": "a"}, {"new"}),
        ({"agent": "nobody"}, set()),
    ):
        found = await search.search("needle", **filters)
        assert {hit.external_id for hit in found.hits} == expected, filters


async def test_a_tenant_sees_its_own_only(store: AsyncStore) -> None:
    await say(await store.tenant("acme").conversation("c"), "needle")
    await say(await store.tenant("other").conversation("c"), "needle")
    (hit,) = (await Search(store.tenant("acme")).search("needle")).hits
    assert hit.conversation_id == turnkeep.conversation_uuid("c", tenant="acme")
    assert len((await Search(store).search("needle")).hits) == 2


async def test_what_a_fork_inherits_is_found_once_and_a_copy_is_its_own(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await say(branch, "needle one")
    await say(branch, "needle two")
    fork = await store.fork("c", at=(0, 1))
    await say(fork, "needle three")
    search = Search(store)
    assert {*turns(await search.search("needle"))} == {("c", 0, 0), ("c", 0, 1), ("c", 1, 1)}
    assert {*turns(await search.search("needle", conversation="c", branch=1))} == {("c", 0, 0), ("c", 1, 1)}
    assert {*turns(await search.search("needle", conversation="c", branch=0))} == {("c", 0, 0), ("c", 0, 1)}
    copy = await store.fork("c", at=(0, 1), into="copy")
    await say(copy, "needle four")
    assert ("copy", 0, 1) in turns(await search.search("needle four"))
    await store.archive("c")
    assert {*turns(await search.search("needle", conversation="c", branch=1))} == {("c", 0, 0), ("c", 1, 1)}
    assert {*turns(await search.search("needle", conversation="c", branch="main"))} == {("c", 0, 0), ("c", 0, 1)}
    with pytest.raises(NotFoundError):
        await search.search("needle", conversation="c", branch=7)


async def test_a_turn_forked_in_its_middle_is_the_forks_own(store: AsyncStore) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "content": "needle"}, key="k")
    await branch.save([{"role": "assistant", "content": "first thought"}])
    fork = await store.fork("c", at=(0, 1))
    await branch.save([{"role": "assistant", "content": "needle on main"}], final=True)
    await fork.save([{"role": "assistant", "content": "needle on the fork"}], final=True)
    search = Search(store)
    assert turns(await search.search("needle", conversation="c", branch=1)) == [("c", 1, 0)]
    assert turns(await search.search("needle", conversation="c", branch=0)) == [("c", 0, 0)]


async def test_an_archived_conversation_is_found_and_said_to_be_archived(store: AsyncStore, dsn: str) -> None:
    await say(await store.conversation("c"), "needle")
    assert (await Search(store).search("needle")).hits
    with psycopg.connect(dsn) as connection:
        for table in ("branch", "checkpoint", "message"):
            connection.execute(sql.SQL("DELETE FROM turnkeep.{}").format(sql.Identifier(table)))
        connection.execute("UPDATE turnkeep.conversation SET archived_at = now()")
    (hit,) = (await Search(store).search("needle", conversation="c")).hits
    assert hit.archived


async def test_who_may_only_read_finds_what_is_indexed_and_hears_of_the_rest(store: AsyncStore, dsn: str) -> None:
    await say(await store.conversation("a"), "needle")
    assert (await Search(store).search("needle")).hits
    await say(await store.conversation("b"), "needle")
    role = sql.Identifier(f"reader_{uuid.uuid4().hex[:8]}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA turnkeep TO {}").format(role))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA turnkeep TO {}").format(role))
        async with turnkeep.open(make_conninfo(dsn, user=role.as_string(None).strip('"'))) as reading:
            result = await Search(reading).search("needle")
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))
    assert turns(result) == [("a", 0, 0)]
    assert result.not_indexed.text == 1


async def test_what_cannot_be_asked_is_refused_before_anything_happens(store: AsyncStore) -> None:
    search = Search(store)
    for query in ("", "  \n", "a\0b", "\ud800", "x" * 10_001, 7, "...", '""', "&|!"):
        with pytest.raises(InvalidInputError, match="query"):
            await search.search(query)  # type: ignore[arg-type]
    for wrong, named in (
        ({"mode": "fuzzy"}, "mode"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"since": datetime(2026, 1, 1)}, "since"),
        ({"since": "7d"}, "since"),
        ({"since": timedelta.max}, "since"),
        ({"branch": 1}, "branch"),
        ({"metadata": []}, "metadata"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            await search.search("x", **wrong)
    with pytest.raises(NotFoundError):
        await search.search("x", conversation="nowhere")
    await store.conversation("c")
    for number in (7, "name"):
        with pytest.raises(NotFoundError):
            await search.search("x", conversation="c", branch=number)
    with pytest.raises(ConfigurationError, match="no provider"):
        await search.search("x", mode="semantic")
    with pytest.raises(ConfigurationError, match="no provider"):
        await search.similar("c")


OPERATORS = st.lists(
    st.sampled_from([*"-!&|<>()'\"\\:*@%~ \n", "or", "and", "word", "é", "漢字", "-", "--", "%s"]), max_size=60
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.one_of(st.text(max_size=200), OPERATORS.map("".join), OPERATORS.map(" ".join)))
def test_any_text_can_be_searched_for(dsn: str, query: str) -> None:
    import asyncio

    async def look() -> None:
        async with turnkeep.open(dsn) as store:
            try:
                result = await Search(store).search(query)
            except InvalidInputError:
                return
            assert result.hits == ()

    asyncio.run(look())


@pytest.mark.parametrize(
    "query", ["x" * 9_000, "-" * 9_000 + "x", "- " * 4_900 + "x", "or " * 3_000 + "x", "a-" * 4_000]
)
async def test_a_query_of_any_length_is_harmless(store: AsyncStore, query: str) -> None:
    await say(await store.conversation("c"), "x marks the spot")
    await Search(store).search(query + " spot")


OTHERS = """
INSERT INTO turnkeep.document (conversation_id, branch, turn_index, chunk, next_try_at)
SELECT %s, 0, n, 0, turnkeep.clock() - interval '1 hour' + n * interval '1 us' FROM generate_series(1, %s) AS n
"""


async def test_a_backlog_of_others_hides_nothing_of_ones_own(store: AsyncStore, dsn: str) -> None:
    crowd = await store.conversation("crowd")
    await say(await store.tenant("me").conversation("mine"), "needle")
    with psycopg.connect(dsn) as connection:
        connection.execute(OTHERS, (crowd.conversation_id, 10_050))
        connection.execute(
            "UPDATE turnkeep.document SET next_try_at = turnkeep.clock() - interval '2 hours'"
            " WHERE conversation_id <> %s",
            (crowd.conversation_id,),
        )
    result = await Search(store.tenant("me")).search("needle")
    assert turns(result) == [("mine", 0, 0)]
    assert not result.not_indexed
    assert (await Search(store).search("needle")).not_indexed.at_least


async def test_a_server_that_only_reads_is_searched_at_once(store: AsyncStore, dsn: str) -> None:
    await say(await store.conversation("a"), "needle")
    assert (await Search(store).search("needle")).hits
    await say(await store.conversation("b"), "needle")
    async with turnkeep.open(make_conninfo(dsn, options="-c default_transaction_read_only=on")) as reading:
        result = await Search(reading).search("needle")
    assert turns(result) == [("a", 0, 0)]
    assert result.not_indexed.text == 1


async def test_words_of_a_long_query_that_are_not_looked_for_are_said(store: AsyncStore) -> None:
    await say(await store.conversation("a"), "needle")
    result = await Search(store).search(" ".join(f"hay{number}" for number in range(24)) + " needle")
    assert "needle" in result.left_out
    assert any("needle" in note for note in notes(result))
    assert not (await Search(store).search("hay needle")).left_out
