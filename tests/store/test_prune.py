"""What pruning removes, what it never does, and how what is left goes on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import turnkeep
from tests.observing import Observer, branches_held
from turnkeep import AsyncBranch, AsyncStore, InvalidInputError, NotFoundError, Pruned

MONTH = timedelta(days=30)
CALL = {"id": "1", "name": "look"}
RESULT = {"tool_call_id": "1"}
Advance = Callable[[timedelta], None]


async def turn(branch: AsyncBranch, number: int, *, key: str | None = None) -> None:
    """A turn of four sub-steps."""
    await branch.begin_turn({"role": "user", "content": number}, key=key)
    await branch.save([{"role": "assistant", "n": number}], tool_calls=[CALL], state={"turn": number})
    await branch.save([{"role": "tool", "n": number}], tool_results=[RESULT])
    await branch.save([{"role": "assistant", "content": f"answer {number}"}], final=True)


async def conversation(store: AsyncStore, turns: int = 4) -> AsyncBranch:
    branch = await store.conversation("c")
    for number in range(turns):
        await turn(branch, number)
    return branch


def fill(dsn: str) -> None:
    """Make all documents, as the worker would."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE turnkeep.document SET text = 'text', next_try_at = NULL")


async def places(store: AsyncStore, branch: int | None = None) -> list[tuple[int, int]]:
    return [(one.turn_index, one.sub_step) for one in reversed(await store.history("c", branch=branch, limit=1000))]


async def test_the_end_of_each_turn_stays_or_only_the_head(dsn: str, store: AsyncStore, advance: Advance) -> None:
    await conversation(store)
    fill(dsn)
    before = await store.restore("c")
    advance(2 * MONTH)
    assert await store.prune("c", older_than=MONTH, dry_run=True) == await store.prune("c", older_than=MONTH)
    assert await places(store) == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert (await store.restore("c", at=(1, 3))).messages == before.messages[:8]
    pruned = await store.prune("c", keep="heads", older_than=MONTH)
    assert (pruned.checkpoints, pruned.messages, pruned.documents) == (3, 0, 0)
    assert await places(store) == [(3, 3)]
    after = await store.restore("c")
    assert (after.message_texts, after.state_text, after.parent) == (before.message_texts, before.state_text, (3, 2, 0))


async def test_what_is_young_stays_with_all_it_is_compared_with(store: AsyncStore, advance: Advance, dsn: str) -> None:
    branch = await conversation(store)
    fill(dsn)
    advance(2 * MONTH)
    await branch.begin_turn({"role": "user"})
    pruned = await store.prune("c", keep="heads", older_than=MONTH)
    assert pruned.checkpoints == 15
    assert await places(store) == [(3, 3), (4, 0)]  # the one that the new turn has gone on from
    await branch.save([], final=True)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).checkpoints == 0


