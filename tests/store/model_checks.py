"""Whether the store says what the plain model says, and holds no row more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import turnkeep
from tests.observing import Observer
from tests.store.model_moves import World, same, text_of
from tests.store.plain_records import PlainBranch, PlainCall, PlainConversation, Snapshot
from turnkeep import AsyncStore


async def check(world: World, observer: Observer) -> None:
    """See that everything is as the model says."""
    for conversation in world.plain.conversations.values():
        for store in world.stores:
            await _check_branches(store, conversation)
        for branch in conversation.branches.values():
            await _check_history(world.stores, conversation, branch)
        await _check_views(observer, conversation)
        _check_rows(observer, conversation)
    await _check_lists(world)
    gone = {*world.erased} - {*world.plain.conversations} - world.plain.origins
    same(observer.traces(gone), {})
    for handle in world.handles:
        real, plain = handle.real, handle.plain
        same((real.turn_index, real.sub_step), plain.place)
        same(real.messages, [json.loads(text) for text in plain.texts])
        same(list(map(_said, real.pending)), _pending(plain.pending, plain.conversation, plain.branch))
        same(real.state, json.loads(plain.seen.state) if plain.seen and plain.seen.state else None)


def _said(call: turnkeep.PendingCall) -> tuple[Any, ...]:
    return (*call.place, call.conversation_id, call.branch, call.attempts, call.uncertain, text_of(call.call))


def _pending(calls: Sequence[PlainCall], conversation: Any, branch: int) -> list[tuple[Any, ...]]:
    """Calls as a branch sees them: those that others have issued are uncertain."""
    own = (conversation, branch)
    return [
        (*call.place, *issuer, call.attempts, call.copied or issuer != own, call.text)
        for call in calls
        for issuer in [(call.conversation, call.branch)]
    ]


async def _check_branches(store: AsyncStore, conversation: PlainConversation) -> None:
    same(
        [
            (b.branch, b.name, b.status, (b.turn_index, b.sub_step), b.parent, b.current)
            for b in await store.branches(conversation.name)
        ],
        [
            (
                b.number,
                b.name,
                b.status,
                b.head.place if b.head else (-1, 0),
                b.parent,
                b.number == conversation.current,
            )
            for _, b in sorted(conversation.branches.items())
        ],
    )
    said = await store.describe(conversation.name)
    same((said.conversation_id, said.external_id, said.agent_id, said.parent), (
        conversation.id, conversation.name, conversation.agent, conversation.parent,
    ))  # fmt: skip
    same((said.title, said.tags, said.metadata, said.version), (
        conversation.title, conversation.tags, conversation.metadata, conversation.version,
    ))  # fmt: skip
    same((said.current_branch, said.ended_at is not None), (conversation.current, conversation.ended))


async def _check_history(stores: Sequence[AsyncStore], conversation: PlainConversation, branch: PlainBranch) -> None:
    snapshots = [branch.history[place] for place in sorted(branch.history, reverse=True)]
    if not snapshots:
        for store in stores:
            same((await store.restore(conversation.name, branch=branch.number)).messages, [])
    listed = await stores[0].history(conversation.name, branch=branch.number, limit=1000)
    same(
        [
            (
                one.branch,
                (one.turn_index, one.sub_step),
                one.phase,
                one.agent_id,
                one.messages,
                one.tool_calls,
                one.tool_results,
            )
            for one in listed
        ],
        [
            (
                one.branch,
                one.place,
                one.write.kind,
                one.agent,
                len(one.rows),
                len(one.write.calls),
                len(one.write.results),
            )
            for one in snapshots
        ],
    )
    for index, snapshot in enumerate(snapshots):
        for store in stores if index == 0 else [stores[index % 2]]:
            at = None if index == 0 and store is stores[0] else snapshot.place
            restored = await store.restore(conversation.name, branch=branch.number, at=at)
            _check_checkpoint(restored, snapshot, conversation, branch)


def _check_checkpoint(
    restored: turnkeep.Checkpoint, snapshot: Snapshot, conversation: PlainConversation, branch: PlainBranch
) -> None:
    same(restored.message_texts, tuple(snapshot.texts))
    same(restored.state_text, snapshot.state)
    same(_elements(restored.tool_calls_text), snapshot.write.calls)
    same(_elements(restored.tool_results_text), snapshot.write.results)
    same((restored.branch, restored.branch_name, restored.status), (branch.number, branch.name, branch.status))
    same((restored.turn_index, restored.sub_step, restored.phase), (*snapshot.place, snapshot.write.kind))
    parent = snapshot.parent
    same(restored.parent, (*parent.place, parent.branch) if parent else None)
    assert snapshot.write.write_id in (None, restored.write_id)
    pending = _pending(snapshot.pending, conversation.id, branch.number) if snapshot.open else []
    same(list(map(_said, restored.pending)), pending)


def _elements(text: str | None) -> tuple[str, ...]:
    """The texts of a list's elements, which are all written in the same way."""
    return () if text is None else tuple(map(text_of, json.loads(text)))


