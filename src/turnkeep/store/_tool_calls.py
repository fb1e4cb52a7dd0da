"""Which pending call a tool result answers: decided purely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnkeep.errors import InvalidInputError, UnknownToolCallError
from turnkeep.jsontext import RawJSON, decode
from turnkeep.model import PendingCall, answered_id_of


def answered(
    results: Sequence[object], pending: Sequence[PendingCall], answers: Sequence[PendingCall] | None
) -> list[PendingCall]:
    """Give for each result the pending call it answers.

    `answers` names them, in order. Without it a result answers the first pending call whose provider's id it
    carries; providers reuse ids, so each call is answered at most once, in the order of issue. A result
    without any id answers the only pending call. Raises `UnknownToolCallError` where there is none.
    """
    if answers is not None and len(answers) != len(results):
        raise InvalidInputError(
            f"answers: {len(answers)} calls for {len(results)} tool results; one for each is needed"
        )
    waiting = list(pending)
    found: list[PendingCall] = []
    for index, result in enumerate(results):
        call = _named(answers[index], waiting) if answers is not None else _by_id(result, waiting)
        if call is None:
            names = ", ".join(map(str, pending)) or "none"
            raise UnknownToolCallError(
                f"tool_results[{index}] answers no pending call (pending: {names}): give it the call's id, "
                "or name the call in `answers`",
                pending,
            )
        waiting.remove(call)
        found.append(call)
    return found


def _named(call: PendingCall, waiting: Sequence[PendingCall]) -> PendingCall | None:
    return next((other for other in waiting if other.place == call.place), None)


def _by_id(result: object, waiting: Sequence[PendingCall]) -> PendingCall | None:
    value: Any = decode(result.text, "tool_results") if isinstance(result, RawJSON) else result
    call_id = answered_id_of(value)
    if call_id is None:
        return waiting[0] if len(waiting) == 1 else None
    return next((call for call in waiting if call.call_id == call_id), None)