async def test_messages_that_only_pruned_checkpoints_held_go_with_their_documents(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    branch = await conversation(store)
    await branch.begin_turn({"role": "user", "content": "more"})
    await branch.save_all([{"summary": "of all"}, *branch.messages[-2:]], final=True)
    fill(dsn)
    advance(2 * MONTH)
    before = branch.messages
    pruned = await store.prune("c", keep="heads", older_than=MONTH)
    assert (pruned.messages, pruned.documents) == (15, 3)  # of turn 3 the answer stays
    assert observer.rows("SELECT turn_index FROM turnkeep.document ORDER BY 1") == [(3,), (4,)]
    assert observer.counts()["message"] == len(before) == 3
    assert (await store.restore("c")).messages == before


async def test_documents_that_are_not_made_yet_hold_back_what_they_are_made_of(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    await conversation(store)
    fill(dsn)
    observer.rows(
        "UPDATE turnkeep.document SET text = NULL, next_try_at = now() WHERE turn_index = 1 RETURNING turn_index"
    )
    advance(2 * MONTH)
    looked = await store.prune("c", keep="heads", older_than=MONTH, dry_run=True)
    pruned = await store.prune("c", keep="heads", older_than=MONTH)
    assert (pruned.held_back, pruned.checkpoints) == (looked.held_back, looked.checkpoints) == (2, 13)
    assert await places(store) == [(0, 3), (1, 3), (3, 3)]  # a turn's messages are those that the turn before lacks
    fill(dsn)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).checkpoints == 2


async def test_pending_calls_are_the_same_before_and_after(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    branch = await conversation(store, 2)
    await branch.begin_turn({"role": "user"})
    await branch.save([], tool_calls=[CALL, {"id": "2", "name": "b"}])
    await branch.mark_started(branch.pending)
    await branch.save([{"r": 1}], tool_results=[RESULT])
    fork = await store.fork("c", at=(2, 2), name="side")
    await store.fork("c", at=(2, 1), into="copy")
    await fork.save([], tool_calls=[{"id": "3", "name": "c"}])
    await branch.save([], tool_results=[{"tool_call_id": "2"}], final=True)
    fill(dsn)
    advance(2 * MONTH)

    async def pending() -> list[Any]:
        handles = [await store.conversation("c", branch=n) for n in (0, 1)] + [await store.conversation("copy")]
        rows = observer.rows("SELECT * FROM turnkeep.pending_calls ORDER BY conversation_id, branch, sub_step, index")
        return [[handle.pending for handle in handles], rows, (await store.restore("c", at=(2, 2))).pending]

    before = await pending()
    assert [len(one) for one in before[0]] == [0, 3, 2]
    total = await store.prune_all(keep="heads", older_than=MONTH)
    assert total.conversations == 2
    assert await pending() == before
    # The fork's turn with all it inherits of it, and the end of what the other made of the same turn.
    assert await places(store) == [(2, 0), (2, 1), (2, 2), (2, 4)]
    assert await places(store, 1) == [(2, 0), (2, 1), (2, 2), (2, 3)]


async def test_replies_and_keys_are_found_as_before(dsn: str, store: AsyncStore, advance: Advance) -> None:
    branch = await store.conversation("c", agent_id="a")
    await store.post("c", "hello", key="posted")
    await branch.take_request()
    await branch.save([{"role": "assistant", "content": "hi"}], final=True)
    await turn(branch, 1, key="begun")
    await turn(branch, 2)
    await store.post("c", "are you there?", key="waits")
    fill(dsn)
    advance(2 * MONTH)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).checkpoints == 7
    assert (await store.wait_reply("c", "posted")).content == "hi"
    again = await branch.begin_turn({"role": "user", "content": 1}, key="begun")
    assert (again.repeated, again.turn_index, again.sub_step, again.final) == (True, 1, 3, True)
    taken = await branch.take_request()
    assert taken is not None
    assert taken.turn_index == 3


async def test_a_write_is_known_again_though_its_parent_is_gone(dsn: str, store: AsyncStore, advance: Advance) -> None:
    branch = await conversation(store)
    write_id, whole_id, other = uuid.uuid4(), uuid.uuid4(), [{"role": "assistant", "content": "other"}]
    await branch.begin_turn({"role": "user"})
    answer = [{"role": "assistant", "content": "the answer"}]
    await branch.save(answer, final=True, write_id=write_id)
    side = await store.fork("c", name="side")
    whole = [{"summary": 1}, *side.messages[-1:]]
    await side.save_all(whole, tool_calls=[CALL], tool_results=[RESULT], final=True, write_id=whole_id)
    fill(dsn)
    advance(2 * MONTH)
    await store.prune("c", keep="heads", older_than=MONTH)
    assert await places(store) == [(4, 1)]
    again = await (await store.conversation("c")).save(answer, final=True, write_id=write_id)
    assert (again.turn_index, again.sub_step, again.repeated) == (4, 1, True)
    with pytest.raises(turnkeep.KeyReusedError):
        await (await store.conversation("c")).save(other, final=True, write_id=write_id)
    side = await store.conversation("c", branch="side")
    again = await side.save_all(whole, tool_calls=[CALL], tool_results=[RESULT], final=True, write_id=whole_id)
    assert (again.turn_index, again.sub_step, again.repeated) == (5, 1, True)
    with pytest.raises(turnkeep.KeyReusedError):
        await side.save_all(other, tool_calls=[CALL], tool_results=[RESULT], final=True, write_id=whole_id)


async def test_plain_sql_writers_find_their_rows_again(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    insert = (
        "INSERT INTO turnkeep.agent_checkpoints (conversation_id, turn_index, messages, phase, parent_turn_id)"
        " VALUES (%s, %s, %s, %s, %s) RETURNING id, parent_turn_id"
    )
    one = uuid.uuid4()
    first, second, third = '[{"a": 1}]', '[{"a": 1}, {"b": 2}]', '[{"a": 1}, {"b": 2}, {"c": 3}]'
    ((opened, _),) = observer.rows(insert, one, 0, first, "input", None)
    ((ended, _),) = observer.rows(insert, one, 0, second, "final", opened)
    fill(dsn)
    advance(2 * MONTH)
    await store.prune(one, keep="heads", older_than=MONTH)
    assert observer.rows(insert, one, 0, second, "final", opened) == [(ended, None)]
    assert observer.rows(insert, one, 0, None, "final", None) == [(ended, None)]
    ((_, parent),) = observer.rows(insert, one, 1, third, "input", ended)
    assert parent == ended
    assert observer.rows("SELECT parent_turn_id FROM turnkeep.all_checkpoints WHERE turn_index = 0") == [(None,)]


async def test_a_place_that_was_pruned_says_so(dsn: str, store: AsyncStore, advance: Advance) -> None:
    await conversation(store)
    fill(dsn)
    advance(2 * MONTH)
    await store.prune("c", older_than=MONTH)
    with pytest.raises(NotFoundError, match=r"checkpoint at 1\.2: it has been pruned"):
        await store.restore("c", at=(1, 2))
    with pytest.raises(NotFoundError, match=r"at 1\.2 to fork at: it has been pruned"):
        await store.fork("c", at=(1, 2))
    for never in ((1, 9), (9, 0), (-1, 0)):
        with pytest.raises(NotFoundError, match=r"checkpoint at -?\d\.\d$"):
            await store.restore("c", at=never)
    await store.prune("c", keep="heads", older_than=MONTH)
    with pytest.raises(NotFoundError, match=r"at 1\.0: it has been pruned"):
        await store.restore("c", at=(1, 0))
    with pytest.raises(NotFoundError, match=r"at 1\.2: it never was, or has been pruned"):
        await store.restore("c", at=(1, 2))


async def test_what_is_left_can_be_forked_copied_and_gone_on_with(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    branch = await conversation(store)
    await branch.begin_turn({"role": "user"})
    await branch.save_all([branch.messages[0], {"summary": 1}, *branch.messages[-3:]], final=True)
    before = branch.messages
    fill(dsn)
    advance(2 * MONTH)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).messages > 0
    copy = await store.fork("c", into="copy")
    assert copy.messages == before
    for handle in (branch, copy, await store.fork("c"), await store.fork("c", at=(4, 1))):
        await turn(handle, 5)
        assert (await store.restore(handle.conversation_id, branch=handle.branch)).messages[: len(before)] == before
    assert len(await store.history("copy")) == 5


async def test_rows_that_a_scattered_list_left_behind_go(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance
) -> None:
    branch = await store.conversation("c")
    await branch.begin_turn([{"n": n} for n in range(800)])
    await branch.save_all(branch.messages[::3])  # more pieces than a checkpoint names: written once more
    assert observer.counts()["message"] > 1000
    await branch.save_all([{"n": "short"}], final=True)
    fill(dsn)
    advance(2 * MONTH)
    assert (await store.prune("c", keep="heads", older_than=MONTH)).messages > 1000
    assert observer.counts()["message"] == 1


async def test_large_conversations_are_pruned_in_steps(
    dsn: str, store: AsyncStore, observer: Observer, advance: Advance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnkeep.store import _async_prune

    branch = await conversation(store, 12)
    side = await store.fork("c", at=(5, 1))
    await turn_end(side)
    await branch.begin_turn({"role": "user"})
    await branch.save_all([{"summary": 1}], final=True)
    fill(dsn)
    advance(2 * MONTH)
    for name in ("_FIRST_ROWS", "_LEAST_ROWS", "_MOST_ROWS"):
        monkeypatch.setattr(_async_prune, name, 3)
    looked = await store.prune("c", keep="heads", older_than=MONTH, dry_run=True)
    pruned = await store.prune("c", keep="heads", older_than=MONTH)
    assert (looked.checkpoints, looked.messages, looked.bytes) == (pruned.checkpoints, pruned.messages, pruned.bytes)
    assert pruned.messages == 48 - 22 + 1  # what the fork holds stays
    assert await places(store) == [(5, 0), (5, 1), (12, 1)]
    assert await places(store, 1) == [(5, 0), (5, 1), (5, 2)]


async def turn_end(branch: AsyncBranch) -> None:
    await branch.save([], tool_results=[RESULT], final=True)


async def test_a_branch_that_somebody_holds_is_left_alone_and_that_is_said(
    dsn: str, store: AsyncStore, advance: Advance
) -> None:
    branch = await conversation(store)
    advance(2 * MONTH)
    with branches_held(dsn, branch.conversation_id):
        assert await store.prune("c", older_than=MONTH) == Pruned(conversations=1, busy=1)
    assert (await store.prune("c", older_than=MONTH)).checkpoints == 12


async def test_only_those_that_fit_are_pruned_and_progress_is_told(store: AsyncStore, advance: Advance) -> None:
    for name, agent, tags in (("c", "a", ["x"]), ("d", "b", []), ("e", "a", [])):
        await turn(await store.conversation(name, agent_id=agent, tags=tags), 0)
    advance(2 * MONTH)
    await store.conversation("new", agent_id="a")
    told: list[Any] = []
    total = await store.prune_all(older_than=MONTH, agent_id="a", tags=["x"], progress=lambda *how: told.append(how))
    assert (total.conversations, total.checkpoints) == (1, 3)
    assert told == [(1, 1, total)]
    assert (await store.prune_all(older_than=MONTH, dry_run=True)).checkpoints == 6
    assert (await store.prune_all(older_than=MONTH)).checkpoints == 6
    assert (await store.prune_all(older_than=MONTH)).checkpoints == 0


async def test_one_tenant_prunes_its_own(store: AsyncStore, advance: Advance) -> None:
    for view in (store.tenant("one"), store.tenant("other"), store):
        await turn(await view.conversation("c"), 0)
    advance(2 * MONTH)
    assert (await store.tenant("one").prune_all(older_than=MONTH)).conversations == 1
    assert (await store.prune_all(older_than=MONTH)).checkpoints == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keep": "all", "older_than": MONTH}, "keep: 'all'"),
        ({"older_than": 30}, "older_than: expected a timedelta"),
        ({"older_than": timedelta(minutes=59)}, "at least an hour"),
        ({"older_than": timedelta(days=-1)}, "at least an hour"),
    ],
)
async def test_what_can_not_be_meant_is_refused(store: AsyncStore, wrong: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        await store.prune("nobody", **wrong)
    with pytest.raises(InvalidInputError, match=said):
        await store.prune_all(**wrong)


async def test_no_conversation_is_not_found(store: AsyncStore) -> None:
    for dry_run in (True, False):
        with pytest.raises(NotFoundError):
            await store.prune("nobody", older_than=MONTH, dry_run=dry_run)
    await store.conversation("empty")
    assert await store.prune("empty", older_than=MONTH) == Pruned(conversations=1)
