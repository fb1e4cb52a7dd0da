"""Documents: the text of each turn that has ended, filled once, and nothing of what is gone."""

from __future__ import annotations

from typing import Any

import turnkeep
from tests.observing import Observer
from turnkeep.search import fill_documents


def texts(observer: Observer) -> list[tuple[Any, ...]]:
    return observer.rows(
        "SELECT branch, turn_index, chunk, text FROM turnkeep.document"
        " ORDER BY conversation_id, branch, turn_index, chunk"
    )


async def turn(branch: turnkeep.AsyncBranch, question: str, answer: str) -> None:
    await branch.begin_turn({"role": "user", "content": question})
    await branch.save([{"role": "assistant", "content": answer}], final=True)


async def test_a_turn_is_filled_with_what_it_has_added(store: turnkeep.AsyncStore, observer: Observer) -> None:
    branch = await store.conversation("c")
    await turn(branch, "one?", "1")
    await turn(branch, "two?", "2")
    report = await fill_documents(store)
    assert (report.filled, report.failed, report.left) == (2, 0, 0)
    assert texts(observer) == [(0, 0, 0, "one?\n\n1"), (0, 1, 0, "two?\n\n2")]
    assert (await fill_documents(store)).filled == 0
