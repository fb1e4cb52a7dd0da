"""What may be done with a store, made up from a seed, and done to the plain model as well."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

import turnkeep
from tests.store import plain_pruning
from tests.store.model_edits import EDITS
from tests.store.plain_model import PlainStore
from tests.store.plain_records import PlainBranch, PlainConversation, PlainHandle, Write
from turnkeep import UNCHANGED, AsyncBranch, AsyncStore, RawJSON

Move = Callable[["World", random.Random], Coroutine[Any, Any, None]]
MOVES: dict[str, Move] = {}

KEYS = ("k1", "k2", "k3")
NAMES = ("left", "right", "ü")
MOST_HANDLES = 8


def text_of(value: object) -> str:
    return value.text if isinstance(value, RawJSON) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def same(actual: object, expected: object) -> None:
    assert actual == expected, f"the store: {actual}\nthe model: {expected}"


def doing(action: Callable[..., None], *arguments: Any) -> Callable[[], bool]:
    """An action of the model that gives nothing, as one that gives something."""

    def do() -> bool:
        action(*arguments)
        return True

    return do


def move(times: int) -> Callable[[Move], Move]:
    """Make a function one of the moves, that many times as likely as others."""

    def known(function: Move) -> Move:
        MOVES.update({f"{function.__name__} {number}": function for number in range(times)})
        return function

    return known


@dataclass
class Handle:
    real: AsyncBranch
    plain: PlainHandle


@dataclass(frozen=True)
class Written:
    """A write that was made, and can be made again."""

    conversation: uuid.UUID
    branch: int
    kind: str
    write: Write
    key: str | None = None
    calls: tuple[turnkeep.PendingCall, ...] = ()


@dataclass
class World:
    """Two stores that see one tenant, and the model of what is in them."""

    tenant: str
    stores: tuple[AsyncStore, AsyncStore]
    plain: PlainStore = field(default_factory=PlainStore)
    handles: list[Handle] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    forked: list[tuple[Any, ...]] = field(default_factory=list)
    erased: list[uuid.UUID] = field(default_factory=list)
    count: int = 0

    @classmethod
    def of(cls, one: AsyncStore, other: AsyncStore) -> World:
        """A world of its own in a database where others may have been."""
        tenant = str(uuid.uuid4())
        if isinstance(one, AsyncStore):
            return cls(tenant, (one.tenant(tenant), other.tenant(tenant)))
        return cls(
            tenant,
            (type(one)(one.inner.tenant(tenant), one.threads), type(other)(other.inner.tenant(tenant), other.threads)),
        )

    async def move(self, name: str, seed: int) -> None:
        await MOVES[name](self, random.Random(seed))

    def store(self, rng: random.Random) -> AsyncStore:
        return rng.choice(self.stores)

    async def both(self, real: Awaitable[Any], plain: Callable[[], Any]) -> Any:
        """Do something to both, and see that it comes to the same. None where it is refused."""
        expected: Any
        refused: type[Exception] | None = None
        try:
            expected = plain()
        except turnkeep.TurnkeepError as error:
            expected = refused = type(error)
        said: Any = None
        try:
            actual = await real
        except turnkeep.TurnkeepError as error:
            actual, said = type(error), error
        if refused is not None or said is not None:
            assert actual is refused, f"the store: {actual} {said}\nthe model: {expected}"
            return None
        if isinstance(expected, turnkeep.Saved | turnkeep.Erased) or expected is None:
            same(actual, expected)
        return (actual, expected)

    # -- what to do it with

    def conversation(self, rng: random.Random) -> PlainConversation | None:
        return rng.choice(list(self.plain.conversations.values())) if self.plain.conversations else None

    async def handle(self, rng: random.Random) -> Handle:
        """One of the handles there are, which may be a stale one; mostly one of the last."""
        if not self.handles:
            await fresh(self, rng)
        if not self.handles:
            await new(self, rng)
        return self.handles[-1] if rng.random() < 0.5 else rng.choice(self.handles)

    async def hold(
        self, store: AsyncStore, conversation: PlainConversation, branch: int | None, agent: str | None
    ) -> None:
        outcome = await self.both(
            store.conversation(conversation.name, branch=branch, agent_id=agent),
            lambda: self.plain.handle(conversation.id, branch, agent),
        )
        if outcome is not None:
            self.handles = [*self.handles[-MOST_HANDLES:], Handle(*outcome)]

    def forget_handles(self, conversation: uuid.UUID) -> None:
        """Drop those of a conversation that was erased: one that is made again looks the same to them."""
        self.handles = [one for one in self.handles if one.plain.conversation != conversation]

    def message(self, rng: random.Random) -> Any:
        self.count += 1
        number = self.count
        return rng.choice([
            {"role": "user", "content": f"m{number}"},
            {"role": "user", "content": f"m{number}"},
            {"content": "yes"}, {"a": 1, "b": [2]}, {"b": [2], "a": 1}, RawJSON('{ "a" : 1,  "b":[2] }'),
            {"v": 1}, {"v": 1.0}, {"v": True}, RawJSON('{"v":1e2}'), RawJSON('{"v":100.0}'),
            RawJSON(f'{{"n":{number},"n":{number}}}'), {"nul": f"\0{number}"}, {"\U0001f642": "é\u2028" * (number % 7)},
            {"long": f"{number}" * 3000}, {},
        ])  # fmt: skip

    def messages(self, rng: random.Random, least: int, most: int) -> list[Any]:
        return [self.message(rng) for _ in range(rng.randint(least, most))]

    def state(self, rng: random.Random) -> Any:
        return rng.choice([UNCHANGED, UNCHANGED, {"step": rng.randrange(3)}, [1, None], 7, {"nul": "\0"}, None])

    def rest(self, rng: random.Random, handle: Handle) -> dict[str, Any]:
        """The arguments of a save beside its messages."""
        calls = [{"id": rng.choice("xyz"), "name": "look"} for _ in range(rng.choice([0, 0, 0, 1, 1, 2]))]
        pending = [json.loads(call.text)["id"] for call in handle.plain.pending]
        answered = [one for one in pending if rng.random() < 0.6] if pending else []
        if rng.random() < 0.04:
            answered.append("nobody")
        rng.shuffle(answered)
        return {
            "tool_calls": calls or rng.choice([None, []]),
            "tool_results": [{"tool_call_id": one, "n": rng.randrange(9)} for one in answered] or None,
            "state": self.state(rng),
            "final": rng.random() < (0.35 if len(answered) == len(pending) and not calls else 0.03),
            "write_id": uuid.UUID(int=rng.getrandbits(128)) if rng.random() < 0.7 else None,
        }  # fmt: skip

    async def perform(self, handle: Handle, done: Written, how: dict[str, Any]) -> None:
        """Do a write to both, and remember it."""
        outcome = await self.both(_real(handle, done, how), lambda: _plain(self.plain, handle.plain, done))
        kept = self.plain.conversations.get(done.conversation)
        branch = kept.branches.get(done.branch) if kept else None
        if outcome is not None and branch is not None and branch.written(done.write.write_id):
            self.written.append(done)


def written(texts: list[str], how: dict[str, Any], *, whole: bool = False) -> Write:
    state = how["state"]
    return Write(
        tuple(texts),
        tuple(map(text_of, how["tool_calls"] or ())),
        tuple(map(text_of, how["tool_results"] or ())),
        None if state is UNCHANGED else text_of(state),
        how["final"],
        how["write_id"],
        whole,
    )


def raw(texts: tuple[str, ...]) -> list[Any]:
    return [RawJSON(text) for text in texts]


def _real(handle: Handle, done: Written, how: dict[str, Any]) -> Awaitable[Any]:
    write, real = done.write, handle.real
    state = UNCHANGED if write.state is None else RawJSON(write.state)
    if done.kind == "begin":
        return real.begin_turn(
            how.get("messages", raw(write.texts)), key=done.key, state=state, write_id=write.write_id
        )
    if done.kind == "started":
        return real.mark_started(done.calls, write_id=write.write_id)
    save = real.save_all if done.kind == "save_all" else real.save
    return save(
        how.get("messages", raw(write.texts)),
        tool_calls=raw(write.calls) or None,
        tool_results=raw(write.results) or None,
        state=state,
        final=write.final,
        write_id=write.write_id,
    )


def _plain(plain: PlainStore, handle: PlainHandle, done: Written) -> Any:
    match done.kind:
        case "begin":
            return plain.begin_turn(handle, done.write, done.key)
        case "started":
            return plain.mark_started(handle, done.write.started, done.write.write_id)
        case "save_all":
            return plain.save_all(handle, done.write)
        case _:
            return plain.save(handle, done.write)


# -- handles and conversations


@move(2)
async def new(world: World, rng: random.Random) -> None:
    parents = list(world.plain.conversations.values())
    parent = rng.choice(parents) if parents and rng.random() < 0.3 else None
    made = PlainConversation(
        uuid.UUID(int=0),
        rng.choice(["c0", "c1", "c2", "Ä\n3"]),
        rng.choice([None, "a", "b"]),
        parent.id if parent else None,
        rng.choice([None, "T"]),
        rng.choice([(), ("x",), ("x", "y")]),
        rng.choice([{}, {"m": 1}, {"m": {"deep": [None]}, "n": "\u00e9"}]),
    )
    made.id = turnkeep.conversation_uuid(made.name, tenant=world.tenant)
    if parent is not None and parent.id == made.id:
        return
    known = made.id in world.plain.conversations
    real = await world.store(rng).conversation(
        made.name,
        agent_id=made.agent,
        parent=parent.name if parent else None,
        title=made.title,
        tags=made.tags,
        metadata=made.metadata,
    )
    if not known:
        world.forget_handles(made.id)
        made.branches[0] = PlainBranch(0, "main")
        world.plain.conversations[made.id] = made
    world.handles.append(Handle(real, world.plain.handle(made.id, None, made.agent)))


@move(2)
async def fresh(world: World, rng: random.Random) -> None:
    """Another handle, so that those before it grow stale."""
    if conversation := world.conversation(rng):
        branch = rng.choice([None, *conversation.branches, conversation.next_branch, 0])
        agent = rng.choice([None, None, "a", "b"])
        await world.hold(world.store(rng), conversation, branch, agent)


@move(1)
async def refresh(world: World, rng: random.Random) -> None:
    handle = await world.handle(rng)
    await world.both(handle.real.refresh(), doing(world.plain.refresh, handle.plain))


@move(1)
async def end(world: World, rng: random.Random) -> None:
    if (conversation := world.conversation(rng)) and rng.random() < 0.6:
        await world.both(world.store(rng).end(conversation.name), doing(world.plain.end, conversation.id))


@move(2)
async def reopen(world: World, rng: random.Random) -> None:
    ended = [one for one in world.plain.conversations.values() if one.ended]
    if conversation := rng.choice(ended) if ended else world.conversation(rng):
        await world.both(world.store(rng).reopen(conversation.name), doing(world.plain.reopen, conversation.id))


@move(1)
async def erase(world: World, rng: random.Random) -> None:
    if (conversation := world.conversation(rng)) and rng.random() < 0.4:
        world.erased += world.plain.family(conversation.id)
        await world.both(world.store(rng).erase(conversation.name), lambda: world.plain.erase(conversation.id))


@move(2)
async def update(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        changes: dict[str, Any] = {
            "title": rng.choice([None, "t", "ü"]),
            "tags": rng.choice([(), ("x",), ("y", "x", "y")]),
            "metadata": rng.choice([{}, {"m": None}, {"m": 2, "o": [1.5]}, {"n": {"p": None}}]),
        }
        changes = {key: changes[key] for key in rng.sample(sorted(changes), rng.randint(1, 3))}
        version = rng.choice([None, conversation.version, conversation.version, conversation.version + 1, 0])
        await world.both(
            world.store(rng).update(conversation.name, **changes, version=version),
            doing(world.plain.update, conversation.id, changes, version),
        )


# -- writes


@move(5)
async def begin(world: World, rng: random.Random) -> None:
    handle = await world.handle(rng)
    how: dict[str, Any] = {**world.rest(rng, handle), "tool_calls": None, "tool_results": None, "final": False}
    how["messages"] = world.messages(rng, 1, 3)
    key = rng.choice(KEYS) if rng.random() < 0.25 else None
    if key and rng.random() < 0.5:
        how["messages"] = [{"content": "yes"}]
    write = written([*map(text_of, how["messages"])], how)
    await world.perform(handle, Written(handle.plain.conversation, handle.plain.branch, "begin", write, key), how)


@move(8)
async def save(world: World, rng: random.Random) -> None:
    handle = await world.handle(rng)
    how = world.rest(rng, handle)
    how["messages"] = world.messages(rng, 0, 3)
    write = written([*map(text_of, how["messages"])], how)
    await world.perform(handle, Written(handle.plain.conversation, handle.plain.branch, "save", write), how)


@move(8)
async def save_all(world: World, rng: random.Random) -> None:
    handle = await world.handle(rng)
    how = world.rest(rng, handle)
    kept = [
        json.loads(text) if rng.random() < 0.3 and '"n"' not in text else RawJSON(text) for text in handle.plain.texts
    ]
    if rng.random() < 0.2:
        how |= {"tool_calls": None, "tool_results": None, "state": UNCHANGED, "final": False}
    how["messages"] = rng.choice(EDITS)(world, rng, kept)
    write = written([*map(text_of, how["messages"])], how, whole=True)
    await world.perform(handle, Written(handle.plain.conversation, handle.plain.branch, "save_all", write), how)


@move(2)
async def started(world: World, rng: random.Random) -> None:
    handle = await world.handle(rng)
    places = tuple(call.place for call in handle.plain.pending if rng.random() < 0.7)
    write = Write(started=places, write_id=uuid.UUID(int=rng.getrandbits(128)), phase="started")
    calls = tuple(call for call in handle.real.pending if call.place in places)
    done = Written(handle.plain.conversation, handle.plain.branch, "started", write, calls=calls)
    await world.perform(handle, done, {})


@move(5)
async def retry(world: World, rng: random.Random) -> None:
    """A write again under its id, or another one under that id, by whoever holds the branch."""
    if not world.written:
        return
    done = rng.choice(world.written[-12:])
    holders = [h for h in world.handles if (h.plain.conversation, h.plain.branch) == (done.conversation, done.branch)]
    conversation = world.plain.conversations.get(done.conversation)
    if (not holders or rng.random() < 0.4) and conversation is not None:
        await world.hold(world.store(rng), conversation, done.branch, None)
        holders = world.handles[-1:]
    if not holders or (holders[0].plain.conversation, holders[0].plain.branch) != (done.conversation, done.branch):
        return
    if rng.random() < 0.3 and done.kind != "started":
        texts = (*done.write.texts, '{"another":1}')
        done = replace(done, write=replace(done.write, texts=texts), key=None)
    await world.perform(rng.choice(holders), done, {})


@move(2)
async def post(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        key, message = rng.choice(KEYS), rng.choice([{"content": "yes"}, world.message(rng)])
        branch = rng.choice([None, *conversation.branches, conversation.next_branch])
        outcome = await world.both(
            world.store(rng).post(conversation.name, message, key=key, branch=branch),
            lambda: world.plain.post(conversation.id, branch, key, text_of(message)),
        )
        if outcome is not None:
            posted, expected = outcome
            assert (posted.branch, posted.repeated) == expected


@move(2)
async def take(world: World, rng: random.Random) -> None:
    handle, state = await world.handle(rng), world.state(rng)
    text = None if state is UNCHANGED else text_of(state)
    await world.both(handle.real.take_request(state=state), lambda: world.plain.take_request(handle.plain, text))


# -- branches


def _somewhere(world: World, rng: random.Random, conversation: PlainConversation) -> tuple[Any, Any]:
    branch = rng.choice([None, *conversation.branches, *conversation.branches, conversation.next_branch])
    known = conversation.branches.get(conversation.current if branch is None else branch)
    return branch, rng.choice([None, (0, 9), *known.history, *known.history, *known.history] if known else [None])


@move(4)
async def fork(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        branch, at = _somewhere(world, rng, conversation)
        name = rng.choice([None, None, *NAMES])
        asked = (conversation.id, branch, at, name, uuid.UUID(int=rng.getrandbits(128)))
        if world.forked and rng.random() < 0.15:
            asked = rng.choice(world.forked)
        own = world.plain.conversations.get(asked[0])
        if own is None:
            return
        _, branch, at, name, fork_id = asked
        outcome = await world.both(
            world.store(rng).fork(own.name, branch=branch, at=at, name=name, fork_id=fork_id),
            lambda: world.plain.handle(own.id, world.plain.fork(*asked), None),
        )
        if outcome is not None:
            world.forked.append(asked)
            world.handles = [*world.handles[-MOST_HANDLES:], Handle(*outcome)]


@move(2)
async def fork_into(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        branch, at = _somewhere(world, rng, conversation)
        name = rng.choice(["d0", "d1", "d2", "c0"])
        into = turnkeep.conversation_uuid(name, tenant=world.tenant)
        known = world.plain.conversations.get(into)
        first = known.branches.get(0) if known else None
        fork_id = (
            first.fork_id if first and first.fork_id and rng.random() < 0.5 else uuid.UUID(int=rng.getrandbits(128))
        )

        def copied() -> PlainHandle:
            if known is None:
                world.forget_handles(into)
            world.plain.fork_into(conversation.id, branch, at, into, name, fork_id)
            return world.plain.handle(into, None, None)

        outcome = await world.both(
            world.store(rng).fork(conversation.name, branch=branch, at=at, fork_id=fork_id, into=name), copied
        )
        if outcome is not None:
            world.handles = [*world.handles[-MOST_HANDLES:], Handle(*outcome)]


@move(2)
async def switch(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        branch = rng.choice([*conversation.branches, conversation.next_branch])
        await world.both(
            world.store(rng).switch(conversation.name, branch), lambda: world.plain.switch(conversation.id, branch)
        )


@move(3)
async def delete_branch(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        branch = rng.randint(0, conversation.next_branch)
        outcome = await world.both(
            world.store(rng).delete_branch(conversation.name, branch),
            lambda: world.plain.delete_branch(conversation.id, branch),
        )
        if outcome is not None:
            assert outcome[0] == outcome[1]


# -- what is old


_DAYS: dict[str, int] = {}


@move(3)
async def night(world: World, rng: random.Random) -> None:
    """The next day begins, for the database and for the model."""
    dsn = world.stores[0].conninfo
    _DAYS[dsn] = _DAYS.get(dsn, 0) + 1
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION turnkeep.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
                " AS $$ SELECT pg_catalog.clock_timestamp() + interval {} $$"
            ).format(sql.Literal(f"{_DAYS[dsn]} days"))
        )
    world.plain.day += 1


@move(2)
async def fill(world: World, rng: random.Random) -> None:
    """The documents of a conversation are made."""
    if conversation := world.conversation(rng):
        with psycopg.connect(world.stores[0].conninfo, autocommit=True) as connection:
            connection.execute(
                "UPDATE turnkeep.document SET text = 'filled', next_try_at = NULL WHERE conversation_id = %s",
                (conversation.id,),
            )
        conversation.documents = dict.fromkeys(conversation.documents, True)


@move(5)
async def prune(world: World, rng: random.Random) -> None:
    if conversation := world.conversation(rng):
        keep: Any = rng.choice(["last-per-turn", "heads", "heads"])
        age = timedelta(hours=12)
        looked = await world.store(rng).prune(conversation.name, keep=keep, older_than=age, dry_run=True)
        outcome = await world.both(
            world.store(rng).prune(conversation.name, keep=keep, older_than=age),
            lambda: plain_pruning.prune(world.plain, conversation.id, keep),
        )
        pruned, expected = outcome
        same(replace(pruned, bytes=0), expected)
        same(replace(looked, documents=pruned.documents), pruned)
        again = await world.store(rng).prune(conversation.name, keep=keep, older_than=age)
        same(again, turnkeep.Pruned(1, held_back=pruned.held_back))
