"""`turnkeep show`: a conversation as it stands, or stood at a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeep.cli.database import find, opened
from turnkeep.cli.jsonview import elements, load, pretty
from turnkeep.cli.ls import branch_label, lease_label
from turnkeep.cli.options import Options, command
from turnkeep.cli.output import Column, Output, json_text
from turnkeep.cli.text import ago, count, cut, one_line, printable
from turnkeep.cli.transcript import Message, Part, read_call, read_message
from turnkeep.errors import InvalidInputError

if TYPE_CHECKING:
    from turnkeep.model import Checkpoint, CheckpointSummary

Place = tuple[int, int]

_MOST_CHARACTERS, _MOST_LINES = 4000, 60
_PAGE = 1000
_ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta", "system": "bold blue"}
_PART_STYLES = {"thought": "dim italic", "note": "dim"}
_COLUMNS = (
    Column("turn", right=True),
    Column("branch"),
    Column("phase"),
    Column("agent", flexible=True),
    Column("messages", right=True),
    Column("calls", right=True),
    Column("results", right=True),
    Column("saved", right=True),
)


@command
def show(
    options: Options,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="CONVERSATION",
            help="An id, a UUID or its first digits, or @last; with @turn.sub_step behind it, that checkpoint.",
            show_default=False,
        ),
    ],
    branch: Annotated[
        int | None,
        typer.Option("--branch", "-b", min=0, max=2**31 - 1, metavar="N", help="Another branch than the current one."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print each message's exact JSON text, one a line.")] = False,
    history: Annotated[bool, typer.Option("--history", help="List the checkpoints, newest first.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many checkpoints of a history.")
    ] = 50,
) -> None:
    """Show where a conversation stands, and its messages."""
    if raw and (history or options.json):
        raise InvalidInputError(f"--raw prints messages: leave out {'--history' if history else '--json'}")
    if history:
        _print_history(options, asyncio.run(_read_history(options, reference, branch, limit)), limit)
        return
    checkpoint = asyncio.run(_read(options, reference, branch))
    if options.json:
        options.output.exact(checkpoint_json(checkpoint))
    elif raw:
        _print_raw(options.output, checkpoint)
    else:
        _print(options.output, checkpoint)


# -- reading


async def _read(options: Options, reference: str, branch: int | None) -> Checkpoint:
    async with opened(options) as store:
        conversation, at = await find(store, reference)
        return await store.restore(conversation, branch=branch, at=at)


async def _read_history(options: Options, reference: str, branch: int | None, limit: int) -> list[CheckpointSummary]:
    """One more than is asked for, where there is one."""
    found: list[CheckpointSummary] = []
    async with opened(options) as store:
        conversation, at = await find(store, reference)
        if at is not None:
            await store.restore(conversation, branch=branch, at=at)  # which says if it is not there
        before = None if at is None else (at[0], at[1] + 1)
        while len(found) <= limit:
            asked = min(limit + 1 - len(found), _PAGE)
            page = await store.history(conversation, branch=branch, limit=asked, before=before)
            found += page
            if len(page) < asked:
                break
            before = (page[-1].turn_index, page[-1].sub_step)
    return found


# -- for programs


def checkpoint_json(checkpoint: Checkpoint) -> str:
    """A checkpoint as one JSON object around the exact texts that were stored (G3)."""
    pending = [
        f'{{"turn_index": {call.turn_index}, "sub_step": {call.sub_step}, "index": {call.index}, '
        f'"uncertain": {json_text(call.uncertain)}, "call": {elements(call.tool_calls_text)[call.index]}}}'
        for call in checkpoint.pending
    ]
    members = {
        name: json_text(getattr(checkpoint, name))
        for name in (
            *("conversation_id", "external_id", "agent_id", "branch", "branch_name", "turn_index", "sub_step"),
            *(
                "phase",
                "turn_open",
                "parent",
                "created_at",
                "write_id",
                "status",
                "lease_owner",
                "lease_until",
                "failure",
            ),
        )
    }
    members["pending"] = f"[{', '.join(pending)}]"
    members["messages"] = f"[{', '.join(checkpoint.message_texts)}]"
    members["tool_calls"] = checkpoint.tool_calls_text or "[]"
    members["tool_results"] = checkpoint.tool_results_text or "[]"
    members["state"] = checkpoint.state_text or "null"
    return f"{{{', '.join(f'{json_text(name)}: {text}' for name, text in members.items())}}}"


def _print_raw(output: Output, checkpoint: Checkpoint) -> None:
    broken = 0
    for text in checkpoint.message_texts:
        output.exact(text)
        broken += "\n" in text
    if broken:
        output.note(f"{count(broken, 'message')} stored with line breaks inside: not one a line.")


# -- for people


def _print(output: Output, checkpoint: Checkpoint) -> None:
    _print_header(output, checkpoint, datetime.now(UTC))
    shortened = False
    for index, text in enumerate(checkpoint.message_texts):
        shortened |= _print_message(output, index, read_message(text))
    if checkpoint.state_text not in (None, "null"):
        output.line()
        output.line(("state", "bold"))
        shortened |= _print_text(output, _readable(checkpoint.state_text or ""), "")
    if shortened:
        output.note("Long content was cut: --raw prints all of the messages, --json all of the checkpoint.")


def _print_header(output: Output, checkpoint: Checkpoint, now: datetime) -> None:
    def row(name: str, *parts: str | tuple[str, str]) -> None:
        output.line((f"  {name:<9}", "dim"), *parts)

    output.line((one_line(checkpoint.external_id), "bold"))
    row("id", str(checkpoint.conversation_id))
    if checkpoint.agent_id:
        row("agent", one_line(checkpoint.agent_id))
    branch = one_line(branch_label(checkpoint.branch, checkpoint.branch_name))
    if checkpoint.turn_index < 0:
        row("place", f"branch {branch}, before its first turn")
    else:
        row("place", f"turn {checkpoint.turn_index}.{checkpoint.sub_step}, branch {branch}")
        row("phase", f"{checkpoint.phase}, {'the turn is open' if checkpoint.turn_open else 'the turn has ended'}")
    row("status", checkpoint.status)
    if checkpoint.failure is not None:
        row("why", (one_line(cut(str(checkpoint.failure.get("message")), 500, 1)[0]), "red"))
    row("lease", one_line(lease_label(checkpoint.lease_owner, checkpoint.lease_until, now)))
    if checkpoint.created_at is not None:
        row("saved", f"{checkpoint.created_at:%Y-%m-%d %H:%M:%S %Z}, {ago(checkpoint.created_at, now)}")
    for number, call in enumerate(checkpoint.pending):
        part = read_call(elements(call.tool_calls_text)[call.index])
        words = one_line(cut(f"{part.title} {part.text}", 200, 1)[0])
        place = f"  of {call.turn_index}.{call.sub_step}"
        uncertain = [("  uncertain: it may have run", "bold yellow")] if call.uncertain else []
        row("pending" if number == 0 else "", (words, "yellow"), (place, "dim"), *uncertain)


def _print_message(output: Output, index: int, message: Message) -> bool:
    role = one_line(message.role)
    output.line()
    detail = [("  " + one_line(message.detail[:200]), "dim")] if message.detail else []
    output.line((f"[{index}] ", "dim"), (role, _ROLE_STYLES.get(role, "bold")), *detail)
    shortened = [_print_part(output, part) for part in message.parts]
    return any(shortened)


def _print_part(output: Output, part: Part) -> bool:
    if part.kind == "call":
        return _print_text(output, part.text, "", before=f"call {part.title} ", after=part.id)
    if part.kind == "result":
        return _print_text(
            output, part.text, "", before=" ".join(filter(None, ("result of", part.title, part.id))) + "\n"
        )
    title = part.title or ("thinking" if part.kind == "thought" else "")
    return _print_text(output, part.text, _PART_STYLES.get(part.kind, ""), before=f"{title}: " if title else "")


def _print_text(output: Output, text: str, style: str, *, before: str = "", after: str = "") -> bool:
    """Print a piece of content indented, and cut where it is very long. Says whether it was."""
    from rich.text import Text

    kept, left = cut(text, _MOST_CHARACTERS, _MOST_LINES)
    shown = Text()
    shown.append(printable(before[:200]), "yellow")
    shown.append(printable(kept), style)
    if left:
        shown.append(f" ... {left:,} more characters", "dim")
    if after:
        shown.append(f"  {one_line(after[:100])}", "dim")
    output.block(shown)
    return left > 0


def _readable(text: str) -> str:
    try:
        return pretty(load(text))
    except (ValueError, RecursionError):
        return text


def _print_history(options: Options, found: Sequence[CheckpointSummary], limit: int) -> None:
    output = options.output
    now = datetime.now(UTC)
    if options.json:
        for one in found[:limit]:
            output.record(asdict(one))
    elif found:
        output.table(
            _COLUMNS,
            [
                (
                    f"{one.turn_index}.{one.sub_step}",
                    str(one.branch),
                    one.phase,
                    one.agent_id or "-",
                    *(f"{number:,}" for number in (one.messages, one.tool_calls, one.tool_results)),
                    ago(one.created_at, now),
                )
                for one in found[:limit]
            ],
        )
    if len(found) > limit:
        output.note(f"There are more than {limit:,}: ask with a larger --limit.")
    if not found:
        output.note("There are no checkpoints yet.")
