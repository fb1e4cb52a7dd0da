"""Documents: the text of each turn that has ended, filled once, whatever made its list, and nothing of what is gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer, gate
from turnkeep.search import fill_documents
from turnkeep.search.chunks import MOST_CHUNKS
from turnkeep.store._documents import Documents, read_dead, read_lag


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def turn(branch: turnkeep.AsyncBranch, question: str, answer: str) -> None:
    await branch.begin_turn(user(question))
    await branch.save([assistant(answer)], final=True)


def texts(observer: Observer) -> list[tuple[Any, ...]]:
    return observer.rows(
        "SELECT branch, turn_index, chunk, text FROM turnkeep.document"
        " ORDER BY conversation_id, branch, turn_index, chunk"
    )


def found(observer: Observer, query: str) -> list[tuple[int, int]]:
    """Where a query finds something: (turn, chunk)."""
    return observer.rows(
        "SELECT turn_index, chunk FROM turnkeep.document WHERE tsv @@ turnkeep.words_wanted(%s) ORDER BY 1, 2", query
    )


async def test_a_turn_is_filled_with_what_it_has_added(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    await turn(branch, "one?", "1")
    await branch.begin_turn(user("two?"))
    await branch.save([assistant("let me look")], tool_calls=[{"id": "x"}])
    await branch.save([{"role": "tool", "content": "secret"}], tool_results=[{"id": "x"}])
    await branch.save([assistant("2")], final=True)
    report = await fill_documents(store)
    assert (report.filled, report.failed, report.left) == (2, 0, 0)
    assert texts(observer) == [(0, 0, 0, "one?\n\n1"), (0, 1, 0, "two?\n\nlet me look\n\n2")]
    ended = observer.rows("SELECT created_at FROM turnkeep.checkpoint WHERE phase = 'final' ORDER BY 1")
    assert observer.rows("SELECT created_at FROM turnkeep.document ORDER BY 1") == ended
    assert (await fill_documents(store)).filled == 0


async def test_tool_results_are_searched_where_that_is_asked_for(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(user("?"))
    await branch.save([{"role": "tool", "content": "needle"}], final=True)
    await fill_documents(store, include=["tool"])
    assert texts(observer) == [(0, 0, 0, "needle")]


async def test_a_turn_without_words_is_done_and_not_tried_again(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "tool", "content": "only a result"})
    await branch.save([], final=True)
    await fill_documents(store, model="m")
    assert observer.rows("SELECT text, next_try_at, claim, error FROM turnkeep.document") == [("", None, None, None)]


async def test_a_fork_has_the_words_of_its_own_turn_only(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    await turn(branch, "zero?", "0")
    await branch.begin_turn(user("one?"))
    await branch.save([assistant("first try")], final=True)
    fork = await store.fork("c", at=(1, 0))
    await fork.save([assistant("second try")], final=True)
    await turn(fork, "two?", "2")
    copy = await store.fork("c", into="copy", branch=0, at=(1, 1))
    await turn(copy, "three?", "3")
    await fill_documents(store)
    rows = observer.rows(
        "SELECT branch, turn_index, text FROM turnkeep.document ORDER BY conversation_id = %s, branch, turn_index",
        copy.conversation_id,
    )
    history = [(0, 0, "zero?\n\n0"), (0, 1, "one?\n\nfirst try")]
    assert rows == [
        *history,
        (1, 1, "one?\n\nsecond try"),
        (1, 2, "two?\n\n2"),
        *history,
        (0, 2, "three?\n\n3"),
    ]


async def test_a_list_that_is_shortened_gives_only_what_is_new(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    kept: list[dict[str, Any]] = []
    for n in range(3):
        kept += [user(f"question {n}"), assistant(f"answer {n}")]
        await branch.save_all(kept, final=True)
    kept = [user("summary of it all"), *kept[-2:], user("question 3"), assistant("answer 3")]
    await branch.save_all(kept, final=True)
    await fill_documents(store)
    assert texts(observer)[-1] == (0, 3, 0, "summary of it all\n\nquestion 3\n\nanswer 3")
    assert [text for *_, text in texts(observer)][:3] == [f"question {n}\n\nanswer {n}" for n in range(3)]


async def test_a_list_written_once_more_because_it_was_in_too_many_pieces_gives_only_what_is_new(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    messages = [user(f"message {n}") for n in range(600)]
    await branch.save_all(messages, final=True)
    await branch.save_all([*messages[::2], assistant("every other one")], final=True)
    spans = observer.rows("SELECT cardinality(spans) FROM turnkeep.checkpoint WHERE turn_index = 1 AND sub_step = 0")
    assert spans == [(3,)], "it is to have been gathered"
    await fill_documents(store)
    assert [row for row in texts(observer) if row[1] == 1] == [(0, 1, 0, "every other one")]


async def test_a_plain_row_is_filled_as_any_other(store: turnkeep.AsyncStore, observer: Observer) -> None:
    conversation = uuid.uuid4()
    for number, messages in enumerate(([user("a?"), assistant("b")], [user("a?"), assistant("b"), user("c?")])):
        observer.rows(
            "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages, phase)"
            " VALUES (%s, %s, %s, 'final') RETURNING 1",
            conversation, number, json.dumps(messages),
        )  # fmt: skip
    await fill_documents(store)
    assert texts(observer) == [(0, 0, 0, "a?\n\nb"), (0, 1, 0, "c?")]


async def test_sixty_thousand_different_words_are_saved_and_found(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    words = [hashlib.md5(str(n).encode()).hexdigest() for n in range(60_000)]
    branch = await store.conversation("c")
    await turn(branch, " ".join(words), "fine")
    await turn(branch, "the next one", "is found as well")
    report = await fill_documents(store)
    assert (report.filled, report.failed) == (2, 0)
    assert found(observer, words[10]) == [(0, 0)]
    assert found(observer, "next") == [(1, 0)]
    chunks = observer.rows("SELECT count(*), max(left_out) FROM turnkeep.document WHERE turn_index = 0")[0]
    assert chunks[0] == MOST_CHUNKS
    assert 0 < chunks[1] < 60_000 * 33, "what is left out is said"


@pytest.mark.parametrize("text", ["x" * 1_000_000, "漢" * 1_000_000, "é" * 300_000, "a\0b \ud800 c"])
async def test_no_text_is_too_long_or_too_strange(store: turnkeep.AsyncStore, observer: Observer, text: str) -> None:
    branch = await store.conversation("c")
    await turn(branch, text, "done")
    assert (await fill_documents(store)).failed == 0
    assert observer.rows("SELECT count(*) FROM turnkeep.document WHERE text IS NULL") == [(0,)]


async def test_messages_of_sixty_megabytes_are_read_one_by_one_and_only_as_far_as_is_searched(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn(user("word " * 12_000_000))
    await branch.save([user("never " * 2_000_000)])
    await branch.save([assistant("the answer")], final=True)
    assert (await fill_documents(store)).filled == 1
    count, left_out = observer.rows("SELECT count(*), max(left_out) FROM turnkeep.document")[0]
    assert count == MOST_CHUNKS
    assert left_out > 60_000_000
    assert found(observer, "never") == []


async def test_words_of_any_language_are_found(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    said = [
        "The cats were running",
        "Die Häuser am Fluss",
        "東京都の天気はどうですか",
        "วันนี้อากาศดีมาก",
        "오늘 서울의 날씨",
    ]
    for text in said:
        await turn(branch, text, "")
    await fill_documents(store)
    finds = {
        "cat": [0], "cats": [0], "run the": [0], '"cats were"': [0], "Häuser": [1], "fluss": [1], "haus": [],
        "天気": [2], "京都の": [2], "気天": [], "อากาศ": [3], "서울": [4], "cat -running": [], "cat or Häuser": [0, 1],
        "": [],
    }  # fmt: skip
    for query, turns in finds.items():
        assert [turn_index for turn_index, _ in found(observer, query)] == turns, query


async def test_parts_of_paths_addresses_and_names_are_found(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    said = [
        "see src/turnkeep/foo_bar.py:17, then run it",
        "it is at https://example.com/docs/abc?page=2#top.",
        "ask bob@example.com or @alice",
        "cat /etc/hosts ./notes.txt C:\\Users\\me",
        "my-module.sub_part = 3.14; wi-fi, v1.2.3 --dry-run",
    ]
    for text in said:
        await turn(branch, text, "")
    await fill_documents(store)
    finds = {
        "foo_bar.py": [0], "foo_bar": [0], "turnkeep/foo_bar.py": [0], "src/turnkeep/foo_bar.py": [0], "bar": [0],
        "foo_bar.py:17": [0], '"see src/turnkeep"': [0], '"foo_bar.py:17, then"': [0], "bar.foo": [],
        "see -foo_bar.py": [],
        "docs/abc": [1], "/docs/abc": [1], "https://example.com/docs/abc?page=2": [1], "example.com": [1, 2],
        "example.com -docs/abc": [2], "bob": [2], "bob@example.com": [2], "alice": [2], "@alice": [2],
        "/etc/hosts": [3], "hosts": [3], "notes.txt": [3], "notes": [3], "me or alice": [2, 3], "Users\\me": [3],
        "my-module": [4], "module": [4], "sub_part": [4], "3.14": [4], "wi-fi": [4], "v1.2": [4], "dry-run": [4],
    }  # fmt: skip
    for query, turns in finds.items():
        assert [turn_index for turn_index, _ in found(observer, query)] == turns, query


# -- what goes meanwhile


@asynccontextmanager
async def off_the_loop(obstacle: AbstractContextManager[None]) -> AsyncIterator[None]:
    """An obstacle whose removal waits for others, who go on meanwhile."""
    obstacle.__enter__()
    try:
        yield
    finally:
        await asyncio.to_thread(obstacle.__exit__, None, None, None)


async def test_a_branch_deleted_while_it_is_filled_leaves_nothing(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, dsn: str, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await turn(branch, "zero?", "0")
    await fill_documents(store)
    fork = await store.fork("c", at=(0, 0))
    await fork.save([assistant("word " * 2000)], final=True)
    async with off_the_loop(gate(dsn, "turnkeep.document", "INSERT")):
        filling = asyncio.create_task(fill_documents(store))
        await observer.see_waiting(1)
        deleting = asyncio.create_task(other.delete_branch("c", fork.branch))
        await observer.see_waiting(2)
    await asyncio.gather(filling, deleting)
    await fill_documents(store)
    assert {branch for branch, *_ in texts(observer)} == {0}


async def test_a_conversation_erased_while_it_is_filled_leaves_nothing(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, dsn: str, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await turn(branch, "canary " * 2000, "0")
    async with off_the_loop(gate(dsn, "turnkeep.document", "INSERT")):
        filling = asyncio.create_task(fill_documents(store))
        await observer.see_waiting(1)
        erasing = asyncio.create_task(other.erase("c"))
        await observer.see_waiting(2)
    await asyncio.gather(filling, erasing)
    assert observer.traces([branch.conversation_id], "canary") == {}


async def test_a_turn_whose_branch_is_not_there_waits_for_nothing(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    branch = await store.conversation("c")
    await turn(branch, "one?", "1")
    observer.rows("DELETE FROM turnkeep.branch RETURNING 1")
    observer.rows("DELETE FROM turnkeep.checkpoint RETURNING 1")
    observer.rows("DELETE FROM turnkeep.message RETURNING 1")
    report = await fill_documents(store)
    assert (report.left, texts(observer)) == (0, [(0, 0, 0, None)])


async def test_of_a_conversation_that_is_named_only_its_own_are_filled(
    store: turnkeep.AsyncStore, observer: Observer
) -> None:
    for name in ("a", "b"):
        for number in range(3):
            await turn(await store.conversation(name), f"{name} {number}", "")
    report = await fill_documents(store, 2, conversation="b")
    assert (report.filled, report.left) == (2, 1)
    assert sorted(text for *_, text in texts(observer) if text) == ["b 0", "b 1"]


async def test_a_turn_whose_messages_are_missing_is_a_dead_letter_in_the_end(
    store: turnkeep.AsyncStore, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    await turn(await store.conversation("c"), "one?", "1")
    await turn(await store.conversation("d"), "fine", "")
    observer.rows("DELETE FROM turnkeep.message WHERE body::text LIKE '%%one?%%' RETURNING 1")
    for number in range(1, 9):
        report = await fill_documents(store)
        assert (report.filled, report.failed) == (number == 1, 1)
        advance(timedelta(hours=2 * number))
    assert (await fill_documents(store)).failed == 0
    (letter,) = await read_dead(store)
    assert "not there" in letter.error
    assert (await read_lag(store)).dead_texts == 1


async def test_what_a_worker_that_died_has_claimed_is_taken_up_one_by_one(
    store: turnkeep.AsyncStore, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    branch = await store.conversation("c")
    for number in range(3):
        await turn(branch, f"{number}", "")
    assert len(await Documents(store).claim_fill(10, 60.0)) == 3
    assert (await fill_documents(store)).filled == 0, "somebody is at them"
    advance(timedelta(minutes=2))
    assert [(await fill_documents(store)).filled for _ in range(4)] == [1, 1, 1, 0]


async def test_what_no_worker_survives_is_given_up(
    store: turnkeep.AsyncStore, observer: Observer, advance: Callable[[timedelta], None]
) -> None:
    await turn(await store.conversation("c"), "one?", "1")
    documents = Documents(store)
    assert await documents.claim_fill(1, 60.0)
    for number in range(1, 8):
        advance(timedelta(minutes=2 * number))
        assert await documents.claim_fill(1, 60.0, lapsed=True)
    advance(timedelta(minutes=20))
    assert (await fill_documents(store)).failed == 1
    assert (await fill_documents(store)).left == 0
    assert "8 workers have not come to an end" in (await read_dead(store))[0].error
