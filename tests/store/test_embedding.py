"""The search's worker beside a real server of embeddings that fails in every way: nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.embedding_client import HttpProvider
from tests.observing import Observer, table_held, until
from tests.wire import Wire
from turnkeep.errors import ConfigurationError, EmbeddingDimensionsError
from turnkeep.search import EmbedWorker
from turnkeep.store._documents import read_dead, read_lag
from turnkeep.testing import EmbeddingServer
from turnkeep.testing.vectors import vector

pytestmark = pytest.mark.pgvector
SOON = timedelta(hours=2)


@pytest.fixture
def embeddings() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running


async def turns(store: turnkeep.AsyncStore, *answers: str, conversation: str = "c") -> None:
    branch = await store.conversation(conversation)
    for answer in answers:
        await branch.begin_turn({"role": "user", "content": "?"})
        await branch.save([{"role": "assistant", "content": answer}], final=True)


def embedded(observer: Observer) -> dict[str, str | None]:
    """The model of each chunk, by its last word."""
    rows = observer.rows("SELECT text, model FROM turnkeep.document WHERE embedding IS NOT NULL OR model IS NULL")
    return {text.split()[-1]: model for text, model in rows if text}


def stored(observer: Observer) -> list[tuple[Any, ...]]:
    return observer.rows(
        "SELECT branch, turn_index, chunk, text, tsv::text, model, embedding::text, next_try_at, tries, error, claim"
        " FROM turnkeep.document ORDER BY conversation_id, branch, turn_index, chunk"
    )


def dead(observer: Observer) -> bool:
    return bool(observer.rows("SELECT 1 FROM turnkeep.document WHERE error IS NOT NULL AND next_try_at IS NULL"))


async def test_turns_are_filled_and_embedded_as_the_server_says(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "the first", "the second")
    done = await EmbedWorker(store, HttpProvider(embeddings)).run(drain=True)
    assert (done.filled, done.embedded, done.failed) == (2, 2, 0)
    for row in stored(observer):
        expected = vector(row[3], 64)
        assert json.loads(row[6])[:64] == pytest.approx(expected, abs=1e-6)
        assert json.loads(row[6])[64:] == [0.0] * (768 - 64)
        assert row[5:6] + row[7:] == (embeddings.model, None, 0, None, None)


async def test_a_worker_without_a_provider_fills_texts_and_one_with_it_does_the_rest(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "two")
    await EmbedWorker(store).run(drain=True)
    assert embedded(observer) == {"one": None, "two": None}
    lag = await read_lag(store, embeddings.model)
    assert (lag.to_fill, lag.to_embed, (await read_lag(store)).to_embed) == (0, 2, 0)
    await EmbedWorker(store, HttpProvider(embeddings)).run(drain=True)
    assert embedded(observer) == {"one": embeddings.model, "two": embeddings.model}


@pytest.mark.parametrize("how", ["refused", "nan", "zero"])
async def test_a_text_that_is_to_blame_is_found_and_holds_no_other_back(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer, how: str
) -> None:
    await turns(store, *(f"number{n}" for n in range(11)), "poison", *(f"number{n}" for n in range(11, 20)))
    embeddings.behave(**{how: ["poison"]})
    done = await EmbedWorker(store, HttpProvider(embeddings)).run(drain=True)
    assert (done.embedded, done.failed) == (20, 1)
    assert {word for word, model in embedded(observer).items() if model is None} == {"poison"}
    assert observer.rows("SELECT count(*), max(tries), count(error) FROM turnkeep.document WHERE model IS NULL") == [
        (1, 1, 1)
    ]
    assert len(embeddings.requests) < 20


async def test_a_server_that_stumbles_over_one_text_with_500_is_found_out_too(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "poison", "three")
    embeddings.behave(refused=["poison"], refused_status=500)
    done = await EmbedWorker(store, HttpProvider(embeddings)).run(drain=True)
    assert (done.embedded, done.failed) == (2, 1)


async def test_a_text_that_always_fails_is_a_dead_letter_with_its_reason_until_it_is_asked_for(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer, advance: Callable[[timedelta], None]
) -> None:
    await turns(store, "fine", "poison")
    embeddings.behave(refused=["poison"])
    worker = EmbedWorker(store, HttpProvider(embeddings), most_tries=3)
    for number in range(1, 4):
        await worker.run(drain=True)
        assert (await worker.run(drain=True)).failed == 0, "it is not tried again at once"
        advance(SOON * number)
    (letter,) = await read_dead(store)
    assert (letter.turn_index, letter.tries) == (1, 3)
    assert "the input is not acceptable" in letter.error
    assert (await read_lag(store, embeddings.model)).dead_embeddings == 1
    # Nor does another model make it one that is tried.
    await EmbedWorker(store, HttpProvider(embeddings, "another")).run(drain=True)
    assert [row[5] for row in stored(observer)] == ["another", None]
    embeddings.behave(refused=[])
    assert await worker.retry_dead() == 1
    await worker.run(drain=True)
    assert (await read_lag(store, embeddings.model)).dead_embeddings == 0
    assert embedded(observer) == {"fine": embeddings.model, "poison": embeddings.model}


@pytest.mark.parametrize("how", [{"status": 503}, {"status": 500}, {"status": 400}, {"status": 429, "retry_after": 3}])
async def test_a_server_that_takes_nothing_burns_no_tries(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer, how: dict[str, Any]
) -> None:
    await turns(store, "one", "two", "three")
    embeddings.behave(**how)
    worker = EmbedWorker(store, HttpProvider(embeddings))
    await worker.run_once()
    rows = observer.rows("SELECT tries, error, claim, next_try_at > now() FROM turnkeep.document")
    assert rows == [(0, None, None, True)] * 3
    asked = len(embeddings.requests)
    assert not await worker.run_once()
    assert len(embeddings.requests) == asked, "it rests"


async def test_a_server_that_was_away_is_waited_for(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "two")
    embeddings.kill()
    worker = EmbedWorker(store, HttpProvider(embeddings), poll_seconds=0.05)
    running = asyncio.create_task(worker.run())
    await until(lambda: stored(observer)[0][3] is not None and not embedded(observer).get("one"), "the texts")
    embeddings.start()
    await until(lambda: set(embedded(observer).values()) == {embeddings.model}, "the embeddings")
    worker.stop()
    assert (await running).embedded == 2


async def test_a_text_that_silences_the_server_is_found_out_and_others_get_through(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "killer", "three")
    embeddings.behave(silencing=["killer"])
    worker = EmbedWorker(store, HttpProvider(embeddings), most_tries=2, first_delay=0.1, poll_seconds=0.05)
    running = asyncio.create_task(worker.run())
    await until(lambda: dead(observer), "the dead letter")
    await until(lambda: list(embedded(observer).values()).count(embeddings.model) == 2, "the others")
    worker.stop()
    await running
    assert embedded(observer)["killer"] is None


async def test_vectors_that_are_too_long_stop_the_worker_with_both_numbers_and_no_dead_letters(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "two")
    embeddings.behave(dimensions=1024)
    with pytest.raises(EmbeddingDimensionsError, match=r"1024.*768.*--dimensions 1024") as caught:
        await EmbedWorker(store, HttpProvider(embeddings)).run()
    assert (caught.value.have, caught.value.column) == (1024, 768)
    assert (
        observer.rows("SELECT tries, error, claim, next_try_at <= now() FROM turnkeep.document")
        == [(0, None, None, True)] * 2
    )


async def test_a_wrong_key_stops_the_worker(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one")
    embeddings.behave(status=401)
    with pytest.raises(ConfigurationError):
        await EmbedWorker(store, HttpProvider(embeddings)).run()
    assert observer.rows("SELECT tries, claim FROM turnkeep.document") == [(0, None)]


async def test_another_model_embeds_everything_anew_in_the_background(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, *(f"number{n}" for n in range(30)))
    await EmbedWorker(store, HttpProvider(embeddings, "old")).run(drain=True)
    done = await EmbedWorker(store, HttpProvider(embeddings, "new"), batch=7).run(drain=True)
    assert (done.requeued, done.embedded) == (30, 30)
    assert set(embedded(observer).values()) == {"new"}
    assert (await EmbedWorker(store, HttpProvider(embeddings, "new")).run(drain=True)).embedded == 0


async def test_several_workers_do_nothing_twice(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, *(f"number{n}" for n in range(60)))
    workers = [EmbedWorker(one, HttpProvider(embeddings), batch=5) for one in (store, other, store, other)]
    done = await asyncio.gather(*(worker.run(drain=True) for worker in workers))
    assert sum(one.filled for one in done) == 60
    assert sum(one.embedded for one in done) == 60
    texts = [text for request in embeddings.requests for text in request]
    assert sorted(texts) == sorted(f"?\n\nnumber{n}" for n in range(60))


async def test_told_to_stop_a_worker_hands_back_what_it_has_claimed(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "two")
    embeddings.behave(held=True)
    worker = EmbedWorker(store, HttpProvider(embeddings))
    running = asyncio.create_task(worker.run())
    await until(lambda: embeddings.waiting == 1, "the request")
    assert observer.rows("SELECT count(claim) FROM turnkeep.document") == [(2,)]
    worker.stop()
    await running
    assert observer.rows("SELECT count(claim), max(tries) FROM turnkeep.document WHERE next_try_at <= now()") == [
        (0, 0)
    ]
    embeddings.behave(held=False)
    assert (await EmbedWorker(other, HttpProvider(embeddings)).run(drain=True)).embedded == 2


async def test_a_zombie_writes_nothing_back(
    store: turnkeep.AsyncStore,
    other: turnkeep.AsyncStore,
    observer: Observer,
    embeddings: EmbeddingServer,
    advance: Callable[[timedelta], None],
) -> None:
    await turns(store, "one")
    embeddings.behave(held=True)
    zombie = asyncio.create_task(EmbedWorker(store, HttpProvider(embeddings, "zombie")).run_once())
    await until(lambda: embeddings.waiting == 1, "the request")
    advance(SOON)
    with EmbeddingServer() as second:
        assert (await EmbedWorker(other, HttpProvider(second, "heir")).run(drain=True)).embedded == 1
    embeddings.behave(held=False)
    assert (await zombie).embedded == 0
    assert embedded(observer) == {"one": "heir"}


async def test_a_conversation_that_is_erased_meanwhile_leaves_nothing(
    store: turnkeep.AsyncStore, other: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one")
    embeddings.behave(held=True)
    running = asyncio.create_task(EmbedWorker(store, HttpProvider(embeddings)).run_once())
    await until(lambda: embeddings.waiting == 1, "the request")
    await other.erase("c")
    embeddings.behave(held=False)
    assert (await running).embedded == 0
    assert observer.counts()["document"] == 0


async def test_a_database_that_does_not_answer_is_waited_for(
    store: turnkeep.AsyncStore,
    dsn: str,
    observer: Observer,
    embeddings: EmbeddingServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await turns(store, "one")
    async with turnkeep.open(dsn, timeout=0.5) as impatient:
        worker = EmbedWorker(impatient, HttpProvider(embeddings), poll_seconds=0.05)
        with table_held(dsn, "turnkeep.document", "ACCESS EXCLUSIVE"):
            running = asyncio.create_task(worker.run())
            await until(lambda: caplog.text.count("no documents can be made") >= 2, "two vain tries")
        await until(lambda: embedded(observer) == {"one": embeddings.model}, "the embedding")
        worker.stop()
        assert (await running).embedded == 1


async def test_a_column_that_has_changed_is_found_out(
    store: turnkeep.AsyncStore, dsn: str, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP VIEW turnkeep.agent_checkpoints, turnkeep.all_checkpoints")
        connection.execute("ALTER TABLE turnkeep.document ALTER COLUMN embedding TYPE public.vector(100)")
        connection.execute(
            "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('turnkeep.embedded_v1'::regproc),"
            " 'vector(768)', 'vector(100)'); END $$"
        )
    worker = EmbedWorker(store, HttpProvider(embeddings), poll_seconds=0.05)
    running = asyncio.create_task(worker.run())
    await until(lambda: embedded(observer) == {"one": embeddings.model}, "the embedding")
    worker.stop()
    await running


async def test_answers_that_are_lost_leave_nothing_undone_or_done_twice(
    store: turnkeep.AsyncStore,
    dsn: str,
    observer: Observer,
    embeddings: EmbeddingServer,
    advance: Callable[[timedelta], None],
) -> None:
    await turns(store, *(f"number{n}" for n in range(12)))
    for words in (b"UPDATE", b"SELECT"):
        wire = Wire(dsn, words)
        async with wire as cut, turnkeep.open(cut, pool_size=1) as far:
            worker = EmbedWorker(far, HttpProvider(embeddings), batch=2)
            for _ in range(12):
                wire.cut_next = True
                await worker.run_once()
            assert wire.cuts > 5
        advance(SOON)
    await EmbedWorker(store, HttpProvider(embeddings)).run(drain=True)
    rows = observer.rows("SELECT text, model, claim, next_try_at, error FROM turnkeep.document ORDER BY turn_index")
    assert rows == [(f"?\n\nnumber{n}", embeddings.model, None, None, None) for n in range(12)]


async def test_a_text_that_is_always_one_too_many_counts_at_last(
    store: turnkeep.AsyncStore, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "poison", "three")
    embeddings.behave(refused=["poison"], refused_status=429)
    async with asyncio.timeout(60):
        done = await EmbedWorker(store, HttpProvider(embeddings), first_delay=3600, poll_seconds=0.05).run(drain=True)
    assert done.embedded == 2
    assert observer.rows("SELECT tries FROM turnkeep.document WHERE error IS NOT NULL") == [(1,)]
