"""Values that have no exact text, are too large or too deep, and ids of every kind: refused by name, or kept whole."""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import random
import uuid
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer
from turnkeep import AsyncBranch, AsyncStore

USER = {"role": "user", "content": "go"}


async def opened(store: AsyncStore) -> AsyncBranch:
    """A turn whose tool has run: what comes now must not lose that."""
    branch = await store.conversation("c")
    await branch.begin_turn(USER, state={"n": 1})
    await branch.save([{"role": "assistant", "content": None}], tool_calls=[{"id": "c1", "name": "f"}])
    return branch


async def check_refused(branch: AsyncBranch, dsn: str, value: object, path: str, reason: str) -> None:
    """A value is refused by its path in a message, a result and a state, and nothing was written or is stuck."""
    with Observer(dsn) as observer:
        before = observer.counts(), observer.heads()
        for arguments, start in (
            ({"messages": [value]}, "messages[0]"),
            ({"messages": [USER], "tool_results": [value], "answers": branch.pending}, "tool_results[0]"),
            ({"messages": [USER], "state": value}, "state"),
        ):
            with pytest.raises(turnkeep.UnstorableError) as caught:
                await branch.save(**arguments)
            assert caught.value.path.startswith(start + path), caught.value
            assert reason in caught.value.reason
        assert (observer.counts(), observer.heads()) == before
    error = {"tool_call_id": "c1", "content": f"the result can't be stored: {caught.value}"}
    await branch.save([error], tool_results=[error], final=True)


@pytest.mark.parametrize(("key", "number"), [("age", "nan"), ("max", "inf"), ("min", "-inf")])
async def test_num_nonfinite_is_refused_by_its_path_before_any_side_effect(
    store: AsyncStore, dsn: str, key: str, number: str
) -> None:
    value = {"role": "tool", "content": [{"type": "json", "json": {"row": {key: float(number)}}}]}
    path = f'["content"][0]["json"]["row"]["{key}"]'
    await check_refused(await opened(store), dsn, value, path, "use None or a str instead")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Plan:
    steps: int = 1


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (b"\xff\xfe\x00", "base64"),
        (datetime.datetime(2026, 1, 1), ".isoformat()"),
        (decimal.Decimal("1.10"), "str()"),
        ({1, 2}, "a list"),
        (Colour.RED, ".value"),
        (Plan(), "dataclasses.asdict"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_binary_content_is_refused_by_its_path_with_the_remedy(
    store: AsyncStore, dsn: str, value: object, remedy: str
) -> None:
    await check_refused(await opened(store), dsn, {"role": "tool", "content": value}, '["content"]', remedy)


async def test_deep_nesting_is_refused_on_writing_and_what_is_stored_can_be_read(store: AsyncStore, dsn: str) -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    branch = await opened(store)
    await branch.save([nested(500)], state=nested(500))
    async with turnkeep.open(dsn) as restarted:
        restored = await restarted.restore("c")
    assert restored.messages[-1] == restored.state == nested(500)
    await check_refused(branch, dsn, nested(1_100), '["a"]["a"]', "deeper than 500 levels")


async def test_size_huge_message_is_refused_with_size_and_limit_and_its_call_can_be_answered(
    store: AsyncStore, dsn: str
) -> None:
    branch = await opened(store)
    huge = {"role": "tool", "tool_call_id": "c1", "content": "x" * 270_000_000}
    await check_refused(branch, dsn, huge, "", "67,108,864 bytes")
    assert (await store.restore("c")).pending == ()


LONG = random.Random(7).randbytes(1_600).hex()


async def test_index_row_size_ids_in_content_may_have_any_length(store: AsyncStore) -> None:
    call = {"id": LONG, "name": LONG, "metadata": {LONG: LONG}, "tags": [LONG]}
    branch = await store.conversation("c")
    await branch.begin_turn({"role": "user", "id": LONG, "content": LONG}, state={LONG: LONG})
    await branch.save([{"id": LONG}], tool_calls=[call])
    await branch.save([{"tool_call_id": LONG}], tool_results=[{"tool_call_id": LONG}], final=True)
    restored = await store.restore("c")
    assert restored.pending == ()
    assert restored.state == {LONG: LONG}


async def test_index_row_size_names_of_ours_state_their_limit_and_work_up_to_it(store: AsyncStore, dsn: str) -> None:
    branch = await store.conversation(LONG[:1000], agent_id=LONG[:255])
    await branch.begin_turn(USER, key=LONG[:500])
    assert (await branch.begin_turn(USER, key=LONG[:500])).repeated
    assert (await store.fork(LONG[:1000], name=LONG[:255])).branch == 1
    refusals = (
        (lambda: store.conversation(LONG), "conversation: 3200 characters; 1 to 1000"),
        (lambda: store.conversation("d", agent_id=LONG), "agent_id: 3200 characters; 1 to 255"),
        (lambda: branch.begin_turn(USER, key=LONG), "key: 3200 characters; 1 to 500"),
        (lambda: store.post(LONG[:1000], USER, key=LONG), "key: 3200 characters; 1 to 500"),
        (lambda: store.fork(LONG[:1000], name=LONG), "name: 3200 characters; 1 to "),
    )
    with Observer(dsn) as observer:
        before = observer.counts()
        for refused, reason in refusals:
            with pytest.raises(turnkeep.InvalidInputError, match=reason):
                await refused()
        assert observer.counts() == before


async def test_index_tsvector_limit_many_different_words_are_saved_and_so_is_what_follows(store: AsyncStore) -> None:
    words = " ".join(hashlib.md5(str(number).encode()).hexdigest() for number in range(60_000))
    branch = await store.conversation("c")
    for text in (words, "and another"):
        await branch.begin_turn(USER)
        await branch.save([{"role": "tool", "content": text}], final=True)
    assert [m["content"] for m in (await store.restore("c")).messages[1::2]] == [words, "and another"]


IDS = ["thread_abc", "-1002129157442", " ", "a/b?c", "\u00dcn\u00ef-\u2713", "x" * 300, str(uuid.uuid4()).upper()]


async def test_uuid_type_any_text_but_none_is_an_id_as_it_is_written(store: AsyncStore, dsn: str) -> None:
    for text in IDS:
        await (await store.conversation(text)).begin_turn({"role": "user", "content": text})
    assert {summary.external_id for summary in await store.conversations()} == set(IDS)
    for text in IDS:
        assert (await store.restore(text)).messages[0]["content"] == text
        with pytest.raises(turnkeep.NotFoundError):
            await store.restore(text + "'")
    with pytest.raises(turnkeep.InvalidInputError, match="0 characters"):
        await store.conversation("")
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT external_id FROM turnkeep.conversation").fetchall()
    assert {text for (text,) in rows} == set(IDS)
