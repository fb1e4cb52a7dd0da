"""`turnkeep show --context`: what an inference would be given now, and how large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnkeep.cli.jsonview import elements
from turnkeep.cli.output import Column, Exact, Output, json_around, json_array
from turnkeep.cli.text import count, cut, one_line, size
from turnkeep.cli.transcript import read_call, read_message

if TYPE_CHECKING:
    from turnkeep.model import Checkpoint, PendingCall
    from turnkeep.store._inbox import Waiting

_COLUMNS = (
    Column("message", right=True),
    Column("role", flexible=True),
    Column("bytes", right=True),
    Column("characters", right=True),
    Column("begins", flexible=True),
)
_BEGINNING = 60


def context_json(checkpoint: Checkpoint, waiting: list[Waiting]) -> str:
    """The messages, their sizes and what is pending, as one JSON object around the exact texts (G3)."""
    sizes = [
        {"index": index, "role": read_message(text).role, "bytes": len(text.encode()), "characters": len(text)}
        for index, text in enumerate(checkpoint.message_texts)
    ]
    names = ("conversation_id", "external_id", "branch", "turn_index", "sub_step", "turn_open")
    head = {name: getattr(checkpoint, name) for name in names}
    totals = {name: sum(int(str(one[name])) for one in sizes) for name in ("bytes", "characters")}
    calls = json_array(
        json_around(
            turn_index=call.turn_index,
            sub_step=call.sub_step,
            index=call.index,
            state=call_state(call),
            call=Exact(elements(call.tool_calls_text)[call.index]),
        )
        for call in checkpoint.pending
    )
    return json_around(
        **head,
        **totals,
        sizes=sizes,
        pending=calls,
        waiting=len(waiting),
        messages=json_array(checkpoint.message_texts),
    )


def print_context(output: Output, checkpoint: Checkpoint, waiting: list[Waiting]) -> None:
    """Print the sizes of the messages, their sum, and what stands in the way of an inference."""
    rows = []
    for index, text in enumerate(checkpoint.message_texts):
        message = read_message(text)
        beginning = next((part.text or part.title for part in message.parts), "")
        kept, left = cut(beginning, _BEGINNING, 1)
        rows.append(
            (
                str(index),
                one_line(message.role),
                f"{len(text.encode()):,}",
                f"{len(text):,}",
                one_line(kept) + (" ..." if left else ""),
            )
        )
    if rows:
        output.table(_COLUMNS, rows)
        output.line()
    total = sum(len(text.encode()) for text in checkpoint.message_texts)
    characters = sum(map(len, checkpoint.message_texts))
    output.line(
        (f"{count(len(rows), 'message')}, {size(total)}, {characters:,} characters of JSON", "bold"),
    )
    for line in _state(checkpoint, waiting):
        output.line((line, "yellow"))


def _state(checkpoint: Checkpoint, waiting: list[Waiting]) -> list[str]:
    """What comes before an inference can be made."""
    lines = []
    for call in checkpoint.pending:
        part = read_call(elements(call.tool_calls_text)[call.index])
        words = one_line(cut(f"{part.title} {part.text}", 200, 1)[0])
        lines.append(f"pending: {words}, {call_state(call)}")
    if waiting:
        lines.append(f"waiting: {count(len(waiting), 'request')} that no turn has taken up")
    if not checkpoint.turn_open and not waiting:
        lines.append("no turn is open: the next message comes first")
    return lines


def call_state(call: PendingCall) -> str:
    """How far a call without a result has come."""
    if call.uncertain:
        return "uncertain: it may have run on the branch that issued it"
    if call.attempts:
        return f"started {count(call.attempts, 'time')}, without a result yet"
    return "not started"
