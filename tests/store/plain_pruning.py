"""What pruning is to remove, by going through everything there is."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.store.plain_records import PlainConversation, Row, Snapshot
from turnkeep import Pruned

if TYPE_CHECKING:
    from tests.store.plain_model import PlainStore

Turn = tuple[int, int]
"""A branch and a turn."""


@dataclass
class PlainPruning:
    """A conversation as pruning looks at it."""

    conversation: PlainConversation
    keep: str
    today: int

    def __post_init__(self) -> None:
        branches = self.conversation.branches.values()
        self.all = {id(s): s for branch in branches for s in branch.history.values()}.values()
        points = {branch.parent for branch in branches}
        self.marks = [s for s in self.all if (s.branch, *s.place) in points]
        self.marks += [branch.head for branch in branches if branch.head is not None]
        self.needed = {id(s) for mark in self.marks for s in self._read_with(mark)}
        self.taken = {(r.branch, r.taken) for r in self.conversation.requests.values() if r.taken is not None}
        self.last: dict[Turn, Snapshot] = {}
        for s in sorted(self.all, key=lambda one: one.place):
            self.last[s.branch, s.turn] = s

    def _read_with(self, mark: Snapshot) -> list[Snapshot]:
        """A checkpoint, and those of its turn that its pending calls are known from."""
        found = [mark]
        while found[-1].open and (parent := found[-1].parent) is not None and parent.turn == mark.turn:
            found.append(parent)
        return found

    def _young(self, turn: Turn) -> bool:
        return turn in self.last and self.last[turn].day == self.today

    def kept(self, s: Snapshot) -> bool:
        """Whether it stays, whatever documents want."""
        turn = s.branch, s.turn
        ends = self.last[turn] is s
        return (
            id(s) in self.needed
            or self._young(turn)
            or (ends and (self.keep == "last-per-turn" or turn in self.taken or self._young((s.branch, s.turn + 1))))
        )

    def wanted(self, s: Snapshot) -> bool:
        """Whether a document is still to be made of it."""
        unread = {turn for turn, filled in self.conversation.documents.items() if not filled}
        return self.last[s.branch, s.turn] is s and (
            (s.branch, s.turn) in unread or s.turn + 1 in {turn for _, turn in unread}
        )

    def run(self) -> Pruned:
        """Remove what is to be removed."""
        doomed = [s for s in self.all if not self.kept(s) and not self.wanted(s)]
        held_back = sum(not self.kept(s) and self.wanted(s) for s in self.all)
        gone = {id(s) for s in doomed}
        rows = {row for s in self.all if id(s) not in gone for row in s.rows}
        documents = [(s.branch, s.turn) for s in doomed if not s.open and not self._added(s) & rows]
        documents = [turn for turn in documents if self.conversation.documents.pop(turn, None) is not None]
        messages = 0
        for branch in self.conversation.branches.values():
            branch.history = {place: s for place, s in branch.history.items() if id(s) not in gone}
            before = len(branch.pruned)
            held = {row.position for row in rows if row.branch == branch.number}
            branch.pruned = {*range(branch.stored)} - held
            messages += len(branch.pruned) - before
        return Pruned(1, len(doomed), messages, len(documents), 0, held_back)

    def _added(self, end: Snapshot) -> set[Row]:
        """The messages that a turn has stored and ended with."""
        before = self.last.get((end.branch, end.turn - 1))
        return {row for row in end.rows if row.branch == end.branch} - {*(before.rows if before else ())}


def prune(plain: PlainStore, conversation: uuid.UUID, keep: str) -> Pruned:
    """Prune a conversation: all but today's is old."""
    return PlainPruning(plain.find(conversation)[0], keep, plain.day).run()
