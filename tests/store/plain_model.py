"""What the store is to be, as plain dicts and lists: nothing is shared by spans, nothing is concurrent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.store.plain_records import (
    MOST_PIECES,
    Place,
    PlainBranch,
    PlainCall,
    PlainConversation,
    PlainHandle,
    PlainRequest,
    Row,
    Snapshot,
    Write,
    call_id,
    pieces,
    sources_of,
    values_of,
)
from turnkeep import (
    ConflictError,
    ConversationEndedError,
    Erased,
    KeyReusedError,
    NotFoundError,
    PendingCallsError,
    Saved,
    TurnNotOpenError,
    TurnOpenError,
    UnknownToolCallError,
)


class PlainStore:
    """All conversations, by id."""

    def __init__(self) -> None:
        self.conversations: dict[uuid.UUID, PlainConversation] = {}
        self.origins: set[uuid.UUID] = set()  # of copies, which go on saying so
        self.day = 0

    # -- what is there

    def find(self, conversation: uuid.UUID, branch: int | None = None) -> tuple[PlainConversation, PlainBranch]:
        found = self.conversations.get(conversation)
        number = found.current if found and branch is None else branch
        if found is None or number not in found.branches:
            raise NotFoundError
        return found, found.branches[number]

    def handle(self, conversation: uuid.UUID, branch: int | None, agent: str | None) -> PlainHandle:
        found, one = self.find(conversation, branch)
        known = (one.head.agent if one.head else None) or found.agent
        return PlainHandle(conversation, one.number, one.head, agent or known)

    def refresh(self, handle: PlainHandle) -> None:
        _, branch = self.find(handle.conversation, handle.branch)
        handle.seen = branch.head

    # -- writes

    def begin_turn(self, handle: PlainHandle, write: Write, key: str | None) -> Saved:
        body = repr(values_of(write.texts))
        conversation = self.conversations.get(handle.conversation)
        request = conversation.requests.get(key) if conversation and key is not None else None
        if conversation is not None and request is not None:
            if request.body != body or request.branch != handle.branch:
                raise KeyReusedError
            if request.taken is not None:
                self.refresh(handle)
                turn = [s for s in conversation.branches[handle.branch].own if s.turn == request.taken]
                return Saved(handle.branch, *turn[-1].place, True, not turn[-1].open)
        saved = self._append(handle, replace(write, phase="input"), ())
        if conversation is not None and key is not None and not saved.repeated:
            conversation.requests.setdefault(key, PlainRequest(handle.branch, body, "")).taken = saved.turn_index
        return saved

    def save(self, handle: PlainHandle, write: Write) -> Saved:
        return self._append(handle, write, self._settled(handle, write, write.kind))

    def save_all(self, handle: PlainHandle, write: Write) -> Saved:
        branch = self._branch_of(handle)
        found = branch.written(write.write_id) if branch else None
        if branch is not None and found is not None and write.write_id is not None:
            opening = branch.written(uuid.uuid5(write.write_id, "input"))
            said = replace(found.write, calls=(opening or found).write.calls)
            if found.write.kind == "final" and opening is None and not found.write.calls:
                said = replace(said, calls=write.calls)  # what it opened with may have been pruned
            if (
                (found.write.kind == "final") != write.final
                or not said.says(write)
                or values_of(found.texts) != values_of(write.texts)
            ):
                raise KeyReusedError
            return self._again(handle, found)
        unchanged = sources_of(handle.texts, write.texts) == [*range(len(handle.texts))]
        known = handle.seen.state if handle.seen else None
        unchanged = unchanged and not write.calls and not write.results and write.state in (None, known)
        if unchanged and not (write.final and handle.open) and write.write_id is None:
            if branch is None:
                raise NotFoundError
            if self.conversations[handle.conversation].ended:
                raise ConversationEndedError
            if branch.head is not handle.seen:
                raise ConflictError
            return Saved(handle.branch, *handle.place, True, not handle.open)
        if write.final and not handle.open:
            self._settled(handle, write, "final", first=(handle.place[0] + 1, 0))
            first = uuid.uuid5(write.write_id, "input") if write.write_id else None
            opening_write = replace(write, results=(), final=False, write_id=first, phase="input")
            self._append(handle, opening_write, self._settled(handle, opening_write, "input"))
            write = replace(write, calls=(), state=None)
        kind = write.kind if handle.open else "input"
        return self._append(handle, replace(write, phase=kind), self._settled(handle, write, kind))

    def mark_started(
        self, handle: PlainHandle, places: Sequence[tuple[int, int, int]], write_id: uuid.UUID | None
    ) -> Saved:
        write = Write(started=tuple(places), write_id=write_id, phase="started")
        if not places or any(place not in [call.place for call in handle.pending] for place in places):
            if found := self._found_in_spite(handle, write):
                return found
            raise UnknownToolCallError("")
        pending = tuple(
            replace(call, attempts=call.attempts + 1) if call.place in places else call for call in handle.pending
        )
        return self._append(handle, write, pending)

    def take_request(self, handle: PlainHandle, state: str | None) -> Saved | None:
        conversation = self.conversations.get(handle.conversation)
        waiting = conversation.waiting(handle.branch) if conversation else []
        if conversation is None or not waiting:
            return None
        request = conversation.requests[waiting[0]]
        saved = self._append(handle, Write((request.text,), state=state, phase="input"), ())
        request.taken = saved.turn_index
        return saved

    def _branch_of(self, handle: PlainHandle) -> PlainBranch | None:
        conversation = self.conversations.get(handle.conversation)
        return conversation.branches.get(handle.branch) if conversation else None

    def _settled(
        self, handle: PlainHandle, write: Write, kind: str, first: Place | None = None
    ) -> tuple[PlainCall, ...]:
        """The calls that wait for a result after a write."""
        place = first or handle.next_place(kind)
        issued = [
            PlainCall(handle.conversation, handle.branch, *place, index, text) for index, text in enumerate(write.calls)
        ]
        pending = [*handle.pending, *issued]
        for result in write.results:
            answered = next((call for call in pending if call_id(call.text) == call_id(result)), None)
            if answered is None:
                break
            pending.remove(answered)
        else:
            if kind != "final" or not pending:
                return tuple(pending)
            if self._found_in_spite(handle, write):
                return ()
            raise PendingCallsError("")
        if self._found_in_spite(handle, write):
            return ()
        raise UnknownToolCallError("")

    def _found_in_spite(self, handle: PlainHandle, write: Write) -> Saved | None:
        """A first try whose calls have been settled since: what it came to."""
        branch = self._branch_of(handle)
        found = branch.written(write.write_id) if branch else None
        if found is None or found.write.kind != write.kind:
            return None
        if not found.write.says(write) or not _appended(found, write):
            raise KeyReusedError
        return Saved(handle.branch, *found.place, True, not found.open)

    def _append(self, handle: PlainHandle, write: Write, pending: tuple[PlainCall, ...]) -> Saved:
        branch = self._branch_of(handle)
        if branch is None:
            raise NotFoundError
        conversation = self.conversations[handle.conversation]
        if found := branch.written(write.write_id):
            if found.write.kind != write.kind or not found.write.says(write) or not _appended(found, write):
                raise KeyReusedError
            return self._again(handle, found)
        if conversation.ended:
            raise ConversationEndedError
        if branch.head is not handle.seen:
            raise ConflictError
        if write.kind == "input" and handle.open:
            raise TurnOpenError("")
        if write.kind != "input" and not handle.open:
            raise TurnNotOpenError
        before = handle.seen.rows if handle.seen else ()
        if write.whole:
            sources = sources_of(handle.texts, write.texts)
            fresh = iter(branch.new_rows([t for t, s in zip(write.texts, sources, strict=True) if s is None]))
            rows = [next(fresh) if source is None else before[source] for source in sources]
        else:
            rows = [*before, *branch.new_rows(write.texts)]
        if pieces(rows, lambda a, b: (a.branch, a.position + 1) == (b.branch, b.position)) > MOST_PIECES:
            rows = branch.new_rows([row.text for row in rows])
        known = handle.seen.state if handle.seen else None
        state = known if write.state is None else write.state
        place = handle.next_place(write.kind)
        made = Snapshot(handle.branch, *place, write, handle.seen, tuple(rows), state, pending, handle.agent, self.day)
        branch.history[place] = handle.seen = made
        if not made.open:
            conversation.documents.setdefault((handle.branch, made.turn), False)
        branch.status = "open" if made.open else "idle"
        waiting = not made.open and bool(conversation.waiting(branch.number))
        if waiting:
            branch.status = "ready"
        return Saved(handle.branch, *place, False, not made.open, waiting)

    def _again(self, handle: PlainHandle, found: Snapshot) -> Saved:
        if found.place == handle.next_place(found.write.kind):
            handle.seen = found
        return Saved(handle.branch, *found.place, True, not found.open)

    # -- requests, branches, conversations

    def post(self, conversation: uuid.UUID, branch: int | None, key: str, text: str) -> tuple[int, bool]:
        found = self.conversations.get(conversation)
        if found and (request := found.requests.get(key)):
            if request.body != repr(values_of([text])):
                raise KeyReusedError
            return request.branch, True
        found, one = self.find(conversation, branch)
        if found.ended:
            raise ConversationEndedError
        found.requests[key] = PlainRequest(one.number, repr(values_of([text])), text)
        one.status = "ready" if one.status == "idle" else one.status
        return one.number, False

    def fork(
        self, conversation: uuid.UUID, branch: int | None, at: Place | None, name: str | None, fork_id: uuid.UUID
    ) -> int:
        found, source = self.find(conversation, branch)
        for one in found.branches.values():
            if one.fork_id == fork_id:
                return one.number
        if found.ended:
            raise ConversationEndedError
        at = max(source.history, default=None) if at is None else at
        if at is None or at not in source.history:
            raise NotFoundError
        if name is not None and name in [one.name for one in found.branches.values()]:
            raise ConflictError
        history = {place: snapshot for place, snapshot in source.history.items() if place <= at}
        made = PlainBranch(found.next_branch, name, history, (history[at].branch, *at), fork_id=fork_id)
        found.branches[made.number] = made
        found.next_branch += 1
        return made.number

    def fork_into(
        self,
        conversation: uuid.UUID,
        branch: int | None,
        at: Place | None,
        into: uuid.UUID,
        name: str,
        fork_id: uuid.UUID,
    ) -> None:
        first = self.conversations[into].branches.get(0) if into in self.conversations else None
        if first is not None and first.fork_id == fork_id:
            return
        found, source = self.find(conversation, branch)
        at = max(source.history, default=None) if at is None else at
        if at is None or at not in source.history:
            raise NotFoundError
        if into in self.conversations:
            raise ConflictError
        history = [source.history[place] for place in sorted(source.history) if place <= at]
        self.origins.add(conversation)
        made = PlainConversation(into, name, found.agent, None, found.title, found.tags, {**found.metadata})
        made.branches[0] = copy = PlainBranch(0, "main", fork_id=fork_id)
        moved = _moved({row for snapshot in history for row in snapshot.rows})
        copy.stored = moved.pop("stored")
        copy.pruned = {
            position
            for number, first, last, start in moved.pop("parts")
            for position in range(start, start + last + 1 - first)
            if first + position - start in found.branches[number].pruned
        }
        there = {id(snapshot) for snapshot in history}
        line = [source.history[at]]
        while (before := line[-1].parent) is not None:
            line.append(before)
        parent: Snapshot | None = None
        for snapshot in reversed(line):  # those that have been pruned go on being parents
            rows = tuple(Row(0, moved.get(row, -1), row.text) for row in snapshot.rows)
            pending = tuple(replace(call, copied=True) for call in snapshot.pending)
            parent = replace(snapshot, branch=0, rows=rows, parent=parent, pending=pending)
            if id(snapshot) not in there:
                continue
            copy.history[parent.place] = parent
            if not parent.open:
                made.documents[0, parent.turn] = False
        self.conversations[into] = made

    def switch(self, conversation: uuid.UUID, branch: int) -> None:
        found, _ = self.find(conversation, branch)
        found.current = branch

    def delete_branch(self, conversation: uuid.UUID, branch: int) -> bool:
        found = self.conversations.get(conversation)
        if found is None or branch >= found.next_branch:
            raise NotFoundError
        if found.current == branch or found.waiting(branch) or found.builders(branch):
            raise ConflictError
        if branch not in found.branches:
            return False
        del found.branches[branch]
        found.requests = {key: r for key, r in found.requests.items() if r.branch != branch}
        found.documents = {key: filled for key, filled in found.documents.items() if key[0] != branch}
        return True

    def end(self, conversation: uuid.UUID) -> None:
        found, _ = self.find(conversation)
        for branch in found.branches.values():
            if not found.ended:
                branch.before_end = branch.status
            branch.status = "ended"
        found.ended = True

    def reopen(self, conversation: uuid.UUID) -> None:
        found, _ = self.find(conversation)
        for branch in found.branches.values():
            branch.status = branch.before_end if found.ended else branch.status
        found.ended = False

    def update(self, conversation: uuid.UUID, changes: dict[str, Any], version: int | None) -> None:
        found, _ = self.find(conversation)
        if version not in (None, found.version):
            raise ConflictError
        found.title = changes.get("title", found.title)
        found.tags = tuple(dict.fromkeys(changes.get("tags", found.tags)))
        merged = {**found.metadata, **changes.get("metadata", {})}
        removed = [key for key, value in changes.get("metadata", {}).items() if value is None]
        found.metadata = {key: value for key, value in merged.items() if key not in removed}
        found.version += 1

    def family(self, conversation: uuid.UUID) -> Iterator[uuid.UUID]:
        if conversation in self.conversations:
            yield conversation
        for child in [one.id for one in self.conversations.values() if one.parent == conversation]:
            yield from self.family(child)

    def erase(self, conversation: uuid.UUID) -> Erased:
        gone = [self.conversations.pop(one) for one in list(self.family(conversation))]
        branches = [branch for one in gone for branch in one.branches.values()]
        return Erased(
            len(gone),
            len(branches),
            sum(len(branch.own) for branch in branches),
            sum(branch.stored - len(branch.pruned) for branch in branches),
            sum(len(one.requests) for one in gone),
        )


def _appended(found: Snapshot, write: Write) -> bool:
    """Whether a checkpoint is its parent's list with these messages at its end; or just these, given as a whole."""
    before = [] if write.whole or found.parent is None else found.parent.texts
    return values_of(found.texts) == values_of([*before, *write.texts])


def _moved(rows: set[Row]) -> dict[Any, Any]:
    """New positions of rows that are copied: what each branch has between its first and last one goes with them."""
    moved: dict[Any, Any] = {}
    parts: list[tuple[int, int, int, int]] = []
    stop = 0
    for branch in sorted({row.branch for row in rows}):
        own = [row for row in rows if row.branch == branch]
        first, last = min(row.position for row in own), max(row.position for row in own)
        moved |= {row: stop + row.position - first for row in own}
        parts.append((branch, first, last, stop))
        stop += last + 1 - first
    moved["stored"] = stop
    moved["parts"] = parts
    return moved
