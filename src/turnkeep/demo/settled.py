"""Which calls were issued and what settled them, by a conversation's checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeep.demo.stored import Stored, StoredCheckpoint

Issue = tuple[int, int, int]
"""(turn, sub_step, index) of a call: where it was issued."""


@dataclass(frozen=True)
class Result:
    """A result that was saved. `started` is when its call was marked as started, infinite if it never was."""

    turn: int
    call_id: str
    tool: str
    outcome: str
    started: float
    at: float

    @property
    def place(self) -> tuple[int, str]:
        """(turn, call id)."""
        return self.turn, self.call_id


@dataclass(frozen=True)
class Results:
    """All calls of a conversation by where they were issued, how often each was settled, and the results."""

    issued: Mapping[Issue, Any]
    settled: Counter[Issue]
    given: Sequence[Result]

    def wrong(self) -> Iterator[str]:
        """Say which calls have not exactly one result."""
        for issue in sorted({*self.issued, *self.settled}):
            turn, sub_step, index = issue
            if issue not in self.issued:
                yield f"a call {turn}.{sub_step}:{index} has a result, and nobody made it"
            elif self.settled[issue] != 1:
                name = self.issued[issue]["name"]
                yield f"call {turn}.{sub_step}:{index} of {name} has {self.settled[issue]} results, not one"


def results_of(one: Stored) -> Results:
    """Put together calls, starts and results."""
    issued = {
        (row.turn, row.sub_step, index): call for row in one.checkpoints for index, call in enumerate(row.tool_calls)
    }
    started: dict[Issue, float] = {}
    settled: Counter[Issue] = Counter()
    given = []
    for row in one.checkpoints:
        for number, issue in enumerate(_answers(row)):
            if row.phase == "started":
                started[issue] = row.at
                continue
            settled[issue] += 1
            if issue in issued and number < len(row.tool_results):
                call, outcome = issued[issue], row.tool_results[number]["outcome"]
                since = started.get(issue, math.inf)
                given.append(Result(issue[0], call["id"], call["name"], outcome, since, row.at))
    return Results(issued, settled, given)


def _answers(row: StoredCheckpoint) -> list[Issue]:
    return list(zip(row.answers[0::3], row.answers[1::3], row.answers[2::3], strict=True))
