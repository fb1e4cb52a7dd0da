"""`turnkeep embed` as a process, and `turnkeep worker` beside it: what was said is found."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnkeep
from tests.acceptance.agent_processes import Running, app_in
from tests.acceptance.command_line import PATIENCE, PLAIN, lines, on_terminal, run
from tests.observing import Observer, until
from turnkeep.testing import EmbeddingServer, Exchange, ModelServer, Reply

pytestmark = pytest.mark.pgvector


@pytest.fixture
def embeddings() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running


def to(embeddings: EmbeddingServer) -> dict[str, str]:
    """The environment that names a server."""
    return {"TURNKEEP_EMBEDDINGS": embeddings.base_url, "TURNKEEP_EMBEDDINGS_MODEL": embeddings.model}


async def turns(store: turnkeep.AsyncStore, *texts: str) -> None:
    branch = await store.conversation("c")
    for text in texts:
        await branch.begin_turn({"role": "user", "content": text})
        await branch.save([{"role": "assistant", "content": "ok"}], final=True)


async def test_texts_alone_then_embeddings_then_nothing(
    store: turnkeep.AsyncStore, dsn: str, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one", "two")
    alone = run("embed", "--once", dsn=dsn)
    assert (alone.code, alone.out) == (0, "2 turns read, 0 embeddings made.\n")
    (made,) = lines(run("embed", "--once", "--json", dsn=dsn, **to(embeddings)))
    assert made == {
        "filled": 0, "embedded": 2, "requeued": 2, "failed": 0, "retried": 0,
        "to_fill": 0, "to_embed": 0, "dead_letters": 0, "archived": 0,
    }  # fmt: skip
    again = run("embed", "--once", "--embeddings", embeddings.base_url, "--model", embeddings.model, dsn=dsn)
    assert again.out == "0 turns read, 0 embeddings made.\n"


async def test_on_a_terminal_there_is_a_bar(store: turnkeep.AsyncStore, dsn: str, embeddings: EmbeddingServer) -> None:
    await turns(store, "one")
    shown = on_terminal("embed", "--once", dsn=dsn, **to(embeddings))
    assert "embedded" in shown
    assert "1 turn read, 1 embedding made." in shown


async def test_what_was_given_up_is_said_and_tried_again_when_that_is_asked_for(
    store: turnkeep.AsyncStore, dsn: str, observer: Observer, embeddings: EmbeddingServer
) -> None:
    await turns(store, "poison", "fine")
    embeddings.behave(refused=["poison"])
    assert (
        "Left, and tried again later: 0 to read, 1 to embed." in run("embed", "--once", dsn=dsn, **to(embeddings)).err
    )
    observer.rows("UPDATE turnkeep.document SET tries = 7, next_try_at = now() WHERE error IS NOT NULL RETURNING 1")
    given_up = run("embed", "--once", dsn=dsn, **to(embeddings))
    assert "1 dead letter: `turnkeep embed --retry-failed` tries them again." in given_up.err
    embeddings.behave(refused=[])
    (made,) = lines(run("embed", "--once", "--retry-failed", "--json", dsn=dsn, **to(embeddings)))
    assert (made["retried"], made["embedded"], made["dead_letters"]) == (1, 1, 0)


async def test_what_can_not_be_is_said_in_words(
    store: turnkeep.AsyncStore, dsn: str, embeddings: EmbeddingServer
) -> None:
    await turns(store, "one")
    embeddings.behave(dimensions=1024)
    refused = run("embed", "--once", dsn=dsn, **to(embeddings))
    assert refused.code == 2
    assert "1024 dimensions, and the column of embeddings has 768" in refused.err
    embeddings.behave(dimensions=64, status=401)
    assert run("embed", "--once", dsn=dsn, **to(embeddings)).code == 2
    embeddings.kill()
    away = run("embed", "--once", dsn=dsn, **to(embeddings))
    assert away.code == 1
    assert "can't be reached" in away.err
    assert run("embed", "--include", "everything", dsn=dsn).code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_hands_back_what_it_has(
    store: turnkeep.AsyncStore,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    observer: Observer,
    embeddings: EmbeddingServer,
    number: int,
) -> None:
    for name, value in to(embeddings).items():
        monkeypatch.setitem(PLAIN, name, value)
    await turns(store, "one")
    embeddings.behave(held=True)
    working = Running(tmp_path, "embed", dsn=dsn)
    try:
        await until(lambda: embeddings.waiting == 1, "a request")
        working.process.send_signal(number)
        await working.says("everything is handed back")
        assert working.process.wait(PATIENCE) == 0
    finally:
        working.kill()
    assert observer.rows("SELECT count(claim) FROM turnkeep.document WHERE next_try_at <= now()") == [(0,)]


async def test_a_worker_of_agents_makes_documents_too(
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    observer: Observer,
    embeddings: EmbeddingServer,
) -> None:
    for name, value in to(embeddings).items():
        monkeypatch.setitem(PLAIN, name, value)

    def done() -> bool:
        rows = observer.rows("SELECT text, model FROM turnkeep.document")
        return rows == [("hello\n\nHello!", embeddings.model)]

    with (
        ModelServer([Exchange("hello", [Reply("Hello!")])]) as model,
        app_in(tmp_path, model.base_url, monkeypatch) as place,
    ):
        working = Running(place, "worker", "app:support", dsn=dsn)
        try:
            assert run("post", "c", "hello", "--agent", "support", "--wait", dsn=dsn).code == 0
            await until(done, "the document")
        finally:
            working.kill()


async def test_a_worker_of_agents_goes_on_without_documents_where_they_can_not_be_made(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embeddings: EmbeddingServer
) -> None:
    embeddings.behave(dimensions=1024)
    with (
        ModelServer([Exchange("*", [Reply("Hello!")])]) as model,
        app_in(tmp_path, model.base_url, monkeypatch) as place,
    ):
        for name, value in to(embeddings).items():
            monkeypatch.setitem(PLAIN, name, value)
        working = Running(place, "worker", "app:support", dsn=dsn)
        try:
            assert run("post", "c", "one", "--agent", "support", "--wait", dsn=dsn).code == 0
            await working.says("no more documents are made for the search")
            assert run("post", "c", "two", "--agent", "support", "--wait", dsn=dsn).code == 0
        finally:
            working.kill()
