"""Rows inserted at the same time as others, or as what others do to the conversation: each waits, then sees."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, transaction
from tests.store.plain_sql import connect
from turnkeep import AsyncStore

ID = uuid.UUID(int=7)
USER = {"role": "user", "content": "weather?"}
ANSWER = {"role": "assistant", "content": "It is sunny."}
INSERT = (
    "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages) VALUES (%s, %s, %s)"
    " RETURNING id, sub_step"
)


def insert(dsn: str, turn: int, messages: list[Any]) -> Any:
    with connect(dsn) as connection:
        return connection.execute(INSERT, (ID, turn, json.dumps(messages))).fetchone()


def turn_of(code: str) -> Any:
    return pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == code)


@pytest.mark.parametrize("there", [False, True], ids=["a new conversation", "one that is there"])
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
async def test_of_two_rows_for_one_place_the_first_is_stored(
    dsn: str, observer: Observer, there: bool, same: bool
) -> None:
    if there:
        insert(dsn, 0, [USER])
    turn = 1 if there else 0
    with transaction(dsn) as holder:
        first = holder.execute(INSERT, (ID, turn, json.dumps([USER, USER]))).fetchone()
        second = asyncio.create_task(asyncio.to_thread(insert, dsn, turn, [USER, USER if same else ANSWER]))
        await observer.see_waiting(1)
        holder.commit()
        if same:
            assert await second == first
        else:
            assert (await second)[1] == 1  # the turn is open now: the row is its next one, with the list it says
    counts = observer.counts()
    assert counts["conversation"] == 1
    assert counts["checkpoint"] == (2 if there else 0) + (1 if same else 2)


async def test_of_two_rows_that_name_their_place_the_second_is_refused(dsn: str, observer: Observer) -> None:
    insert(dsn, 0, [USER])
    named = INSERT.replace("turn_index,", "turn_index, sub_step,").replace("VALUES (%s, %s,", "VALUES (%s, %s, 1,")

    def other() -> None:
        with connect(dsn) as connection:
            connection.execute(named.encode(), (ID, 0, json.dumps([USER, USER])))

    with transaction(dsn) as holder:
        holder.execute(named.encode(), (ID, 0, json.dumps([USER, ANSWER])))
        second = asyncio.create_task(asyncio.to_thread(other))
        await observer.see_waiting(1)
        holder.commit()
        with turn_of("TK004"):
            await second
    assert observer.counts()["checkpoint"] == 2


async def test_a_row_takes_the_place_of_one_that_was_rolled_back(dsn: str, observer: Observer) -> None:
    with transaction(dsn) as holder:
        holder.execute(INSERT, (ID, 0, json.dumps([USER])))
        second = asyncio.create_task(asyncio.to_thread(insert, dsn, 0, [ANSWER]))
        await observer.see_waiting(1)
        holder.rollback()
        assert (await second)[1] == 0
    assert observer.rows("SELECT body FROM turnkeep.message") == [(ANSWER,)]


async def test_a_save_behind_a_row_finds_that_the_head_has_moved(
    store: AsyncStore, dsn: str, observer: Observer
) -> None:
    branch = await store.conversation(ID)
    await branch.begin_turn(USER)
    with transaction(dsn) as holder:
        holder.execute(INSERT, (ID, 0, json.dumps([USER, USER])))
        save = asyncio.create_task(branch.save([ANSWER]))
        await observer.see_waiting(1)
        holder.commit()
        with pytest.raises(turnkeep.ConflictError):
            await save
    assert (await branch.refresh()).messages == [USER, USER]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("SELECT turnkeep.claim_v1(%s, 0, 'me', 5, 60, false)", "55P03"),
        ("SELECT turnkeep.end_v1(%s)", "TK003"),
        ("SELECT turnkeep.erase_v1(%s)", "P0002"),
    ],
    ids=["claim", "end", "erase"],
)
async def test_a_row_waits_for_what_is_done_to_its_conversation(
    dsn: str, observer: Observer, what: str, code: str
) -> None:
    insert(dsn, 0, [USER])
    with transaction(dsn) as holder:
        holder.execute(what.encode(), (ID,))
        row = asyncio.create_task(asyncio.to_thread(insert, dsn, 0, [USER, ANSWER]))
        await observer.see_waiting(1)
        holder.commit()
        with turn_of(code):
            await row
    counts = observer.counts()
    assert counts.pop("migration") > 0
    if code == "P0002":
        assert set(counts.values()) == {0}
    else:
        assert counts["checkpoint"] == 1