async def _check_views(observer: Observer, conversation: PlainConversation) -> None:
    query = (
        "SELECT branch, turn_index, sub_step, id, parent_turn_id, phase, agent_id, messages, tool_calls,"
        " tool_results, state FROM turnkeep.{} WHERE conversation_id = %s ORDER BY branch, turn_index, sub_step"
    )
    rows = observer.rows(query.format("all_checkpoints"), conversation.id)
    own = {(s.branch, *s.place): s for branch in conversation.branches.values() for s in branch.own}
    same([row[:3] for row in rows], sorted(own))
    ids = {row[:3]: row[3] for row in rows}
    for row in rows:
        snapshot = own[row[:3]]
        parent = snapshot.parent
        same(row[4:7], (
            ids.get((parent.branch, *parent.place)) if parent else None, snapshot.write.kind, snapshot.agent,
        ))  # fmt: skip
        same(row[7], list(map(_shown, snapshot.texts)))
        same(row[8], list(map(_shown, snapshot.write.calls)) or None)
        same(row[9], list(map(_shown, snapshot.write.results)) or None)
        state = {} if snapshot.state is None else _shown(snapshot.state)
        same(row[10], {**state, "sub_step": snapshot.sub_step} if isinstance(state, dict) else state)
    current = conversation.branches[conversation.current]
    rows = observer.rows(query.format("agent_checkpoints"), conversation.id)
    same(sorted(row[:3] for row in rows), sorted((s.branch, *s.place) for s in current.history.values()))


class _Any:
    """Stands for whatever is said of what can't be shown."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    __hash__ = None  # type: ignore[assignment]


def _shown(text: str) -> Any:
    return {"turnkeep_unrepresentable": _Any()} if r"\u0000" in text else json.loads(text)


def _check_rows(observer: Observer, conversation: PlainConversation) -> None:
    """Nothing is stored twice (G8)."""
    rows = observer.rows(
        "SELECT branch, count(*)::int FROM turnkeep.message WHERE conversation_id = %s GROUP BY branch", conversation.id
    )
    stored = {b.number: b.stored - len(b.pruned) for b in conversation.branches.values()}
    same(dict(rows), {number: count for number, count in stored.items() if count})
    documents = observer.rows(
        "SELECT branch, turn_index, text IS NOT NULL FROM turnkeep.document WHERE conversation_id = %s", conversation.id
    )
    same({(branch, turn): filled for branch, turn, filled in documents}, conversation.documents)
    (pieces,) = observer.rows(
        "SELECT coalesce(max(cardinality(spans)), 0) / 3 FROM turnkeep.checkpoint WHERE conversation_id = %s",
        conversation.id,
    )
    assert pieces[0] <= 256


async def _check_lists(world: World) -> None:
    everything = list(world.plain.conversations.values())
    statuses = {one.branches[one.current].status for one in everything}
    filters: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda one: True),
        ({"agent_id": "a"}, lambda one: one.agent == "a"),
        ({"tags": ["x"]}, lambda one: "x" in one.tags),
        ({"tags": ["x", "y"]}, lambda one: {"x", "y"} <= {*one.tags}),
        ({"metadata": {"m": 1}}, lambda one: one.metadata.get("m") == 1),
        *(({"parent": one.name}, lambda other, one=one: other.parent == one.id) for one in everything[:2]),
        *(({"status": s}, lambda one, s=s: one.branches[one.current].status == s) for s in sorted(statuses)),
    ]
    for number, (given, wanted) in enumerate(filters):
        listed = await world.stores[number % 2].conversations(**given, limit=1000)
        same({one.conversation_id for one in listed}, {one.id for one in everything if wanted(one)})
        same(len(listed), len({one.conversation_id for one in listed}))
