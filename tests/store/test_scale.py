"""Much of everything: many turns, many forks, deep forks, large messages. What is asserted is work, never time."""

from __future__ import annotations

import asyncio
import uuid

import psycopg

import turnkeep
from tests.observing import Observer
from tests.store.plain_model import PlainStore
from tests.store.plain_records import PlainBranch, PlainConversation, PlainHandle, Write
from turnkeep import AsyncStore

SAID = {"role": "user", "content": "hello"}
SAID_TEXT = '{"role":"user","content":"hello"}'
TURNS = 10_000

# What a client sends, turn after turn, each save in a transaction of its own.
TALK = """
DO $$
DECLARE
    v_turn int;
    v_sub_step int := 0;
BEGIN
    FOR turn IN {first}..{last} LOOP
        SELECT s.turn_index INTO v_turn FROM turnkeep.save_v1('{own}', 0, turn - 1, v_sub_step, 0, 0, gen_random_uuid(),
            false, 'input', NULL, 1, '{said}') AS s;
        COMMIT;
        PERFORM FROM turnkeep.save_v1('{own}', 0, turn, 0, 0, 0, gen_random_uuid(), false, 'final', NULL, 1, '{said}');
        COMMIT;
        v_sub_step := 1;
    END LOOP;
END $$
"""


def buffers_of_a_save(dsn: str, own: uuid.UUID, turn: int) -> int:
    """How many pages a save at a turn's beginning touches. Nothing of it is kept."""
    query = (
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM turnkeep.save_v1(%s, 0, %s, 1, 0, 0,"
        " gen_random_uuid(), false, 'input', NULL, 1, %s)"
    )
    with psycopg.connect(dsn) as connection:
        for _ in range(2):  # the first time also reads the catalogue
            (row,) = connection.execute(query, (own, turn, SAID_TEXT)).fetchall()
            connection.rollback()
        plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_save_at_turn_10000_touches_what_one_at_turn_10_touches(dsn: str, store: AsyncStore) -> None:
    short, long = await store.conversation("short"), await store.conversation("long")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for branch, last in ((short, 10), (long, TURNS)):
            talk = TALK.format(own=branch.conversation_id, first=0, last=last, said=SAID_TEXT)
            connection.execute(talk.encode())
        connection.execute("VACUUM ANALYZE")
    early = min(buffers_of_a_save(dsn, short.conversation_id, 10) for _ in range(5))
    late = min(buffers_of_a_save(dsn, long.conversation_id, TURNS) for _ in range(5))
    assert abs(late - early) <= 5, (early, late)
    restored = await store.restore("long")
    assert (restored.turn_index, len(restored.message_texts)) == (TURNS, 2 * TURNS + 2)
    with Observer(dsn) as observer:
        spans = observer.rows(
            "SELECT max(cardinality(spans)) FROM turnkeep.checkpoint WHERE conversation_id = %s", long.conversation_id
        )
    assert spans == [(3,)]


async def test_a_message_of_60_megabytes_is_one_like_others(store: AsyncStore, observer: Observer) -> None:
    large = {"role": "tool", "content": "0123456789" * 6_000_000}
    branch = await store.conversation("c")
    await branch.begin_turn(SAID)
    await branch.save([large])
    restored = await store.restore("c")
    assert restored.messages == [SAID, large]
    again = await store.conversation("c")
    assert (await again.save_all([SAID, large])).repeated
    assert (await again.save_all([{"summary": 1}, large, SAID], final=True)).sub_step == 2
    assert observer.rows("SELECT count(*), max(size) FROM turnkeep.message") == [(3, 60_000_028)]
    (shown,) = observer.rows(
        "SELECT messages FROM turnkeep.agent_checkpoints ORDER BY turn_index DESC, created_at DESC LIMIT 1"
    )
    assert [list(message) for message in shown[0]] == [["summary"], ["turnkeep_unrepresentable"], ["role", "content"]]
    assert "60000028 bytes" in shown[0][1]["turnkeep_unrepresentable"]


async def test_a_thousand_forks_at_once_copy_nothing(store: AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    for _ in range(3):
        await branch.begin_turn(SAID)
        await branch.save([SAID], final=True)

    async def go_on(number: int) -> None:
        fork = await store.fork("c", at=(number % 3, number % 2))
        message = {"content": fork.branch}
        await (fork.save([message]) if fork.turn_open else fork.begin_turn(message))

    await asyncio.gather(*map(go_on, range(1000)))
    listed = await store.branches("c")
    assert [one.branch for one in listed] == [*range(1001)]
    assert observer.rows("SELECT count(*) FROM turnkeep.message") == [(6 + 1000,)]
    for summary in listed[1:]:
        assert summary.parent is not None
        restored = await store.restore("c", branch=summary.branch)
        _, turn, sub_step = summary.parent
        assert restored.messages == [*[SAID] * (2 * turn + sub_step + 1), {"content": summary.branch}]


async def test_a_chain_of_600_forks_has_lists_of_few_pieces(store: AsyncStore, observer: Observer) -> None:
    own = turnkeep.conversation_uuid("c")
    plain = PlainStore()
    plain.conversations[own] = PlainConversation(own, "c", branches={0: PlainBranch(0, "main")})
    handle: PlainHandle = plain.handle(own, None, None)
    branch = await store.conversation("c")
    await branch.begin_turn(SAID)
    plain.begin_turn(handle, Write((SAID_TEXT,)), None)
    for number in range(1, 601):
        branch = await store.fork("c", branch=number - 1)
        handle = plain.handle(own, plain.fork(own, number - 1, None, None, uuid.uuid4()), None)
        await branch.save([{"n": number}])
        plain.save(handle, Write((f'{{"n":{number}}}',)))
    rows = dict(observer.rows("SELECT branch, count(*) FROM turnkeep.message GROUP BY branch"))
    assert rows == {number: one.stored for number, one in plain.conversations[own].branches.items()}
    assert sum(rows.values()) < 601 + 3 * 601  # each gathering writes the list once, and the next one is 256 forks off
    assert observer.rows("SELECT max(cardinality(spans)) / 3 FROM turnkeep.checkpoint") == [(256,)]
    for number in (0, 1, 255, 256, 257, 512, 600):
        head = plain.conversations[own].branches[number].head
        assert head is not None
        assert (await store.restore("c", branch=number)).message_texts == tuple(head.texts)
    assert len(await store.history("c", branch=600, limit=1000)) == 601
