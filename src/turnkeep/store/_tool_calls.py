"""Which pending call a tool result answers: decided purely."""

from __future__ import annotations

from collections.abc import Sequence

from turnkeep.errors import InvalidInputError, UnknownToolCallError
from turnkeep.jsontext import RawJSON, decode_names
from turnkeep.model import PendingCall, call_id_of

Answer = PendingCall | str | None
"""What a result says of the call it answers: the call, the provider's id of it, or nothing."""


def named(results: Sequence[object], answers: Sequence[PendingCall] | None) -> list[Answer]:
    """Give for each result what is said of its call: by `answers`, in order, or else by the result itself."""
    if answers is None:
        return [call_id_of(decode_names(result.text) if isinstance(result, RawJSON) else result) for result in results]
    if len(answers) != len(results):
        raise InvalidInputError(
            f"answers: {len(answers)} calls for {len(results)} tool results; one for each is needed"
        )
    return list(answers)


def answered(named: Sequence[Answer], pending: Sequence[PendingCall]) -> list[PendingCall]:
    """Give for each result the pending call it answers.

    Providers reuse ids: an id means the first call with it that is not answered yet. A result that says nothing
    answers the only pending call. Raises `UnknownToolCallError` where there is none.
    """
    waiting = list(pending)
    found: list[PendingCall] = []
    for index, answer in enumerate(named):
        call = next((call for call in waiting if _answers(answer, call, alone=len(waiting) == 1)), None)
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


def _answers(answer: Answer, call: PendingCall, *, alone: bool) -> bool:
    if answer is None:
        return alone
    return call.place == answer.place if isinstance(answer, PendingCall) else call.call_id == answer
